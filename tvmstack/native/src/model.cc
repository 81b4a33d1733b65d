#include "model.h"

#include <tvm/ffi/container/array.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "check.h"
#include "error.h"
#include "tensor.h"

namespace tvmstack {

namespace ffi = tvm::ffi;

namespace {

constexpr char kPrefix[] = "tvmstack.region.";

ffi::ShapeView ShapeOf(const std::vector<int64_t>& shape) { return {shape.data(), shape.size()}; }

// Answers the virtual machine's look-up of regions. Imported by the model's module, so that nothing is registered for
// the whole process and two models cannot get at each other's regions.
class RegionModule : public ffi::ModuleObj {
 public:
  explicit RegionModule(const std::vector<Region>& regions) {
    for (size_t i = 0; i < regions.size(); ++i) places_[kPrefix + regions[i].digest] = i;
  }

  const char* kind() const final { return "tvmstack.regions"; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = places_.find(std::string(name));
    if (found == places_.end()) return std::nullopt;
    const size_t place = found->second;
    return ffi::Function::FromPacked(
        [place](const ffi::AnyView* args, int32_t count, ffi::Any* result) { Call(place, args, count, result); });
  }

 private:
  static void Call(size_t place, const ffi::AnyView* args, int32_t count, ffi::Any* result) {
    const OpenRegions* regions = ActiveRegions();
    if (regions == nullptr) TVM_FFI_THROW(RuntimeError) << "a region was called outside a session";
    std::vector<DLTensor> tensors(static_cast<size_t>(count));
    std::vector<const DLTensor*> inputs;
    for (int32_t i = 0; i < count; ++i) {
      DLTensor& tensor = tensors[static_cast<size_t>(i)] = *args[i].cast<DLTensor*>();
      tensor.data = DataOf(tensor);
      tensor.byte_offset = 0, tensor.strides = nullptr;
      inputs.push_back(&tensor);
    }
    std::vector<ffi::Tensor> outputs;
    try {
      outputs = (*regions)[place]->Run(inputs);
    } catch (const std::exception& failure) {
      TVM_FFI_THROW(RuntimeError) << failure.what();
    }
    if (outputs.size() == 1)
      *result = outputs[0];
    else
      *result = ffi::Array<ffi::Tensor>(outputs.begin(), outputs.end());
  }

  std::map<std::string, size_t> places_;
};

// A name that the loader has not seen yet, for the very file that was checked: it remembers libraries by name, and one
// replaced since would give the old code. Gone when the block ends.
class Alias {
 public:
  explicit Alias(const File& file) {
    char real[PATH_MAX];
    path_ = realpath(file.path().c_str(), real) ? real : file.path();
    const std::string open_file = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file.descriptor());
    const std::string target = access(open_file.c_str(), R_OK) == 0 ? open_file : path_;
    const char* named = std::getenv("TMPDIR");
    for (const std::string& root : {std::string(named ? named : "/tmp"), std::string("/tmp"), std::string("/dev/shm")}) {
      std::string folder = root + "/tvmstack-load-XXXXXX";
      if (mkdtemp(&folder[0]) == nullptr) continue;
      folder_ = folder;
      const std::string link = folder + "/model.so";
      if (symlink(target.c_str(), link.c_str()) == 0) path_ = link_ = link;
      return;
    }
  }
  ~Alias() {
    if (!link_.empty()) unlink(link_.c_str());
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  Alias(const Alias&) = delete;
  Alias& operator=(const Alias&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string folder_, link_, path_;
};

Manifest Checked(const File& file, bool digests) {
  Manifest manifest = ReadManifest(file);
  Require(file, manifest, digests);
  return manifest;
}

}  // namespace

const OpenRegions*& ActiveRegions() {
  static thread_local const OpenRegions* active = nullptr;
  return active;
}

Model::Model(const std::string& path, bool digests)
    : file_(path), manifest_(Checked(file_, digests)), module_(Load()) {
  uint8_t* weights = file_.Map() + manifest_.sections.at(kWeights).offset;
  for (const Weight& weight : manifest_.weights)
    weights_.push_back(ViewOf(weights + weight.span.offset, ShapeOf(weight.shape), weight.dtype));
  if (!manifest_.regions.empty())
    module_->ImportModule(ffi::Module(ffi::make_object<RegionModule>(manifest_.regions)));
}

ffi::Module Model::Load() const {
  const Alias alias(file_);
  try {
    return ffi::Module::LoadFromFile(alias.path());
  } catch (const ffi::Error& error) {
    throw ArtifactError(path() + " cannot be loaded: " + LastLine(error.message()));
  }
}

ffi::Module Model::NewMachine() {
  constexpr int kPooled = 2;
  std::lock_guard<std::mutex> guard(lock_);
  auto load = module_->GetFunction("vm_load_executable");
  if (!load.has_value()) throw ArtifactError(path() + " cannot be loaded: it holds no program for TVM's machine");
  ffi::Module machine = (*load)().cast<ffi::Module>();
  (*machine->GetFunction("vm_initialization"))(static_cast<int>(kDLCPU), 0, kPooled);
  return machine;
}

std::shared_ptr<const OpenRegions> Model::RegionsFor(int threads) {
  std::lock_guard<std::mutex> guard(lock_);
  std::shared_ptr<const OpenRegions> held = regions_[threads].lock();
  if (held) return held;
  auto opened = std::make_shared<OpenRegions>();
  const uint64_t start = manifest_.sections.at(kRegions).offset;
  for (const Region& region : manifest_.regions) {
    const uint8_t* blob = file_.Map() + start + region.span.offset;
    try {
      opened->push_back(std::make_unique<OpenRegion>(region, blob, threads, file_.folder()));
    } catch (const Failure& failure) {
      throw Failure(failure.status, path() + " cannot be run: " + failure.what());
    }
  }
  regions_[threads] = opened;
  return opened;
}

}  // namespace tvmstack
