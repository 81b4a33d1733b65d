/* Runs artifacts of tvmstack from C: no Python, no compiler, no exception crosses this border.
 *
 * Threads. A model may be shared by any number of threads. A session is for one thread at a time; a second thread that
 * enters a running session is refused. Open one session for each thread that works at the same time: sessions share the
 * model's code, weights and vendor engines, and each has a virtual machine of its own.
 *
 * TVM keeps one pool of workers for each calling thread, sized by the first session with more than one thread that the
 * calling thread runs, and leaves the pool behind when that thread ends. So: run sessions of several threads from
 * threads that live on (a fixed set of workers, never a thread per request), and sessions of one thread count in one
 * calling thread. A session of one thread makes no pool and may be run from anywhere.
 *
 * TVM_BIND_THREADS is set to 0 when this library is loaded, unless it is set already: pinning, TVM's default, puts the
 * workers of every pool on the same cores. After a fork, open models and sessions anew in the child.
 *
 * Files. An artifact is mapped, not copied. Replace it by a rename; a file that is written to in place while it is
 * open breaks the programs that have it open.
 */
#ifndef TVMSTACK_H_
#define TVMSTACK_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TVMSTACK_API __attribute__((visibility("default")))

/* Who must act; the same numbers as the exit codes of the command line. */
typedef enum {
  TVMSTACK_OK = 0,
  TVMSTACK_INTERNAL = 1, /* none of the below, for example no memory */
  TVMSTACK_USAGE = 2,    /* the call is wrong: a shape, a dtype, an index */
  TVMSTACK_SETUP = 4,    /* something is not installed here, or not usable */
  TVMSTACK_BACKEND = 5,  /* TVM or a vendor's engine failed in a run */
  TVMSTACK_ARTIFACT = 7  /* the file is damaged, foreign, or made for another machine */
} tvmstack_status;

/* Flags of tvmstack_model_open. */
enum {
  TVMSTACK_DEFAULT = 0,
  TVMSTACK_SKIP_DIGESTS = 1 /* don't read every byte to compare digests; the manifest's own is always compared */
};

typedef struct tvmstack_model tvmstack_model;
typedef struct tvmstack_session tvmstack_session;

/* An input or output. All pointers belong to the model and live as long as it does. */
typedef struct {
  const char* name;
  const char* dtype_name; /* numpy's name: "float32" */
  DLDataType dtype;
  int32_t ndim;
  const int64_t* shape;         /* -1 where a dimension is dynamic */
  const char* const* dim_names; /* the names of dynamic dimensions, NULL for the others */
} tvmstack_tensor_info;

/* Memory of the caller, dense and row-major, of the dtype that the model has there. */
typedef struct {
  void* data;
  size_t bytes;         /* of an output: how much fits; after the run, how much there is */
  const int64_t* shape; /* NULL: the model's own, where it is static; of an output: ignored */
  int32_t ndim;
} tvmstack_buffer;

/* "0.1.0 (apache-tvm 0.27.0, apache-tvm-ffi 0.1.14)" */
TVMSTACK_API const char* tvmstack_version(void);

/* Why the last call in this thread that did not return TVMSTACK_OK failed: one sentence, complete as it stands. */
TVMSTACK_API const char* tvmstack_error(void);

/* Open an artifact: compare digests, check CPU and versions, map weights. Nothing of it is executed before that. */
TVMSTACK_API tvmstack_status tvmstack_model_open(const char* path, uint32_t flags, tvmstack_model** model);
/* Sessions that are still open keep what they need. NULL is allowed. */
TVMSTACK_API void tvmstack_model_close(tvmstack_model* model);
TVMSTACK_API int32_t tvmstack_model_num_inputs(const tvmstack_model* model);
TVMSTACK_API int32_t tvmstack_model_num_outputs(const tvmstack_model* model);
TVMSTACK_API tvmstack_status tvmstack_model_input(const tvmstack_model* model, int32_t index,
                                                  tvmstack_tensor_info* info);
TVMSTACK_API tvmstack_status tvmstack_model_output(const tvmstack_model* model, int32_t index,
                                                   tvmstack_tensor_info* info);
/* The manifest, JSON. */
TVMSTACK_API const char* tvmstack_model_manifest(const tvmstack_model* model);

/* Open a session. `threads`: how many threads its kernels use; 0 for $TVM_NUM_THREADS where that is set, else what the
 * artifact was built for, but no more than the physical cores this process may use. */
TVMSTACK_API tvmstack_status tvmstack_session_open(tvmstack_model* model, int32_t threads, tvmstack_session** session);
TVMSTACK_API void tvmstack_session_close(tvmstack_session* session);
TVMSTACK_API int32_t tvmstack_session_threads(const tvmstack_session* session);

/* Run on borrowed tensors, one for each input, in order. CPU memory of any alignment and stride; where TVM cannot read
 * it in place (64-byte aligned, dense) it is copied. */
TVMSTACK_API tvmstack_status tvmstack_run(tvmstack_session* session, const DLTensor* const* inputs, int32_t count);
/* A view of an output of the last run, dense and on the CPU: valid until the next run, or the close, of the session. */
TVMSTACK_API tvmstack_status tvmstack_output(tvmstack_session* session, int32_t index, const DLTensor** view);
/* Run from and into the caller's buffers; `outputs` has one for each output. Where one is too small nothing is copied,
 * `bytes` of all say how much is needed, and tvmstack_output still gives the values. */
TVMSTACK_API tvmstack_status tvmstack_run_buffers(tvmstack_session* session, const tvmstack_buffer* inputs,
                                                  int32_t num_inputs, tvmstack_buffer* outputs, int32_t num_outputs);

#ifdef __cplusplus
}
#endif
#endif /* TVMSTACK_H_ */
