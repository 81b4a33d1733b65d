// The built-in engine "openvino": a region is what OpenVINO's export_model wrote, imported from memory.
//
// Of OpenVINO's public C interface only the functions used here are declared. Element types are taken from the model's
// own ports and passed on, so that the numbering, which changed between versions, doesn't matter.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "engine.h"
#include "library.h"
#include "tensor.h"

namespace tvmstack {

namespace {

struct ov_core_t;
struct ov_compiled_model_t;
struct ov_infer_request_t;
struct ov_output_const_port_t;
struct ov_tensor_t;
struct ov_shape_t {
  int64_t rank;
  int64_t* dims;
};
struct ov_version_t {
  const char* build;
  const char* description;
};
using ov_status = int;
using ov_type = int;

struct Api {
  explicit Api(const std::vector<std::string>& folders)
      : library(Library::Find("TVMSTACK_OPENVINO_LIBRARY", "libopenvino_c.so", folders, {"libopenvino_c.so"})) {
    library.Get("ov_get_openvino_version", &get_version);
    library.Get("ov_version_free", &version_free);
    library.Get("ov_get_error_info", &error_info);
    last_words = reinterpret_cast<const char* (*)()>(library.SymbolOrNull("ov_get_last_err_msg"));
    library.Get("ov_core_create", &core_create);
    library.Get("ov_core_free", &core_free);
    library.Get("ov_core_set_property", &set_property);
    library.Get("ov_core_import_model", &import_model);
    library.Get("ov_compiled_model_free", &model_free);
    library.Get("ov_compiled_model_inputs_size", &inputs_size);
    library.Get("ov_compiled_model_outputs_size", &outputs_size);
    library.Get("ov_compiled_model_input_by_name", &input_by_name);
    library.Get("ov_compiled_model_output_by_name", &output_by_name);
    library.Get("ov_port_get_element_type", &element_type);
    library.Get("ov_const_port_get_shape", &port_shape);
    library.Get("ov_output_const_port_free", &port_free);
    library.Get("ov_compiled_model_create_infer_request", &create_request);
    library.Get("ov_infer_request_free", &request_free);
    library.Get("ov_infer_request_set_tensor", &set_tensor);
    library.Get("ov_infer_request_get_tensor", &get_tensor);
    library.Get("ov_infer_request_infer", &infer);
    library.Get("ov_tensor_create_from_host_ptr", &tensor_on);
    library.Get("ov_tensor_get_shape", &tensor_shape);
    library.Get("ov_tensor_get_byte_size", &tensor_bytes);
    library.Get("ov_tensor_data", &tensor_data);
    library.Get("ov_tensor_free", &tensor_free);
    library.Get("ov_shape_free", &shape_free);
    ov_version_t found = {};
    Check(get_version(&found));
    // "2026.1.0-12345-abcdef" is build 12345 of 2026.1.0
    version = std::string(found.build);
    version = version.substr(0, version.find('-'));
    version_free(&found);
  }

  void Check(ov_status status) const {
    if (status == 0) return;
    const char* words = last_words ? last_words() : nullptr;
    // OpenVINO puts "Exception from FILE:LINE:" before each level of its message; the last line is the cause.
    const std::string cause = words && words[0] ? LastLine(words) : error_info(status);
    throw SetupError(cause);
  }

  Library library;
  std::string version;
  ov_status (*get_version)(ov_version_t*);
  void (*version_free)(ov_version_t*);
  const char* (*error_info)(ov_status);
  const char* (*last_words)();
  ov_status (*core_create)(ov_core_t**);
  void (*core_free)(ov_core_t*);
  ov_status (*set_property)(const ov_core_t*, const char* device, ...);
  ov_status (*import_model)(const ov_core_t*, const char*, size_t, const char* device, ov_compiled_model_t**);
  void (*model_free)(ov_compiled_model_t*);
  ov_status (*inputs_size)(const ov_compiled_model_t*, size_t*);
  ov_status (*outputs_size)(const ov_compiled_model_t*, size_t*);
  ov_status (*input_by_name)(const ov_compiled_model_t*, const char*, ov_output_const_port_t**);
  ov_status (*output_by_name)(const ov_compiled_model_t*, const char*, ov_output_const_port_t**);
  ov_status (*element_type)(const ov_output_const_port_t*, ov_type*);
  ov_status (*port_shape)(const ov_output_const_port_t*, ov_shape_t*);
  void (*port_free)(ov_output_const_port_t*);
  ov_status (*create_request)(const ov_compiled_model_t*, ov_infer_request_t**);
  void (*request_free)(ov_infer_request_t*);
  ov_status (*set_tensor)(ov_infer_request_t*, const char*, const ov_tensor_t*);
  ov_status (*get_tensor)(const ov_infer_request_t*, const char*, ov_tensor_t**);
  ov_status (*infer)(ov_infer_request_t*);
  ov_status (*tensor_on)(ov_type, ov_shape_t, void*, ov_tensor_t**);
  ov_status (*tensor_shape)(const ov_tensor_t*, ov_shape_t*);
  ov_status (*tensor_bytes)(const ov_tensor_t*, size_t*);
  ov_status (*tensor_data)(const ov_tensor_t*, void**);
  void (*tensor_free)(ov_tensor_t*);
  void (*shape_free)(ov_shape_t*);
};

// The library of the process; it stays as long as the process does.
const Api& TheApi(const std::vector<std::string>& folders) {
  static std::mutex lock;
  static const Api* api = nullptr;
  std::lock_guard<std::mutex> guard(lock);
  if (api == nullptr) api = new Api(folders);
  return *api;
}

// Something of OpenVINO's that is given back at the end.
template <typename Thing>
using Held = std::unique_ptr<Thing, void (*)(Thing*)>;

// "cpu" of a row is OpenVINO's "CPU"; "gpu", "npu", "auto" likewise.
std::string DeviceOf(const std::string& target) {
  std::string device = target.empty() ? "cpu" : target;
  for (char& c : device) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return device;
}

bool IsProperty(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isupper(c) || std::isdigit(c) || c == '_';
  });
}

class OpenvinoRegion {
 public:
  explicit OpenvinoRegion(const tvmstack_engine_open_args& args)
      : row_(args.row), api_(TheApi({args.engine_folder, args.model_folder})), core_(nullptr, api_.core_free),
        model_(nullptr, api_.model_free) {
    RequireVersion();
    ov_core_t* core = nullptr;
    api_.Check(api_.core_create(&core));
    core_.reset(core);
    const std::string device = DeviceOf(row_.target);
    Configure(device, args.threads);
    ov_compiled_model_t* model = nullptr;
    try {
      api_.Check(api_.import_model(core, static_cast<const char*>(args.blob), args.blob_size, device.c_str(), &model));
    } catch (const Failure& failure) {
      throw SetupError("OpenVINO " + api_.version + " cannot import it for " + device + ": " + failure.what());
    }
    model_.reset(model);
    RequirePorts(api_.inputs_size, api_.input_by_name, row_.inputs, row_.input_names, "input", &input_types_);
    RequirePorts(api_.outputs_size, api_.output_by_name, row_.outputs, row_.output_names, "output", &output_types_);
    idle_.push_back(NewRequest());
  }

  void Run(const DLTensor* const* inputs, size_t count, tvmstack_engine_alloc alloc, void* context) {
    if (count != row_.inputs.size()) throw SetupError("it takes another number of inputs");
    Held<ov_infer_request_t> request = Take();
    for (size_t i = 0; i < count; ++i) Feed(request.get(), i, *inputs[i]);
    api_.Check(api_.infer(request.get()));
    for (size_t i = 0; i < row_.outputs.size(); ++i) CopyOut(request.get(), i, alloc, context);
    std::lock_guard<std::mutex> guard(lock_);
    idle_.push_back(std::move(request));
  }

 private:
  // A compiled blob is read by the very version that wrote it, by no other.
  void RequireVersion() const {
    const std::string wanted = row_.Version("openvino");
    if (!wanted.empty() && VersionNumbers(wanted) != VersionNumbers(api_.version))
      throw SetupError("it was compiled by OpenVINO " + wanted + ", found is " + api_.version + " at " +
                       api_.library.path() + ". Install openvino==" + wanted + " or build the model again");
  }

  void Configure(const std::string& device, int threads) const {
    if (device == "CPU") {
      const std::string count = std::to_string(threads);
      api_.Check(api_.set_property(core_.get(), "CPU", "INFERENCE_NUM_THREADS", count.c_str()));
      api_.Check(api_.set_property(core_.get(), "CPU", "NUM_STREAMS", "1"));
      // A blob does not keep it, and on some CPUs it is half by default.
      api_.Check(api_.set_property(core_.get(), "CPU", "INFERENCE_PRECISION_HINT", "f32"));
      // Pinned workers would share their cores with TVM's.
      api_.Check(api_.set_property(core_.get(), "CPU", "ENABLE_CPU_PINNING", "NO"));
    }
    // A back end's own options beside OpenVINO's properties, which are the names in capitals, are not for the runtime.
    for (const auto& [name, value] : row_.options)
      if (IsProperty(name)) api_.Check(api_.set_property(core_.get(), device.c_str(), name.c_str(), value.c_str()));
  }

  template <typename Size, typename ByName>
  void RequirePorts(Size size, ByName by_name, const std::vector<TensorSpec>& specs,
                    const std::vector<std::string>& names, const char* what, std::vector<ov_type>* types) const {
    size_t count = 0;
    api_.Check(size(model_.get(), &count));
    const std::string other = "its bytes are of another model: ";
    if (count != names.size())
      throw SetupError(other + "that has " + std::to_string(count) + " " + what + "s, not " +
                       std::to_string(names.size()));
    for (size_t i = 0; i < names.size(); ++i) {
      ov_output_const_port_t* port = nullptr;
      if (by_name(model_.get(), names[i].c_str(), &port) != 0)
        throw SetupError(other + "that has no " + what + " '" + names[i] + "'");
      Held<ov_output_const_port_t> held(port, api_.port_free);
      ov_type type = 0;
      api_.Check(api_.element_type(port, &type));
      types->push_back(type);
      ov_shape_t shape = {};
      if (api_.port_shape(port, &shape) != 0) continue;  // dynamic
      const std::vector<int64_t> dims(shape.dims, shape.dims + shape.rank);
      api_.shape_free(&shape);
      if (specs[i].IsStatic() && dims != specs[i].shape)
        throw SetupError(other + what + " '" + names[i] + "' has shape " +
                         ShapeText(dims.data(), static_cast<int32_t>(dims.size())) + ", not " + specs[i].Text());
    }
  }

  Held<ov_infer_request_t> NewRequest() const {
    ov_infer_request_t* request = nullptr;
    api_.Check(api_.create_request(model_.get(), &request));
    return {request, api_.request_free};
  }

  Held<ov_infer_request_t> Take() {
    std::lock_guard<std::mutex> guard(lock_);
    if (idle_.empty()) return NewRequest();
    Held<ov_infer_request_t> request = std::move(idle_.back());
    idle_.pop_back();
    return request;
  }

  void Feed(ov_infer_request_t* request, size_t index, const DLTensor& input) const {
    ov_tensor_t* tensor = nullptr;
    api_.Check(api_.tensor_on(input_types_[index], {input.ndim, input.shape}, DataOf(input), &tensor));
    Held<ov_tensor_t> held(tensor, api_.tensor_free);
    RequireBytes(tensor, tvm::ffi::GetDataSize(input), row_.input_names[index]);
    api_.Check(api_.set_tensor(request, row_.input_names[index].c_str(), tensor));
  }

  void CopyOut(ov_infer_request_t* request, size_t index, tvmstack_engine_alloc alloc, void* context) const {
    ov_tensor_t* tensor = nullptr;
    api_.Check(api_.get_tensor(request, row_.output_names[index].c_str(), &tensor));
    Held<ov_tensor_t> held(tensor, api_.tensor_free);
    ov_shape_t shape = {};
    api_.Check(api_.tensor_shape(tensor, &shape));
    const std::vector<int64_t> dims(shape.dims, shape.dims + shape.rank);
    api_.shape_free(&shape);
    size_t bytes = row_.outputs[index].dtype.bits / 8;
    for (int64_t dim : dims) bytes *= static_cast<size_t>(dim);
    RequireBytes(tensor, bytes, row_.output_names[index]);
    void* from = nullptr;
    api_.Check(api_.tensor_data(tensor, &from));
    void* to = alloc(context, static_cast<int32_t>(index), dims.data(), static_cast<int32_t>(dims.size()));
    if (to == nullptr) throw std::bad_alloc();
    if (bytes) std::memcpy(to, from, bytes);
  }

  void RequireBytes(const ov_tensor_t* tensor, size_t wanted, const std::string& name) const {
    size_t bytes = 0;
    api_.Check(api_.tensor_bytes(tensor, &bytes));
    if (bytes != wanted) throw SetupError("'" + name + "' has another dtype in the compiled blob than in the model");
  }

  EngineRow row_;
  const Api& api_;
  Held<ov_core_t> core_;
  Held<ov_compiled_model_t> model_;
  std::vector<ov_type> input_types_, output_types_;
  std::mutex lock_;
  std::vector<Held<ov_infer_request_t>> idle_;
};

int32_t Version(const char* folder, char* text, size_t size, char* error, size_t error_size) {
  return Guarded(error, error_size, [&] { Tell(TheApi({folder}).version, text, size); });
}

}  // namespace

const tvmstack_engine* OpenvinoEngine() {
  using Of = EngineOf<OpenvinoRegion>;
  static const tvmstack_engine engine = {TVMSTACK_ENGINE_ABI, "openvino", Version, Of::Open, Of::Run, Of::Close};
  return &engine;
}

}  // namespace tvmstack
