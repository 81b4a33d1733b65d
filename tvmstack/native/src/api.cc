// The C border: handles, error text, and no exception beyond this file.
#include <tvm/ffi/error.h>
#include <tvmstack.h>

#include <new>

#include "error.h"
#include "session.h"

struct tvmstack_model {
  std::shared_ptr<tvmstack::Model> model;
  std::vector<std::vector<const char*>> dim_names[2];  // of inputs and outputs
};

struct tvmstack_session {
  tvmstack::Session session;
};

namespace {

using tvmstack::TensorSpec;

std::string& LastError() {
  static thread_local std::string text;
  return text;
}

tvmstack_status Fail(tvmstack_status status, const char* text) noexcept {
  try {
    LastError() = text;
  } catch (...) {
    LastError().clear();  // no memory for the words; the status still says that it failed
  }
  return status;
}

template <typename Work>
tvmstack_status Guarded(Work work) noexcept {
  try {
    work();
    return TVMSTACK_OK;
  } catch (const tvmstack::Failure& failure) {
    return Fail(failure.status, failure.what());
  } catch (const tvm::ffi::Error& error) {
    return Fail(TVMSTACK_INTERNAL, error.what());
  } catch (const std::bad_alloc&) {
    return Fail(TVMSTACK_INTERNAL, "there is not enough memory");
  } catch (const std::exception& error) {
    return Fail(TVMSTACK_INTERNAL, error.what());
  } catch (...) {
    return Fail(TVMSTACK_INTERNAL, "an exception without words");
  }
}

void Require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw tvmstack::UsageError(std::string(name) + " is NULL");
}

std::vector<std::vector<const char*>> DimNames(const std::vector<TensorSpec>& specs) {
  std::vector<std::vector<const char*>> names;
  for (const TensorSpec& spec : specs) {
    names.emplace_back();
    for (const std::string& name : spec.dim_names) names.back().push_back(name.empty() ? nullptr : name.c_str());
  }
  return names;
}

void Describe(const std::vector<TensorSpec>& specs, const std::vector<std::vector<const char*>>& names,
              const char* what, int32_t index, tvmstack_tensor_info* info) {
  Require(info, "info");
  if (index < 0 || static_cast<size_t>(index) >= specs.size())
    throw tvmstack::UsageError(std::string("there is no ") + what + " " + std::to_string(index) + ": the model has " +
                               std::to_string(specs.size()));
  const TensorSpec& spec = specs[static_cast<size_t>(index)];
  *info = {spec.name.c_str(),
           spec.dtype_name.c_str(),
           spec.dtype,
           static_cast<int32_t>(spec.shape.size()),
           spec.shape.data(),
           names[static_cast<size_t>(index)].data()};
}

}  // namespace

const char* tvmstack_version(void) {
  return TVMSTACK_VERSION " (apache-tvm " TVMSTACK_TVM_VERSION ", apache-tvm-ffi " TVMSTACK_FFI_VERSION ")";
}

const char* tvmstack_error(void) { return LastError().c_str(); }

tvmstack_status tvmstack_model_open(const char* path, uint32_t flags, tvmstack_model** model) {
  return Guarded([&] {
    Require(path, "path");
    Require(model, "model");
    if (flags & ~static_cast<uint32_t>(TVMSTACK_SKIP_DIGESTS))
      throw tvmstack::UsageError("there is no flag " + std::to_string(flags));
    auto held = std::make_unique<tvmstack_model>();
    held->model = std::make_shared<tvmstack::Model>(path, (flags & TVMSTACK_SKIP_DIGESTS) == 0);
    held->dim_names[0] = DimNames(held->model->manifest().inputs);
    held->dim_names[1] = DimNames(held->model->manifest().outputs);
    *model = held.release();
  });
}

void tvmstack_model_close(tvmstack_model* model) {
  Guarded([&] { delete model; });
}

int32_t tvmstack_model_num_inputs(const tvmstack_model* model) {
  return static_cast<int32_t>(model->model->manifest().inputs.size());
}

int32_t tvmstack_model_num_outputs(const tvmstack_model* model) {
  return static_cast<int32_t>(model->model->manifest().outputs.size());
}

tvmstack_status tvmstack_model_input(const tvmstack_model* model, int32_t index, tvmstack_tensor_info* info) {
  return Guarded([&] {
    Require(model, "model");
    Describe(model->model->manifest().inputs, model->dim_names[0], "input", index, info);
  });
}

tvmstack_status tvmstack_model_output(const tvmstack_model* model, int32_t index, tvmstack_tensor_info* info) {
  return Guarded([&] {
    Require(model, "model");
    Describe(model->model->manifest().outputs, model->dim_names[1], "output", index, info);
  });
}

const char* tvmstack_model_manifest(const tvmstack_model* model) { return model->model->manifest().text.c_str(); }

tvmstack_status tvmstack_session_open(tvmstack_model* model, int32_t threads, tvmstack_session** session) {
  return Guarded([&] {
    Require(model, "model");
    Require(session, "session");
    *session = new tvmstack_session{{model->model, threads}};
  });
}

void tvmstack_session_close(tvmstack_session* session) {
  Guarded([&] { delete session; });
}

int32_t tvmstack_session_threads(const tvmstack_session* session) { return session->session.threads(); }

tvmstack_status tvmstack_run(tvmstack_session* session, const DLTensor* const* inputs, int32_t count) {
  return Guarded([&] {
    Require(session, "session");
    if (count > 0) Require(inputs, "inputs");
    session->session.Run(inputs, count);
  });
}

tvmstack_status tvmstack_output(tvmstack_session* session, int32_t index, const DLTensor** view) {
  return Guarded([&] {
    Require(session, "session");
    Require(view, "view");
    *view = session->session.Output(index);
  });
}

tvmstack_status tvmstack_run_buffers(tvmstack_session* session, const tvmstack_buffer* inputs, int32_t num_inputs,
                                     tvmstack_buffer* outputs, int32_t num_outputs) {
  return Guarded([&] {
    Require(session, "session");
    if (num_inputs > 0) Require(inputs, "inputs");
    if (num_outputs > 0) Require(outputs, "outputs");
    session->session.RunBuffers(inputs, num_inputs, outputs, num_outputs);
  });
}
