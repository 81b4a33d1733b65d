// What an artifact says of itself, as `tvmstack.artifact.manifest` writes it.
#pragma once
#include <tvmstack.h>

#include <map>
#include <string>
#include <vector>

#include "file.h"
#include "json.h"

namespace tvmstack {

constexpr int kSchema = 1;
constexpr char kManifest[] = ".tvmstack.manifest", kWeights[] = ".tvmstack.weights", kRegions[] = ".tvmstack.regions";

// Name, dtype and shape of a tensor; -1 where a dimension is dynamic.
struct TensorSpec {
  std::string name, dtype_name;
  DLDataType dtype;
  std::vector<int64_t> shape;
  std::vector<std::string> dim_names;  // "" where the dimension is static

  bool IsStatic() const;
  // "float32 [1, length]"
  std::string Text() const;
};

std::vector<TensorSpec> SpecsFrom(const Json& rows);

struct Weight {
  DLDataType dtype;
  std::vector<int64_t> shape;
  Span span;  // in the section
};

struct Region {
  std::string digest, engine;
  std::vector<TensorSpec> inputs, outputs;
  std::string row;  // JSON
  Span span;        // in the section
};

struct Manifest {
  std::string text;  // JSON
  std::string arch, mcpu;
  std::vector<std::string> features;
  std::map<std::string, std::string> versions, digests;
  std::vector<TensorSpec> inputs, outputs;
  std::vector<Weight> weights;
  std::vector<Region> regions;
  uint64_t library_size;
  int64_t threads;
  std::map<std::string, Span> sections;
};

// Throws an artifact error: damaged, not an artifact, of a newer layout.
Manifest ReadManifest(const File& file);

}  // namespace tvmstack
