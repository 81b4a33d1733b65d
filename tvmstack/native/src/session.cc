#include "session.h"

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "error.h"
#include "tensor.h"

// In libtvm_runtime; its header is not in the wheel.
namespace tvm::runtime::threading {
void SetMaxConcurrency(int value);
}

namespace tvmstack {

namespace ffi = tvm::ffi;

namespace {

// TVM's workers share the cores of the process instead of being tied to one each; asked for before any pool exists.
__attribute__((constructor)) void LeaveThreadsUnbound() { setenv("TVM_BIND_THREADS", "0", 0); }

int ThreadCount(int asked, int64_t built) {
  if (asked < 0) throw UsageError("threads must be a whole number from 1 on, or 0, not " + std::to_string(asked));
  if (asked > 0) return asked;
  const char* text = std::getenv("TVM_NUM_THREADS");
  if (text == nullptr || text[0] == '\0')
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(built, PhysicalCores())));
  const std::string digits = text;
  const bool number = digits.find_first_not_of("0123456789") == std::string::npos && digits.size() < 7;
  if (!number || std::atoi(text) < 1)
    throw UsageError("TVM_NUM_THREADS must be a whole number from 1 on, not '" + digits + "'");
  return std::atoi(text);
}

// Say how many threads the calling thread's kernels use; more than one holds from its first kernel on.
void UseThreads(int threads) {
  static thread_local int last = 0;
  if (last != threads) tvm::runtime::threading::SetMaxConcurrency(threads);
  last = threads;
}

ffi::Function MainOf(const ffi::Module& machine, const std::string& path) {
  auto function = machine->GetFunction("main");
  if (!function.has_value()) throw ArtifactError(path + " cannot be loaded: it has no function main");
  return *function;
}

bool Fits(const DLTensor& input, const TensorSpec& spec) {
  if (input.ndim != static_cast<int32_t>(spec.shape.size())) return false;
  for (size_t i = 0; i < spec.shape.size(); ++i)
    if (spec.shape[i] >= 0 ? input.shape[i] != spec.shape[i] : input.shape[i] < 0) return false;
  return true;
}

void RequireInput(const DLTensor* input, const TensorSpec& spec) {
  const std::string name = "input '" + spec.name + "'";
  if (input == nullptr) throw UsageError(name + " is NULL");
  if (input->device.device_type != kDLCPU && input->device.device_type != kDLCUDAHost)
    throw UsageError(name + " must be in CPU memory");
  if (!Same(input->dtype, spec.dtype) || !Fits(*input, spec))
    throw UsageError(name + " must be " + spec.Text() + ", got " + DtypeName(input->dtype) + " " +
                     ShapeText(input->shape, input->ndim));
  if (input->data == nullptr && ffi::GetDataSize(*input)) throw UsageError(name + " has no memory");
}

bool Overlap(const DLTensor& a, const DLTensor& b) {
  const uint8_t *from = DataOf(a), *other = DataOf(b);
  return from < other + ffi::GetDataSize(b) && other < from + ffi::GetDataSize(a);
}

}  // namespace

// Refuses a second thread while one is inside.
class Session::Busy {
 public:
  explicit Busy(std::atomic<bool>* flag) : flag_(flag) {
    if (flag->exchange(true, std::memory_order_acquire))
      throw UsageError("the session is running in another thread: open one session for each thread");
  }
  ~Busy() { flag_->store(false, std::memory_order_release); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<bool>* flag_;
};

Session::Session(std::shared_ptr<Model> model, int threads)
    : model_(std::move(model)),
      threads_(ThreadCount(threads, model_->manifest().threads)),
      regions_(model_->RegionsFor(threads_)),
      machine_(model_->NewMachine()),
      main_(MainOf(machine_, model_->path())),
      arguments_(model_->manifest().inputs.size()),
      staged_(model_->manifest().inputs.size()) {
  for (const ffi::Tensor& weight : model_->weights()) arguments_.emplace_back(weight);
}

void Session::RequireCount(const char* what, int32_t given, size_t wanted) const {
  if (given < 0 || static_cast<size_t>(given) != wanted)
    throw UsageError("the model has " + std::to_string(wanted) + " " + what + ", got " + std::to_string(given));
}

// Put an input among the arguments: as it is, or a copy that kernels can read.
void Session::Take(size_t index, const DLTensor& input) {
  const ffi::ShapeView shape(input.shape, static_cast<size_t>(input.ndim));
  if (IsInPlace(input)) {
    arguments_[index] = ViewOf(DataOf(input), shape, input.dtype);
    return;
  }
  auto& copy = staged_[index];
  const bool fits = copy.has_value() && std::equal(shape.begin(), shape.end(), (*copy).shape().begin(), (*copy).shape().end());
  if (!fits) copy = NewTensor(shape, input.dtype);
  CopyInto(input, *(*copy).GetDLTensorPtr());
  arguments_[index] = *copy;
}

void Session::Run(const DLTensor* const* inputs, int32_t count) {
  const Busy guard(&busy_);
  RunBorrowed(inputs, count);
}

void Session::RunBorrowed(const DLTensor* const* inputs, int32_t count) {
  const std::vector<TensorSpec>& specs = model_->manifest().inputs;
  RequireCount("inputs", count, specs.size());
  for (size_t i = 0; i < specs.size(); ++i) RequireInput(inputs[i], specs[i]);
  outputs_.clear();
  for (size_t i = 0; i < specs.size(); ++i) Take(i, *inputs[i]);
  UseThreads(threads_);
  try {
    ffi::Any result;
    const std::vector<ffi::AnyView> views(arguments_.begin(), arguments_.end());
    Model::With(regions_.get(), [&] {
      main_.CallPacked(ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size())), &result);
    });
    Keep(result);
  } catch (const ffi::Error& error) {
    outputs_.clear();
    throw BackendError("running " + model_->path() + " failed: " + LastLine(error.message()));
  }
}

void Session::Keep(const ffi::Any& result) {
  if (auto tensor = result.as<ffi::Tensor>()) {
    outputs_.push_back(Own(*tensor));
  } else {
    for (const ffi::Any& item : result.cast<ffi::Array<ffi::Any>>()) outputs_.push_back(Own(item.cast<ffi::Tensor>()));
  }
  if (outputs_.size() != model_->manifest().outputs.size())
    throw BackendError("running " + model_->path() + " failed: it gave " + std::to_string(outputs_.size()) +
                       " outputs, not " + std::to_string(model_->manifest().outputs.size()));
}

// The output itself, or a copy where it is the memory of an input, which its owner may give back before the next run.
ffi::Tensor Session::Own(const ffi::Tensor& output) const {
  const DLTensor& view = *output.GetDLTensorPtr();
  const size_t inputs = model_->manifest().inputs.size();
  const bool borrowed = std::any_of(arguments_.begin(), arguments_.begin() + static_cast<std::ptrdiff_t>(inputs),
                                    [&](const ffi::Any& a) { return Overlap(*a.cast<ffi::Tensor>().GetDLTensorPtr(), view); });
  if (!borrowed && IsDense(view) && view.byte_offset == 0) return output;
  ffi::Tensor copy = NewTensor(ffi::ShapeView(view.shape, static_cast<size_t>(view.ndim)), view.dtype);
  CopyInto(view, *copy.GetDLTensorPtr());
  return copy;
}

const DLTensor* Session::Output(int32_t index) const {
  const size_t count = model_->manifest().outputs.size();
  if (index < 0 || static_cast<size_t>(index) >= count)
    throw UsageError("there is no output " + std::to_string(index) + ": the model has " + std::to_string(count));
  if (outputs_.empty()) throw UsageError("there are no outputs: the session has not run, or its last run failed");
  return outputs_[static_cast<size_t>(index)].GetDLTensorPtr();
}

void Session::RunBuffers(const tvmstack_buffer* inputs, int32_t count, tvmstack_buffer* outputs, int32_t num_outputs) {
  const Busy guard(&busy_);
  const std::vector<TensorSpec>& specs = model_->manifest().inputs;
  RequireCount("inputs", count, specs.size());
  RequireCount("outputs", num_outputs, model_->manifest().outputs.size());
  std::vector<DLTensor> tensors(specs.size());
  std::vector<const DLTensor*> borrowed;
  for (size_t i = 0; i < specs.size(); ++i) {
    const tvmstack_buffer& buffer = inputs[i];
    if (buffer.shape == nullptr && !specs[i].IsStatic())
      throw UsageError("input '" + specs[i].name + "' is " + specs[i].Text() + ": say its shape");
    const int64_t* shape = buffer.shape ? buffer.shape : specs[i].shape.data();
    const int32_t ndim = buffer.shape ? buffer.ndim : static_cast<int32_t>(specs[i].shape.size());
    tensors[i] = {buffer.data, {kDLCPU, 0}, ndim, specs[i].dtype, const_cast<int64_t*>(shape), nullptr, 0};
    RequireInput(&tensors[i], specs[i]);
    if (ffi::GetDataSize(tensors[i]) != buffer.bytes)
      throw UsageError("input '" + specs[i].name + "' of " + specs[i].Text() + " takes " +
                       std::to_string(ffi::GetDataSize(tensors[i])) + " bytes, got " + std::to_string(buffer.bytes));
    borrowed.push_back(&tensors[i]);
  }
  RunBorrowed(borrowed.data(), count);
  std::string small;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const size_t bytes = ffi::GetDataSize(*outputs_[i].GetDLTensorPtr());
    if (outputs[i].bytes < bytes || (bytes && outputs[i].data == nullptr))
      small += (small.empty() ? "" : "; ") + ("output '" + model_->manifest().outputs[i].name) + "' needs " +
               std::to_string(bytes) + " bytes, the buffer has " + std::to_string(outputs[i].bytes);
    outputs[i].bytes = bytes;
  }
  if (!small.empty()) throw UsageError(small);
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs[i].bytes) std::memcpy(outputs[i].data, DataOf(*outputs_[i].GetDLTensorPtr()), outputs[i].bytes);
}

}  // namespace tvmstack
