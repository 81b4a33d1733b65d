// tvmstack.h for C++17: handles that close themselves, errors as exceptions. Thread rules: see tvmstack.h.
#pragma once
#include <tvmstack.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tvmstack {

// A call that failed; `what()` is one sentence, `status` says who must act.
class Error : public std::runtime_error {
 public:
  Error(tvmstack_status status, const char* text) : std::runtime_error(text), status(status) {}
  const tvmstack_status status;
};

inline void Check(tvmstack_status status) {
  if (status != TVMSTACK_OK) throw Error(status, tvmstack_error());
}

class Model {
 public:
  explicit Model(const std::string& path, uint32_t flags = TVMSTACK_DEFAULT) {
    tvmstack_model* model = nullptr;
    Check(tvmstack_model_open(path.c_str(), flags, &model));
    handle_.reset(model);
  }

  std::vector<tvmstack_tensor_info> Inputs() const { return Infos(tvmstack_model_num_inputs, tvmstack_model_input); }
  std::vector<tvmstack_tensor_info> Outputs() const { return Infos(tvmstack_model_num_outputs, tvmstack_model_output); }
  std::string Manifest() const { return tvmstack_model_manifest(handle_.get()); }
  tvmstack_model* Handle() const { return handle_.get(); }

 private:
  struct Close {
    void operator()(tvmstack_model* model) const { tvmstack_model_close(model); }
  };

  template <typename Count, typename Get>
  std::vector<tvmstack_tensor_info> Infos(Count count, Get get) const {
    std::vector<tvmstack_tensor_info> infos(static_cast<size_t>(count(handle_.get())));
    for (size_t i = 0; i < infos.size(); ++i) Check(get(handle_.get(), static_cast<int32_t>(i), &infos[i]));
    return infos;
  }

  std::unique_ptr<tvmstack_model, Close> handle_;
};

// For one thread at a time.
class Session {
 public:
  explicit Session(const Model& model, int32_t threads = 0) {
    tvmstack_session* session = nullptr;
    Check(tvmstack_session_open(model.Handle(), threads, &session));
    handle_.reset(session);
  }

  int32_t Threads() const { return tvmstack_session_threads(handle_.get()); }

  void Run(const std::vector<const DLTensor*>& inputs) {
    Check(tvmstack_run(handle_.get(), inputs.data(), static_cast<int32_t>(inputs.size())));
  }

  // Valid until the next run.
  const DLTensor& Output(int32_t index) const {
    const DLTensor* view = nullptr;
    Check(tvmstack_output(handle_.get(), index, &view));
    return *view;
  }

 private:
  struct Close {
    void operator()(tvmstack_session* session) const { tvmstack_session_close(session); }
  };

  std::unique_ptr<tvmstack_session, Close> handle_;
};

}  // namespace tvmstack
