// A loaded artifact: checked, mapped, its code opened. Shared by its sessions.
#pragma once
#include <tvm/ffi/extra/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine.h"
#include "file.h"
#include "manifest.h"

namespace tvmstack {

// The regions of a model, opened for one thread count.
using OpenRegions = std::vector<std::unique_ptr<OpenRegion>>;

class Model {
 public:
  Model(const std::string& path, bool digests);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return file_.path(); }
  const std::vector<tvm::ffi::Tensor>& weights() const { return weights_; }

  // A virtual machine of its own. One after another: TVM's first look-up of constants is not locked.
  tvm::ffi::Module NewMachine();
  // Sessions of one thread count share them.
  std::shared_ptr<const OpenRegions> RegionsFor(int threads);

  // Run `work` while region calls of this thread go to `regions`.
  template <typename Work>
  static void With(const OpenRegions* regions, Work work);

 private:
  tvm::ffi::Module Load() const;

  File file_;
  Manifest manifest_;
  std::vector<tvm::ffi::Tensor> weights_;
  tvm::ffi::Module module_;
  std::mutex lock_;
  std::map<int, std::weak_ptr<const OpenRegions>> regions_;
};

// What the calling thread runs at the moment.
const OpenRegions*& ActiveRegions();

template <typename Work>
void Model::With(const OpenRegions* regions, Work work) {
  struct Restore {
    const OpenRegions* before = ActiveRegions();
    ~Restore() { ActiveRegions() = before; }
  } restore;
  ActiveRegions() = regions;
  work();
}

}  // namespace tvmstack
