#include "manifest.h"

#include <algorithm>

#include "error.h"
#include "sha256.h"
#include "tensor.h"

namespace tvmstack {

namespace {

constexpr char kAgain[] = ". Copy or build it again";

DLDataType Dtype(const std::string& name) {
  DLDataType dtype;
  if (!DtypeOf(name, &dtype)) throw JsonError("tensors of " + name + " cannot pass through the C API");
  return dtype;
}

std::vector<int64_t> Numbers(const Json& list) {
  std::vector<int64_t> numbers;
  for (const Json& item : list.Items()) numbers.push_back(item.Integer());
  return numbers;
}

Span SpanFrom(const Json& row, uint64_t room) {
  const int64_t offset = row.At("offset").Integer(), size = row.At("size").Integer();
  if (offset < 0 || size < 0 || static_cast<uint64_t>(offset) > room || static_cast<uint64_t>(size) > room - offset)
    throw JsonError("a part reaches beyond its section");
  return {static_cast<uint64_t>(offset), static_cast<uint64_t>(size)};
}

std::vector<Weight> WeightsFrom(const Json& rows, uint64_t room) {
  std::vector<Weight> weights;
  for (const Json& row : rows.Items()) {
    Weight weight{Dtype(row.At("dtype").Text()), Numbers(row.At("shape")), SpanFrom(row, room)};
    uint64_t size = (weight.dtype.bits + 7) / 8;
    for (int64_t dim : weight.shape)
      if (dim < 0 || __builtin_mul_overflow(size, static_cast<uint64_t>(dim), &size))
        throw JsonError("a weight has an impossible shape");
    if (size != weight.span.size || weight.span.offset % kAlign) throw JsonError("a weight's size is not its shape's");
    weights.push_back(std::move(weight));
  }
  return weights;
}

Region RegionFrom(const Json& place, const std::vector<Json>& rows, uint64_t room) {
  const std::string digest = place.At("digest").Text();
  auto row = std::find_if(rows.begin(), rows.end(), [&](const Json& r) { return r.At("digest").Text() == digest; });
  if (row == rows.end()) throw JsonError("region " + digest + " is not in the plan");
  return {digest,      row->TextOr("engine", "onnxruntime"), SpecsFrom(row->At("inputs")), SpecsFrom(row->At("outputs")),
          row->Dump(), SpanFrom(place, room)};
}

std::map<std::string, std::string> Texts(const Json& object) {
  auto fields = object.Fields();
  return {fields.begin(), fields.end()};
}

Manifest Parsed(const Json& data, const std::map<std::string, Span>& sections) {
  Manifest manifest;
  const Json device = data.At("device");
  manifest.arch = device.At("arch").Text();
  manifest.mcpu = device.At("mcpu").Text();
  for (const Json& feature : device.At("features").Items()) manifest.features.push_back(feature.Text());
  manifest.versions = Texts(data.At("versions"));
  manifest.digests = Texts(data.At("digests"));
  manifest.inputs = SpecsFrom(data.At("inputs"));
  manifest.outputs = SpecsFrom(data.At("outputs"));
  manifest.weights = WeightsFrom(data.At("weights"), sections.at(kWeights).size);
  const std::vector<Json> rows = data.At("plan").At("regions").Items();
  for (const Json& place : data.At("regions").Items())
    manifest.regions.push_back(RegionFrom(place, rows, sections.at(kRegions).size));
  manifest.library_size = static_cast<uint64_t>(data.At("library_size").Integer());
  manifest.threads = data.At("threads").Integer();
  manifest.sections = sections;
  return manifest;
}

}  // namespace

bool TensorSpec::IsStatic() const {
  return std::none_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 0; });
}

std::string TensorSpec::Text() const {
  std::string text = dtype_name + " [";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + (shape[i] < 0 ? dim_names[i] : std::to_string(shape[i]));
  return text + "]";
}

std::vector<TensorSpec> SpecsFrom(const Json& rows) {
  std::vector<TensorSpec> specs;
  for (const Json& row : rows.Items()) {
    const std::string dtype = row.At("dtype").Text();
    TensorSpec spec{row.At("name").Text(), dtype, Dtype(dtype), {}, {}};
    for (const Json& dim : row.At("shape").Items()) {
      spec.shape.push_back(dim.IsText() ? -1 : dim.Integer());
      spec.dim_names.push_back(dim.IsText() ? dim.Text() : "");
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

Manifest ReadManifest(const File& file) {
  const std::map<std::string, Span> sections = file.Sections();
  auto at = sections.find(kManifest);
  if (at == sections.end()) throw ArtifactError(file.path() + " was not made by tvmstack: it has no manifest");
  const std::string packed = file.Read(at->second);
  const size_t line = packed.find('\n');
  const std::string body = line == std::string::npos ? "" : packed.substr(line + 1);
  if (line == std::string::npos || Hex(Sha256::Of(body)) != packed.substr(0, line))
    throw ArtifactError(file.path() + " is damaged: its manifest does not match its digest" + kAgain);
  try {
    const Json data = Json::Parse(body);
    const int64_t schema = data.At("schema").Integer();
    if (schema > kSchema)
      throw ArtifactError(file.path() + " has a manifest of schema " + std::to_string(schema) +
                          ", this tvmstack reads up to " + std::to_string(kSchema) + ": upgrade tvmstack");
    for (const char* name : {kWeights, kRegions})
      if (!sections.count(name))
        throw ArtifactError(file.path() + " is damaged: it has no section " + name + kAgain);
    Manifest manifest = Parsed(data, sections);
    manifest.text = body;
    return manifest;
  } catch (const JsonError& error) {
    throw ArtifactError(file.path() + " has a manifest that tvmstack " TVMSTACK_VERSION " cannot read (" +
                        error.what() + "): build it again");
  }
}

}  // namespace tvmstack
