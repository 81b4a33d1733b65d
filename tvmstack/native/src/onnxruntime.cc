// The built-in engine "onnxruntime": a region is an ONNX model.
//
// onnxruntime's C interface is one table of function pointers, OrtApi, that OrtGetApiBase hands out. Its order is part
// of the documented ABI: functions are only ever appended, and the table of an older version stays available. We ask
// for version 5 and name only the places that we use, so that no header of onnxruntime is needed.
#include <cstring>
#include <memory>
#include <mutex>

#include "engine.h"
#include "library.h"
#include "sha256.h"
#include "tensor.h"

namespace tvmstack {

namespace {

struct OrtEnv;
struct OrtStatus;
struct OrtSession;
struct OrtSessionOptions;
struct OrtMemoryInfo;
struct OrtValue;
struct OrtShape;
struct OrtAllocator {
  uint32_t version;
  void* (*alloc)(OrtAllocator*, size_t);
  void (*free)(OrtAllocator*, void*);
};

struct OrtApiBase {
  const void* const* (*get_api)(uint32_t version);
  const char* (*get_version)();
};

constexpr uint32_t kApiVersion = 5;
constexpr int kWarningsOff = 3, kArenaAllocator = 1, kDefaultMemory = 0;

// Places in OrtApi.
enum Place {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSessionFromArray = 8,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetLogSeverity = 22,
  kSetIntraThreads = 24,
  kInputCount = 30,
  kOutputCount = 31,
  kInputName = 36,
  kOutputName = 37,
  kCreateTensorWithData = 49,
  kGetTensorData = 51,
  kGetElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorShape = 65,
  kCreateCpuMemoryInfo = 69,
  kDefaultAllocator = 78,
  kReleaseStatus = 93,
  kReleaseMemoryInfo = 94,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseShape = 99,
  kReleaseSessionOptions = 100,
  kAddConfigEntry = 130
};

// numpy's dtypes as ONNX numbers them (TensorProto.DataType).
int OnnxType(const std::string& dtype) {
  static const std::pair<const char*, int> types[] = {
      {"float32", 1}, {"uint8", 2},  {"int8", 3},     {"uint16", 4},  {"int16", 5},   {"int32", 6},    {"int64", 7},
      {"bool", 9},    {"float16", 10}, {"float64", 11}, {"uint32", 12}, {"uint64", 13}, {"bfloat16", 16}};
  for (const auto& [name, type] : types)
    if (dtype == name) return type;
  throw SetupError("onnxruntime has no tensors of " + dtype);
}

class Api {
 public:
  Api(const std::vector<std::string>& folders)
      : library_(Library::Find("TVMSTACK_ONNXRUNTIME_LIBRARY", "libonnxruntime.so", folders,
                               {"libonnxruntime.so.1", "libonnxruntime.so"})) {
    const OrtApiBase* (*base)();
    library_.Get("OrtGetApiBase", &base);
    version_ = base()->get_version();
    table_ = base()->get_api(kApiVersion);
    if (table_ == nullptr) throw SetupError("onnxruntime " + version_ + " at " + path() + " is too old");
    Call<int, const char*, OrtEnv**>(kCreateEnv, kWarningsOff, "tvmstack", &env_);
    Call<int, int, OrtMemoryInfo**>(kCreateCpuMemoryInfo, kArenaAllocator, kDefaultMemory, &memory_);
    Call<OrtAllocator**>(kDefaultAllocator, &allocator_);
  }

  // Call a function that may fail; its arguments' types are spelled as onnxruntime declares them.
  template <typename... Types>
  void Call(Place place, Types... arguments) const {
    auto function = reinterpret_cast<OrtStatus* (*)(Types...)>(const_cast<void*>(table_[place]));
    if (OrtStatus* status = function(arguments...)) {
      auto message = reinterpret_cast<const char* (*)(const OrtStatus*)>(const_cast<void*>(table_[kGetErrorMessage]));
      const std::string words = FirstLineOf(message(status));
      Release(kReleaseStatus, status);
      throw SetupError(words);
    }
  }

  template <typename Thing>
  void Release(Place place, Thing* thing) const {
    reinterpret_cast<void (*)(Thing*)>(const_cast<void*>(table_[place]))(thing);
  }

  const std::string& version() const { return version_; }
  const std::string& path() const { return library_.path(); }
  OrtEnv* env() const { return env_; }
  OrtMemoryInfo* memory() const { return memory_; }
  OrtAllocator* allocator() const { return allocator_; }

 private:
  Library library_;
  std::string version_;
  const void* const* table_ = nullptr;
  OrtEnv* env_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  OrtAllocator* allocator_ = nullptr;
};

// The library of the process; it stays, with its environment, as long as the process does.
const Api& TheApi(const std::vector<std::string>& folders) {
  static std::mutex lock;
  static const Api* api = nullptr;
  std::lock_guard<std::mutex> guard(lock);
  if (api == nullptr) api = new Api(folders);
  return *api;
}

class Values {
 public:
  Values(const Api& api, size_t count) : held(count, nullptr), api_(api) {}
  ~Values() {
    for (OrtValue* value : held)
      if (value) api_.Release(kReleaseValue, value);
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  void Wrap(size_t index, void* data, size_t bytes, const int64_t* shape, int32_t ndim, int type) {
    static int64_t nothing;  // onnxruntime wants an address even where there are no bytes
    api_.Call<const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, int, OrtValue**>(
        kCreateTensorWithData, api_.memory(), bytes ? data : &nothing, bytes, shape, static_cast<size_t>(ndim), type,
        &held[index]);
  }

  std::vector<OrtValue*> held;

 private:
  const Api& api_;
};

class OnnxRegion {
 public:
  OnnxRegion(const tvmstack_engine_open_args& args)
      : row_(args.row), api_(TheApi({args.engine_folder, args.model_folder})) {
    RequireVersion();
    RequireDigest(args);
    for (const TensorSpec& spec : row_.inputs) input_types_.push_back(OnnxType(spec.dtype_name));
    for (const TensorSpec& spec : row_.outputs) output_types_.push_back(OnnxType(spec.dtype_name));
    Open(args);
    RequireNames(kInputCount, kInputName, row_.input_names, "input");
    RequireNames(kOutputCount, kOutputName, row_.output_names, "output");
  }

  ~OnnxRegion() {
    if (session_) api_.Release(kReleaseSession, session_);
  }

  void Run(const DLTensor* const* inputs, size_t count, tvmstack_engine_alloc alloc, void* context) const {
    if (count != row_.inputs.size()) throw SetupError("it takes another number of inputs");
    Values feed(api_, count), results(api_, row_.outputs.size());
    for (size_t i = 0; i < count; ++i)
      feed.Wrap(i, DataOf(*inputs[i]), tvm::ffi::GetDataSize(*inputs[i]), inputs[i]->shape, inputs[i]->ndim,
                input_types_[i]);
    // Where the shape is known onnxruntime writes into the caller's memory.
    for (size_t i = 0; i < row_.outputs.size(); ++i)
      if (row_.outputs[i].IsStatic()) Prepare(i, alloc, context, &results);
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : row_.input_names) input_names.push_back(name.c_str());
    for (const std::string& name : row_.output_names) output_names.push_back(name.c_str());
    api_.Call<OrtSession*, const void*, const char* const*, const OrtValue* const*, size_t, const char* const*, size_t,
              OrtValue**>(kRun, session_, nullptr, input_names.data(), feed.held.data(), count, output_names.data(),
                          output_names.size(), results.held.data());
    for (size_t i = 0; i < row_.outputs.size(); ++i)
      if (!row_.outputs[i].IsStatic()) CopyOut(i, results.held[i], alloc, context);
  }

 private:
  // An ONNX model runs in the onnxruntime it was tried with and in later ones.
  void RequireVersion() const {
    const std::string wanted = row_.Version("onnxruntime");
    if (VersionNumbers(api_.version()) < VersionNumbers(wanted))
      throw SetupError("it was built with onnxruntime " + wanted + ", found is " + api_.version() + " at " +
                       api_.path() + ". Install onnxruntime " + wanted + " or later, or build the model again");
  }

  // A region is named by the first digits of its model's digest.
  void RequireDigest(const tvmstack_engine_open_args& args) const {
    constexpr size_t kNameDigits = 16;
    Sha256 state;
    state.Update(args.blob, args.blob_size);
    if (row_.digest.size() == kNameDigits && Hex(state.Digest()).substr(0, kNameDigits) != row_.digest)
      throw SetupError("its bytes are of another model (another digest). Copy or build the artifact again");
  }

  void Open(const tvmstack_engine_open_args& args) {
    OrtSessionOptions* options = nullptr;
    api_.Call<OrtSessionOptions**>(kCreateSessionOptions, &options);
    auto release = [this](OrtSessionOptions* held) { api_.Release(kReleaseSessionOptions, held); };
    std::unique_ptr<OrtSessionOptions, decltype(release)> held(options, release);
    api_.Call<OrtSessionOptions*, int>(kSetIntraThreads, options, args.threads);
    api_.Call<OrtSessionOptions*, int>(kSetLogSeverity, options, kWarningsOff);
    // Spinning threads would take the cores from TVM's kernels between two regions.
    api_.Call<OrtSessionOptions*, const char*, const char*>(kAddConfigEntry, options,
                                                            "session.intra_op.allow_spinning", "0");
    try {
      api_.Call<const OrtEnv*, const void*, size_t, const OrtSessionOptions*, OrtSession**>(
          kCreateSessionFromArray, api_.env(), args.blob, args.blob_size, options, &session_);
    } catch (const Failure& failure) {
      throw SetupError("onnxruntime " + api_.version() + " refuses it: " + failure.what());
    }
  }

  void RequireNames(Place counter, Place getter, const std::vector<std::string>& wanted, const char* what) const {
    size_t count = 0;
    api_.Call<const OrtSession*, size_t*>(counter, session_, &count);
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      api_.Call<const OrtSession*, size_t, OrtAllocator*, char**>(getter, session_, i, api_.allocator(), &name);
      names.push_back(name);
      api_.allocator()->free(api_.allocator(), name);
    }
    for (const std::string& name : wanted)
      if (std::find(names.begin(), names.end(), name) == names.end())
        throw SetupError(std::string("its bytes are of another model: that has no ") + what + " '" + name + "'");
  }

  void Prepare(size_t index, tvmstack_engine_alloc alloc, void* context, Values* results) const {
    const TensorSpec& spec = row_.outputs[index];
    const auto ndim = static_cast<int32_t>(spec.shape.size());
    void* data = alloc(context, static_cast<int32_t>(index), spec.shape.data(), ndim);
    if (data == nullptr) throw std::bad_alloc();
    size_t bytes = spec.dtype.bits / 8;
    for (int64_t dim : spec.shape) bytes *= static_cast<size_t>(dim);
    results->Wrap(index, data, bytes, spec.shape.data(), ndim, output_types_[index]);
  }

  void CopyOut(size_t index, OrtValue* value, tvmstack_engine_alloc alloc, void* context) const {
    OrtShape* facts = nullptr;
    api_.Call<const OrtValue*, OrtShape**>(kGetTensorShape, value, &facts);
    auto release = [this](OrtShape* held) { api_.Release(kReleaseShape, held); };
    std::unique_ptr<OrtShape, decltype(release)> held(facts, release);
    int type = 0;
    size_t ndim = 0;
    api_.Call<const OrtShape*, int*>(kGetElementType, facts, &type);
    api_.Call<const OrtShape*, size_t*>(kGetDimensionsCount, facts, &ndim);
    std::vector<int64_t> shape(ndim);
    api_.Call<const OrtShape*, int64_t*, size_t>(kGetDimensions, facts, shape.data(), ndim);
    if (type != output_types_[index]) throw SetupError("output '" + row_.output_names[index] + "' has another dtype");
    size_t bytes = row_.outputs[index].dtype.bits / 8;
    for (int64_t dim : shape) bytes *= static_cast<size_t>(dim);
    void* from = nullptr;
    api_.Call<OrtValue*, void**>(kGetTensorData, value, &from);
    void* to = alloc(context, static_cast<int32_t>(index), shape.data(), static_cast<int32_t>(ndim));
    if (to == nullptr) throw std::bad_alloc();
    if (bytes) std::memcpy(to, from, bytes);
  }

  EngineRow row_;
  const Api& api_;
  std::vector<int> input_types_, output_types_;
  OrtSession* session_ = nullptr;
};

int32_t Version(const char* folder, char* text, size_t size, char* error, size_t error_size) {
  return Guarded(error, error_size, [&] { Tell(TheApi({folder}).version(), text, size); });
}

}  // namespace

const tvmstack_engine* OnnxruntimeEngine() {
  using Of = EngineOf<OnnxRegion>;
  static const tvmstack_engine engine = {TVMSTACK_ENGINE_ABI, "onnxruntime", Version, Of::Open, Of::Run, Of::Close};
  return &engine;
}

}  // namespace tvmstack
