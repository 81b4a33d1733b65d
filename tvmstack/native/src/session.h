// One virtual machine of a model, for one thread at a time.
#pragma once
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <memory>
#include <vector>

#include "model.h"

namespace tvmstack {

class Session {
 public:
  // `threads`: 0 for the default; see tvmstack.h.
  Session(std::shared_ptr<Model> model, int threads);

  int threads() const { return threads_; }
  // Throws a usage error that says what is wrong with the inputs, or a backend error.
  void Run(const DLTensor* const* inputs, int32_t count);
  void RunBuffers(const tvmstack_buffer* inputs, int32_t count, tvmstack_buffer* outputs, int32_t num_outputs);
  const DLTensor* Output(int32_t index) const;

 private:
  class Busy;

  void RunBorrowed(const DLTensor* const* inputs, int32_t count);
  void RequireCount(const char* what, int32_t given, size_t wanted) const;
  void Take(size_t index, const DLTensor& input);
  void Keep(const tvm::ffi::Any& result);
  tvm::ffi::Tensor Own(const tvm::ffi::Tensor& output) const;

  const std::shared_ptr<Model> model_;
  const int threads_;
  const std::shared_ptr<const OpenRegions> regions_;
  const tvm::ffi::Module machine_;
  const tvm::ffi::Function main_;
  std::vector<tvm::ffi::Any> arguments_;         // the inputs, then the weights
  std::vector<tvm::ffi::Optional<tvm::ffi::Tensor>> staged_;  // copies of inputs that are not in place
  std::vector<tvm::ffi::Tensor> outputs_;
  std::atomic<bool> busy_{false};
};

}  // namespace tvmstack
