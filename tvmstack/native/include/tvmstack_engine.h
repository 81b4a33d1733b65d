/* What runs a region of a model that is not TVM's: a vendor's runtime behind four C functions.
 *
 * An engine called NAME is a library libtvmstack_engine_NAME.so that exports `tvmstack_engine_get`. It is looked for in
 * the folders of $TVMSTACK_ENGINES (separated by colons), then beside libtvmstack, then among the built-in ones
 * (onnxruntime, openvino); the first found wins. Python loads the same libraries (tvmstack.runtime.engines.native).
 *
 * Rules: no exception leaves a function; `run` is called from several threads at once on one handle; threads of the
 * engine do not spin between two calls; an error is one sentence in `error`, and the return value is not 0. A missing
 * vendor library, or one of a wrong version, is such an error, with the version wanted and the one found.
 */
#ifndef TVMSTACK_ENGINE_H_
#define TVMSTACK_ENGINE_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TVMSTACK_ENGINE_ABI 1

/* What `open` is told. Fields are only ever added at the end; `struct_size` says which are there. */
typedef struct {
  size_t struct_size;
  const void* blob; /* stays where it is until `close` */
  size_t blob_size;
  const char* row;           /* JSON of the region: digest, inputs, outputs, target, versions, options, engine_inputs, … */
  int32_t threads;           /* how many threads a call may use */
  const char* model_folder;  /* of the artifact; "" where it is not known */
  const char* engine_folder; /* of libtvmstack or of the engine's library */
} tvmstack_engine_open_args;

/* Memory for an output: `shape` has `ndim` dimensions, the dtype is the one in the row. At least 64-byte aligned, never
 * NULL unless there is no memory. Called once for each output, before it is written. */
typedef void* (*tvmstack_engine_alloc)(void* context, int32_t output, const int64_t* shape, int32_t ndim);

typedef struct {
  uint32_t abi; /* TVMSTACK_ENGINE_ABI */
  const char* name;
  /* The vendor library's version into `text`. `engine_folder` as above. */
  int32_t (*version)(const char* engine_folder, char* text, size_t text_size, char* error, size_t error_size);
  int32_t (*open)(const tvmstack_engine_open_args* args, void** handle, char* error, size_t error_size);
  /* `inputs` are dense, on the CPU, byte_offset 0, strides NULL, in the order of the row's inputs. */
  int32_t (*run)(void* handle, const DLTensor* const* inputs, int32_t num_inputs, int32_t num_outputs,
                 tvmstack_engine_alloc alloc, void* alloc_context, char* error, size_t error_size);
  void (*close)(void* handle);
} tvmstack_engine;

/* Exported by an engine's library; NULL where it does not know this ABI. */
typedef const tvmstack_engine* (*tvmstack_engine_get_function)(uint32_t abi);
__attribute__((visibility("default"))) const tvmstack_engine* tvmstack_engine_get(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* TVMSTACK_ENGINE_H_ */
