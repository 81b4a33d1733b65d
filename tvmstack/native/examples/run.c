/* run MODEL [--threads N] [--repeat N] [--dim NAME=N] [--skip-digests]: show what a model takes and gives, and time it.
 *
 * Inputs are seeded: floats in [-1, 1), other types 0 and 1. Dynamic dimensions are 1 unless --dim says otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tvmstack.h>

typedef struct {
  const char* model;
  int threads, repeat, num_dims;
  uint32_t flags;
  char** dims; /* "NAME=N" */
} options;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void must(tvmstack_status status) {
  if (status == TVMSTACK_OK) return;
  fprintf(stderr, "error: %s\n", tvmstack_error());
  exit(status);
}

static void usage(const char* words) {
  fprintf(stderr, "%s\nusage: run MODEL [--threads N] [--repeat N] [--dim NAME=N] [--skip-digests]\n", words);
  exit(TVMSTACK_USAGE);
}

static int number(const char* text, const char* what) {
  char* end = NULL;
  const long value = text ? strtol(text, &end, 10) : 0;
  if (!text || *end || value < 1 || value > 1000000) usage(what);
  return (int)value;
}

static options parse(int argc, char** argv) {
  options o = {NULL, 0, 20, 0, TVMSTACK_DEFAULT, NULL};
  o.dims = calloc((size_t)argc, sizeof *o.dims);
  for (int i = 1; i < argc; ++i) {
    char* next = i + 1 < argc ? argv[i + 1] : NULL;
    if (!strcmp(argv[i], "--threads"))
      o.threads = number(next, "--threads takes a number from 1 on"), ++i;
    else if (!strcmp(argv[i], "--repeat"))
      o.repeat = number(next, "--repeat takes a number from 1 on"), ++i;
    else if (!strcmp(argv[i], "--dim") && next && strchr(next, '='))
      o.dims[o.num_dims++] = next, ++i;
    else if (!strcmp(argv[i], "--skip-digests"))
      o.flags = TVMSTACK_SKIP_DIGESTS;
    else if (argv[i][0] == '-' || o.model)
      usage("cannot read the arguments");
    else
      o.model = argv[i];
  }
  if (!o.model) usage("which model?");
  return o;
}

static int64_t dim_of(const options* o, const char* name) {
  const size_t length = strlen(name);
  for (int i = 0; i < o->num_dims; ++i)
    if (!strncmp(o->dims[i], name, length) && o->dims[i][length] == '=')
      return number(o->dims[i] + length + 1, "--dim takes NAME=N");
  return 1;
}

static void show(const char* what, const tvmstack_tensor_info* info) {
  printf("%s %s: %s [", what, info->name, info->dtype_name);
  for (int32_t d = 0; d < info->ndim; ++d) {
    if (info->shape[d] < 0)
      printf("%s%s", d ? ", " : "", info->dim_names[d]);
    else
      printf("%s%lld", d ? ", " : "", (long long)info->shape[d]);
  }
  printf("]\n");
}

/* A tensor of 64-byte aligned, seeded memory for an input. */
static DLTensor* make_input(const options* o, const tvmstack_tensor_info* info) {
  DLTensor* t = calloc(1, sizeof *t);
  int64_t* shape = calloc((size_t)info->ndim + 1, sizeof *shape);
  size_t count = 1;
  for (int32_t d = 0; d < info->ndim; ++d) {
    shape[d] = info->shape[d] < 0 ? dim_of(o, info->dim_names[d]) : info->shape[d];
    count *= (size_t)shape[d];
  }
  const size_t bytes = count * info->dtype.bits / 8;
  *t = (DLTensor){aligned_alloc(64, (bytes + 64) / 64 * 64), {kDLCPU, 0}, info->ndim, info->dtype, shape, NULL, 0};
  memset(t->data, 0, bytes);
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    if (info->dtype.code == kDLFloat && info->dtype.bits == 32)
      ((float*)t->data)[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    else if (info->dtype.code == kDLFloat && info->dtype.bits == 64)
      ((double*)t->data)[i] = (double)(state >> 8) / 8388608.0 - 1.0;
    else if (info->dtype.code != kDLFloat && info->dtype.code != kDLBfloat)
      ((uint8_t*)t->data)[i * info->dtype.bits / 8] = (uint8_t)(state >> 31);
  }
  return t;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void show_memory(void) {
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status))
    if (!strncmp(line, "VmHWM", 5) || !strncmp(line, "RssAnon", 7)) printf("memory %s", line);
  if (status) fclose(status);
}

int main(int argc, char** argv) {
  const options o = parse(argc, argv);
  printf("tvmstack %s\n", tvmstack_version());
  const double start = now_ms();
  tvmstack_model* model = NULL;
  tvmstack_session* session = NULL;
  must(tvmstack_model_open(o.model, o.flags, &model));
  must(tvmstack_session_open(model, o.threads, &session));
  const double opened = now_ms();

  const int32_t inputs = tvmstack_model_num_inputs(model), outputs = tvmstack_model_num_outputs(model);
  const DLTensor** feed = calloc((size_t)inputs + 1, sizeof *feed);
  tvmstack_tensor_info info;
  for (int32_t i = 0; i < inputs; ++i) {
    must(tvmstack_model_input(model, i, &info));
    show("input", &info);
    feed[i] = make_input(&o, &info);
  }
  for (int32_t i = 0; i < outputs; ++i) {
    must(tvmstack_model_output(model, i, &info));
    show("output", &info);
  }
  const double before = now_ms();
  must(tvmstack_run(session, feed, inputs));
  printf("open %.2f ms, first run %.2f ms\n", opened - start, now_ms() - before);

  double* times = calloc((size_t)o.repeat, sizeof *times);
  for (int i = 0; i < o.repeat; ++i) {
    const double from = now_ms();
    must(tvmstack_run(session, feed, inputs));
    times[i] = now_ms() - from;
  }
  qsort(times, (size_t)o.repeat, sizeof *times, compare);
  printf("%d runs on %d threads: median %.3f ms, least %.3f ms, most %.3f ms\n", o.repeat,
         (int)tvmstack_session_threads(session), times[o.repeat / 2], times[0], times[o.repeat - 1]);
  show_memory();

  tvmstack_session_close(session);
  tvmstack_model_close(model);
  for (int32_t i = 0; i < inputs; ++i) {
    free(feed[i]->data);
    free(feed[i]->shape);
    free((void*)feed[i]);
  }
  free(feed);
  free(times);
  free(o.dims);
  return 0;
}
