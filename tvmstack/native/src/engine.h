// Finding the engine of a region, and an open region behind it.
#pragma once
#include <tvmstack_engine.h>

#include <memory>
#include <string>
#include <vector>

#include "manifest.h"
#include "tensor.h"

namespace tvmstack {

// The engine of that name; see tvmstack_engine.h for where it is looked for. Throws a setup error that says where.
const tvmstack_engine* FindEngine(const std::string& name);

// The built-in ones.
const tvmstack_engine* OnnxruntimeEngine();
const tvmstack_engine* OpenvinoEngine();

// A region that an engine holds open. Safe to run from several threads at once.
class OpenRegion {
 public:
  OpenRegion(const Region& region, const uint8_t* blob, int threads, const std::string& model_folder);
  ~OpenRegion();
  OpenRegion(const OpenRegion&) = delete;
  OpenRegion& operator=(const OpenRegion&) = delete;

  // Throws a backend error.
  std::vector<tvm::ffi::Tensor> Run(const std::vector<const DLTensor*>& inputs) const;

 private:
  const Region& region_;
  const tvmstack_engine* engine_;
  void* handle_ = nullptr;
};

// ---- for engines written in C++ ----

// The row of a region as an engine reads it.
struct EngineRow {
  explicit EngineRow(const char* text);
  std::string digest;
  std::vector<TensorSpec> inputs, outputs;
  std::vector<std::string> input_names, output_names;  // as the engine knows them
  std::string target;
  std::vector<std::pair<std::string, std::string>> options;
  std::string Version(const std::string& package) const;

 private:
  std::vector<std::pair<std::string, std::string>> versions_;
};

// "2026.4.1" as numbers.
std::vector<int> VersionNumbers(const std::string& text);

// Turn what `work` throws into the C border's sentence.
template <typename Work>
int32_t Guarded(char* error, size_t size, Work work) noexcept;

}  // namespace tvmstack

#include "error.h"

template <typename Work>
int32_t tvmstack::Guarded(char* error, size_t size, Work work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::exception& failure) {
    Tell(failure.what(), error, size);
  } catch (...) {
    Tell("an exception without words", error, size);
  }
  return 1;
}

namespace tvmstack {

// The C functions of an engine whose regions are objects of a class: made from the arguments, with a method Run.
template <typename OneRegion>
struct EngineOf {
  static int32_t Open(const tvmstack_engine_open_args* args, void** handle, char* error, size_t size) {
    return Guarded(error, size, [&] { *handle = new OneRegion(*args); });
  }

  static int32_t Run(void* handle, const DLTensor* const* inputs, int32_t count, int32_t, tvmstack_engine_alloc alloc,
                     void* context, char* error, size_t size) {
    return Guarded(error, size, [&] {
      static_cast<OneRegion*>(handle)->Run(inputs, static_cast<size_t>(count), alloc, context);
    });
  }

  static void Close(void* handle) { delete static_cast<OneRegion*>(handle); }
};

}  // namespace tvmstack
