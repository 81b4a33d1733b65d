/* A stranger's engine: multiplies its one float32 input by three, or by what the one byte of its blob says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvmstack_engine.h>

static int32_t version(const char* folder, char* text, size_t size, char* error, size_t error_size) {
  (void)folder, (void)error, (void)error_size;
  snprintf(text, size, "1.0");
  return 0;
}

static int32_t open_region(const tvmstack_engine_open_args* args, void** handle, char* error, size_t size) {
  if (args->struct_size < sizeof *args || args->blob_size != 1 || !strstr(args->row, "triple")) {
    snprintf(error, size, "the blob has %zu bytes, not 1", args->blob_size);
    return 1;
  }
  char* factor = malloc(1);
  *factor = *(const char*)args->blob;
  *handle = factor;
  return 0;
}

static int32_t run(void* handle, const DLTensor* const* inputs, int32_t num_inputs, int32_t num_outputs,
                   tvmstack_engine_alloc alloc, void* context, char* error, size_t size) {
  if (num_inputs != 1 || num_outputs != 1 || inputs[0]->byte_offset || inputs[0]->strides) {
    snprintf(error, size, "not one dense tensor");
    return 1;
  }
  size_t count = 1;
  for (int32_t d = 0; d < inputs[0]->ndim; ++d) count *= (size_t)inputs[0]->shape[d];
  const float* x = inputs[0]->data;
  float* y = alloc(context, 0, inputs[0]->shape, inputs[0]->ndim);
  if (!y) {
    snprintf(error, size, "no memory for the output");
    return 1;
  }
  for (size_t i = 0; i < count; ++i) {
    if (x[i] > 1e30f) {
      snprintf(error, size, "a value is too large");
      return 1;
    }
    y[i] = x[i] * (float)*(char*)handle;
  }
  return 0;
}

const tvmstack_engine* tvmstack_engine_get(uint32_t abi) {
  static const tvmstack_engine engine = {TVMSTACK_ENGINE_ABI, "triple", version, open_region, run, free};
  return abi == TVMSTACK_ENGINE_ABI ? &engine : NULL;
}
