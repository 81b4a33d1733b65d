/* simple MODEL: run a model of one float32 input and one float32 output once, with buffers of our own.
 *
 * cc simple.c -I../include -L../lib -ltvmstack -Wl,-rpath,'$ORIGIN/../lib' -o simple */
#include <stdio.h>
#include <stdlib.h>
#include <tvmstack.h>

static size_t bytes_of(const tvmstack_tensor_info* info) {
  size_t bytes = info->dtype.bits / 8;
  for (int32_t d = 0; d < info->ndim; ++d) bytes *= (size_t)(info->shape[d] < 0 ? 1 : info->shape[d]);
  return bytes;
}

static int fail(void) {
  fprintf(stderr, "error: %s\n", tvmstack_error());
  return 1;
}

int main(int argc, char** argv) {
  tvmstack_model* model = NULL;
  tvmstack_session* session = NULL;
  tvmstack_tensor_info in, out;
  if (argc != 2) return fprintf(stderr, "usage: simple MODEL\n"), 2;
  if (tvmstack_model_open(argv[1], TVMSTACK_DEFAULT, &model)) return fail();
  if (tvmstack_model_num_inputs(model) != 1 || tvmstack_model_num_outputs(model) != 1)
    return fprintf(stderr, "this example takes models of one input and one output\n"), 2;
  if (tvmstack_model_input(model, 0, &in) || tvmstack_model_output(model, 0, &out)) return fail();
  if (tvmstack_session_open(model, 0, &session)) return fail();

  tvmstack_buffer input = {calloc(1, bytes_of(&in)), bytes_of(&in), NULL, 0};
  tvmstack_buffer output = {calloc(1, bytes_of(&out)), bytes_of(&out), NULL, 0};
  if (tvmstack_run_buffers(session, &input, 1, &output, 1)) return fail();
  const float* values = output.data;
  for (size_t i = 0; i < output.bytes / sizeof(float) && i < 10; ++i) printf("%s[%zu] = %g\n", out.name, i, values[i]);

  free(input.data);
  free(output.data);
  tvmstack_session_close(session);
  tvmstack_model_close(model);
  return 0;
}
