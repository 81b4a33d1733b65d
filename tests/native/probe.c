/* What the tests ask of the C interface. Every mode ends with exit code 0 where the process did what the test wants to
 * see, words on stdout; the test judges the words. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvmstack.h>

static void must(tvmstack_status status, const char* what) {
  if (status == TVMSTACK_OK) return;
  printf("%s: %d: %s\n", what, (int)status, tvmstack_error());
  exit(0);
}

static void want(tvmstack_status status, const char* what) {
  printf("%s: %d: %s\n", what, (int)status, status ? tvmstack_error() : "");
}

static long rss_kb(void) {
  char line[256];
  long kb = -1;
  FILE* file = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "VmRSS: %ld", &kb) == 1) break;
  fclose(file);
  return kb;
}

static float* read_floats(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (!file) exit(3);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  float* data = malloc(*bytes);
  if (fread(data, 1, *bytes, file) != *bytes) exit(3);
  fclose(file);
  return data;
}

typedef struct {
  tvmstack_model* model;
  const float *input, *expected;
  size_t input_bytes, expected_bytes;
  int runs, threads, wrong, failed;
  char words[512];
} worker;

static void* work(void* context) {
  worker* w = context;
  tvmstack_session* session = NULL;
  float* output = malloc(w->expected_bytes);
  w->failed = tvmstack_session_open(w->model, w->threads, &session) != TVMSTACK_OK;
  for (int i = 0; i < w->runs && !w->failed; ++i) {
    tvmstack_buffer in = {(void*)w->input, w->input_bytes, NULL, 0}, out = {output, w->expected_bytes, NULL, 0};
    w->failed = tvmstack_run_buffers(session, &in, 1, &out, 1) != TVMSTACK_OK;
    for (size_t k = 0; k < w->expected_bytes / sizeof(float); ++k)
      w->wrong += !(fabsf(output[k] - w->expected[k]) <= 1e-4f * (1.0f + fabsf(w->expected[k])));
  }
  if (w->failed) snprintf(w->words, sizeof w->words, "%s", tvmstack_error());
  tvmstack_session_close(session);
  free(output);
  return NULL;
}

/* many MODEL INPUT EXPECTED RUNS WORKERS: a session for each worker; a round to warm up, then the rounds that count. */
static int many(char** argv) {
  worker w = {0};
  must(tvmstack_model_open(argv[0], TVMSTACK_DEFAULT, &w.model), "open");
  w.input = read_floats(argv[1], &w.input_bytes);
  w.expected = read_floats(argv[2], &w.expected_bytes);
  w.threads = 1;
  const int runs = atoi(argv[3]), workers = atoi(argv[4]);
  pthread_t* threads = calloc((size_t)workers, sizeof *threads);
  worker* each = calloc((size_t)workers, sizeof *each);
  long before = 0;
  int wrong = 0, failed = 0;
  for (int round = 0; round < 3; ++round) {
    if (round == 1) before = rss_kb();
    for (int i = 0; i < workers; ++i) {
      each[i] = w;
      each[i].runs = round ? runs / 2 : 20;
      pthread_create(&threads[i], NULL, work, &each[i]);
    }
    for (int i = 0; i < workers; ++i) {
      pthread_join(threads[i], NULL);
      wrong += each[i].wrong, failed += each[i].failed;
      if (each[i].failed) printf("words %s\n", each[i].words);
    }
  }
  printf("wrong %d failed %d before_kb %ld after_kb %ld\n", wrong, failed, before, rss_kb());
  tvmstack_model_close(w.model);
  free((void*)w.input);
  free((void*)w.expected);
  free(threads);
  free(each);
  return 0;
}

/* open MODEL [skip]: open, run once on zeros, and after whatever came of it open nothing at all: the process lives. */
static int open_once(int argc, char** argv) {
  tvmstack_model* model = NULL;
  tvmstack_session* session = NULL;
  tvmstack_tensor_info info;
  must(tvmstack_model_open(argv[0], argc > 1 ? TVMSTACK_SKIP_DIGESTS : TVMSTACK_DEFAULT, &model), "open");
  must(tvmstack_session_open(model, 1, &session), "session");
  must(tvmstack_model_input(model, 0, &info), "input");
  size_t bytes = info.dtype.bits / 8;
  for (int32_t d = 0; d < info.ndim; ++d) bytes *= (size_t)info.shape[d];
  DLTensor x = {aligned_alloc(64, (bytes + 64) / 64 * 64), {kDLCPU, 0}, info.ndim, info.dtype,
                (int64_t*)info.shape, NULL, 0};
  memset(x.data, 0, bytes);
  const DLTensor* feed = &x;
  must(tvmstack_run(session, &feed, 1), "run");
  printf("ran\n");
  tvmstack_session_close(session);
  tvmstack_model_close(model);
  free(x.data);
  return 0;
}

/* words MODEL: x: float32 [2, 32] to y: float32 [2, 8]; every mistake a caller can make, and what must work. */
static int words(char** argv) {
  tvmstack_model* model = NULL;
  tvmstack_session* session = NULL;
  tvmstack_tensor_info info;
  const DLTensor *view = NULL, *again = NULL;
  want(tvmstack_model_open(NULL, 0, &model), "no path");
  want(tvmstack_model_open(argv[0], 64, &model), "odd flag");
  must(tvmstack_model_open(argv[0], 0, &model), "open");
  want(tvmstack_model_input(model, 1, &info), "second input");
  must(tvmstack_model_output(model, 0, &info), "output");
  printf("info: %s %s %d %lld\n", info.name, info.dtype_name, (int)info.ndim, (long long)info.shape[1]);
  want(tvmstack_session_open(model, -1, &session), "minus one thread");
  must(tvmstack_session_open(model, 2, &session), "session");
  tvmstack_model_close(model); /* the session keeps what it needs */
  want(tvmstack_output(session, 0, &view), "output before a run");

  int64_t shape[2] = {2, 32}, wrong[2] = {3, 32}, strides[2] = {1, 2}, flat = 64;
  float* memory = aligned_alloc(64, 1024);
  for (int i = 0; i < 256; ++i) memory[i] = (float)(i % 7) - 3.0f;
  const DLDataType f32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1};
  DLTensor x = {memory, {kDLCPU, 0}, 2, f32, shape, NULL, 0};
  const DLTensor* feed[2] = {&x, &x};
  want(tvmstack_run(session, feed, 2), "two inputs");
  x.shape = wrong;
  want(tvmstack_run(session, feed, 1), "wrong shape");
  x.shape = &flat, x.ndim = 1;
  want(tvmstack_run(session, feed, 1), "wrong rank");
  x.shape = shape, x.ndim = 2, x.dtype = i32;
  want(tvmstack_run(session, feed, 1), "wrong dtype");
  x.dtype = f32, x.data = NULL;
  want(tvmstack_run(session, feed, 1), "no memory");
  feed[0] = NULL;
  want(tvmstack_run(session, feed, 1), "no tensor");
  feed[0] = &x, x.data = memory, x.device.device_type = kDLCUDA;
  want(tvmstack_run(session, feed, 1), "on a GPU");
  x.device.device_type = kDLCPU;
  must(tvmstack_run(session, feed, 1), "run");
  must(tvmstack_output(session, 0, &view), "output");
  float first[16];
  memcpy(first, view->data, sizeof first);

  /* the same values, at an odd address, through byte_offset, and column by column */
  char* odd = malloc(1024);
  memcpy(odd + 4, memory, 256);
  x.data = odd + 4;
  must(tvmstack_run(session, feed, 1), "run");
  must(tvmstack_output(session, 0, &again), "output");
  printf("unaligned: %d\n", memcmp(first, again->data, sizeof first));
  x.data = odd, x.byte_offset = 4;
  must(tvmstack_run(session, feed, 1), "run");
  must(tvmstack_output(session, 0, &again), "output");
  printf("offset: %d\n", memcmp(first, again->data, sizeof first));
  float* columns = aligned_alloc(64, 1024);
  for (int r = 0; r < 2; ++r)
    for (int c = 0; c < 32; ++c) columns[c * 2 + r] = memory[r * 32 + c];
  x.data = columns, x.byte_offset = 0, x.strides = strides;
  must(tvmstack_run(session, feed, 1), "run");
  must(tvmstack_output(session, 0, &again), "output");
  printf("strided: %d\n", memcmp(first, again->data, sizeof first));

  float output[16];
  tvmstack_buffer in = {memory, 255, NULL, 0}, out = {output, 63, NULL, 0};
  want(tvmstack_run_buffers(session, &in, 1, &out, 1), "short input");
  in.bytes = 256;
  want(tvmstack_run_buffers(session, &in, 1, &out, 1), "small output");
  printf("needed: %zu\n", out.bytes);
  must(tvmstack_run_buffers(session, &in, 1, &out, 1), "buffers");
  printf("buffers: %d\n", memcmp(first, output, sizeof first));
  want(tvmstack_output(session, 7, &view), "output 7");
  tvmstack_session_close(session);
  tvmstack_session_close(NULL);
  tvmstack_model_close(NULL);
  free(memory);
  free(odd);
  free(columns);
  return 0;
}

/* same MODEL: a model whose output is its input passed on; the output outlives the memory it was fed from. */
static int same(char** argv) {
  tvmstack_model* model = NULL;
  tvmstack_session* session = NULL;
  tvmstack_tensor_info info;
  const DLTensor* view = NULL;
  must(tvmstack_model_open(argv[0], 0, &model), "open");
  must(tvmstack_session_open(model, 1, &session), "session");
  must(tvmstack_model_input(model, 0, &info), "input");
  float* memory = aligned_alloc(64, 4096);
  for (int i = 0; i < 1024; ++i) memory[i] = (float)i;
  DLTensor x = {memory, {kDLCPU, 0}, info.ndim, info.dtype, (int64_t*)info.shape, NULL, 0};
  const DLTensor* feed = &x;
  must(tvmstack_run(session, &feed, 1), "run");
  memset(memory, 0, 4096);
  int wrong = 0;
  for (int32_t o = 0; o < tvmstack_model_num_outputs(model); ++o) {
    must(tvmstack_output(session, o, &view), "output");
    for (int i = 0; i < 1024; ++i) wrong += ((const float*)view->data)[i] != (float)(o ? 2 * i : i);
  }
  printf("wrong %d\n", wrong);
  tvmstack_session_close(session);
  tvmstack_model_close(model);
  free(memory);
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 6 && !strcmp(argv[1], "many")) return many(argv + 2);
  if (argc > 2 && !strcmp(argv[1], "open")) return open_once(argc - 2, argv + 2);
  if (argc > 2 && !strcmp(argv[1], "words")) return words(argv + 2);
  if (argc > 2 && !strcmp(argv[1], "same")) return same(argv + 2);
  return 2;
}
