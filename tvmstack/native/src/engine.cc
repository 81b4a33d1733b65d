#include "engine.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "library.h"
#include "tensor.h"

namespace tvmstack {

namespace ffi = tvm::ffi;

namespace {

constexpr size_t kWords = 1024;

// Names come from a file: nothing in them may leave the folders that are searched.
bool IsPlain(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
}

std::vector<std::string> EngineFolders() {
  std::vector<std::string> folders;
  const char* named = std::getenv("TVMSTACK_ENGINES");
  std::istringstream text(named ? named : "");
  for (std::string folder; std::getline(text, folder, ':');)
    if (!folder.empty()) folders.push_back(folder);
  folders.push_back(OwnFolder());
  return folders;
}

const tvmstack_engine* FromFile(const std::string& path) {
  const Library library = Library::Open(path);
  tvmstack_engine_get_function get;
  library.Get("tvmstack_engine_get", &get);
  const tvmstack_engine* engine = get(TVMSTACK_ENGINE_ABI);
  if (engine == nullptr || engine->abi != TVMSTACK_ENGINE_ABI)
    throw SetupError(path + " does not know version " + std::to_string(TVMSTACK_ENGINE_ABI) +
                     " of the engine interface: build it with this tvmstack's tvmstack_engine.h");
  return engine;
}

struct Outputs {
  const Region* region;
  std::vector<ffi::Optional<ffi::Tensor>> tensors;
  std::string error;

  static void* Allocate(void* context, int32_t index, const int64_t* shape, int32_t ndim) noexcept {
    auto self = static_cast<Outputs*>(context);
    try {
      const TensorSpec& spec = self->region->outputs.at(static_cast<size_t>(index));
      self->tensors[static_cast<size_t>(index)] = NewTensor(ffi::ShapeView(shape, static_cast<size_t>(ndim)), spec.dtype);
      return (*self->tensors[static_cast<size_t>(index)]).data_ptr();
    } catch (...) {
      return nullptr;
    }
  }
};

}  // namespace

const tvmstack_engine* FindEngine(const std::string& name) {
  static std::mutex lock;
  static std::map<std::string, const tvmstack_engine*> known;
  std::lock_guard<std::mutex> guard(lock);
  if (!IsPlain(name)) throw SetupError("no engine can be called '" + name + "'");
  if (known.count(name)) return known[name];
  const std::string file = "libtvmstack_engine_" + name + ".so";
  std::string looked;
  for (const std::string& folder : EngineFolders()) {
    const std::vector<std::string> found = FilesWithPrefix(folder, file);
    if (!found.empty()) return known[name] = FromFile(found.front());
    looked += (looked.empty() ? "" : ", ") + folder;
  }
  if (name == "onnxruntime") return known[name] = OnnxruntimeEngine();
  if (name == "openvino") return known[name] = OpenvinoEngine();
  throw SetupError("there is no engine '" + name + "': no " + file + " in " + looked +
                   "; $TVMSTACK_ENGINES may name more folders");
}

OpenRegion::OpenRegion(const Region& region, const uint8_t* blob, int threads, const std::string& model_folder)
    : region_(region), engine_(nullptr) {
  const std::string who = "region " + region.digest + " (" + region.engine + "): ";
  const std::string own = OwnFolder();
  char words[kWords] = "";
  tvmstack_engine_open_args args = {};
  args.struct_size = sizeof args;
  args.blob = blob, args.blob_size = region.span.size;
  args.row = region.row.c_str(), args.threads = threads;
  args.model_folder = model_folder.c_str(), args.engine_folder = own.c_str();
  try {
    engine_ = FindEngine(region.engine);
  } catch (const Failure& failure) {
    throw SetupError(who + failure.what());
  }
  if (engine_->open(&args, &handle_, words, sizeof words) != 0) throw SetupError(who + words);
}

OpenRegion::~OpenRegion() { engine_->close(handle_); }

std::vector<ffi::Tensor> OpenRegion::Run(const std::vector<const DLTensor*>& inputs) const {
  char words[kWords] = "";
  Outputs outputs{&region_, {}, {}};
  outputs.tensors.resize(region_.outputs.size());
  const auto count = static_cast<int32_t>(inputs.size()), results = static_cast<int32_t>(region_.outputs.size());
  const bool failed = engine_->run(handle_, inputs.data(), count, results, Outputs::Allocate, &outputs, words, kWords);
  if (failed) throw BackendError(region_.engine + " failed in region " + region_.digest + ": " + words);
  std::vector<ffi::Tensor> tensors;
  for (const auto& tensor : outputs.tensors) {
    if (!tensor.has_value()) throw BackendError(region_.engine + " left out an output of region " + region_.digest);
    tensors.push_back(*tensor);
  }
  return tensors;
}

EngineRow::EngineRow(const char* text) {
  const Json row = Json::Parse(text);
  digest = row.At("digest").Text();
  inputs = SpecsFrom(row.At("inputs"));
  outputs = SpecsFrom(row.At("outputs"));
  target = row.TextOr("target", "");
  if (row.Has("options")) options = row.At("options").Fields();
  if (row.Has("versions")) versions_ = row.At("versions").Fields();
  auto names = [&](const char* key, const std::vector<TensorSpec>& specs) {
    std::vector<std::string> found;
    if (row.Has(key))
      for (const Json& name : row.At(key).Items()) found.push_back(name.Text());
    else
      for (const TensorSpec& spec : specs) found.push_back(spec.name);
    if (found.size() != specs.size()) throw JsonError(std::string("'") + key + "' has another count than the region");
    return found;
  };
  input_names = names("engine_inputs", inputs);
  output_names = names("engine_outputs", outputs);
}

std::string EngineRow::Version(const std::string& package) const {
  for (const auto& [name, version] : versions_)
    if (name == package) return version;
  return "";
}

std::vector<int> VersionNumbers(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, '.') && !part.empty() && std::isdigit((unsigned char)part[0]);)
    numbers.push_back(std::atoi(part.c_str()));
  return numbers;
}

}  // namespace tvmstack
