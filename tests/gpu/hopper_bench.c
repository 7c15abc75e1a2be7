/* hopper_bench.c - checks and times the Hopper kernels by themselves.
 *
 * In: cubins named WIDTH_WARPGROUPS_KEYS_STAGES_ELEMENT-NOTE.cubin, made of
 * templates/hopper.cu with these macros, and reference.cubin. Every case runs
 * on each cubin of its width: against float64 on sampled rows, for unwritten
 * and stray elements, equal bits in a second run, and causality; then the
 * cases that are timed, all variants in turn. Exit status 1 when any is wrong.
 * HOPPER_HOT=1: nothing is flushed, launches of one variant follow each other.
 *   hopper_bench [check|time|all] FOLDER [CASE-PREFIX] */
#include "../../runtime/cuda/device.h"
#include "../../runtime/cuda/hopper.h"
#include "hopper_cases.h"
#include <cuda.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 256, GUARD = 1 << 16, VARIANTS = 24 };

#define TRY(call)                                                        \
  do {                                                                   \
    CUresult result_ = (call);                                           \
    const char *text_ = "";                                              \
    if (result_) cuGetErrorString(result_, &text_);                      \
    if (result_) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, text_); \
    if (result_) exit(3);                                                \
  } while (0)

/* ---- a case as the plan's table, and as the reference reads it ----------- */

typedef struct plan_data {
  dil_table table;
  dil_branch branch[BRANCHES];
  dil_predicate predicate;
  dil_pass pass;
  int32_t phase[BRANCHES][128];
} plan_data;

typedef struct reference_branch {
  long long segment, dilation, left, right;
  int head_first, head_last;
  int phase[128];
} reference_branch;

typedef struct problem {
  CUdeviceptr q, k, v;
  int B, N, M, H, group, D, Dv, element, combine_union, branches;
  double scale;
  reference_branch branch[BRANCHES];
} problem;

static int phase_of(const bench_case *c, int b, int h) {
  int r = c->dilation[b], each = (c->H + r - 1) / r;
  int phase[] = {[CYCLE] = h, [ZERO] = 0, [BLOCK] = h / each, [BY_BRANCH] = b};
  return phase[c->phase] % r;
}

static int64_t multiple(int64_t a, int64_t b) {
  int64_t x = a;
  while (x % b) x += a;
  return x;
}

/* With SPLIT each branch has its own share of the heads. */
static void heads_of(const bench_case *c, int b, int *first, int *last) {
  *first = c->flags & SPLIT ? c->H * b / c->branches : 0;
  *last = c->flags & SPLIT ? c->H * (b + 1) / c->branches - 1 : c->H - 1;
}

static void plan_fill(const bench_case *c, plan_data *p) {
  *p = (plan_data){.pass = {(1ull << c->branches) - 1, 1}};
  bool bounded = c->left >= 0 || c->right >= 0;
  p->predicate = (dil_predicate){c->left < 0 ? DIL_ENDLESS : c->left,
                                 c->right < 0 ? DIL_ENDLESS : c->right, false};
  for (int b = 0; b < c->branches; b++) {
    p->pass.period = multiple(p->pass.period, c->dilation[b]);
    p->branch[b] = (dil_branch){.segment = c->segment[b],
                                .dilation = c->dilation[b],
                                .predicate = bounded ? 0 : -1,
                                .phase = p->phase[b]};
    heads_of(c, b, &p->branch[b].head_first, &p->branch[b].head_last);
    for (int h = 0; h < c->H; h++) p->phase[b][h] = phase_of(c, b, h);
  }
  p->table = (dil_table){.name = c->name,
                         .heads = c->H,
                         .kv_heads = c->Hkv,
                         .head_dim = c->D,
                         .value_dim = c->Dv,
                         .dtype = c->element == 1 ? DIL_BF16 : DIL_F16,
                         .combine = c->flags & UNION ? DIL_COMBINE_UNION
                                                     : DIL_COMBINE_SOFTMAX,
                         .dedup = !(c->flags & MULTISET),
                         .branch_count = c->branches,
                         .pass_count = 1,
                         .predicate_count = bounded,
                         .chain_count = 1,
                         .lse_allowed = true,
                         .branches = p->branch,
                         .passes = &p->pass,
                         .predicates = &p->predicate};
}

static void problem_fill(const bench_case *c, problem *p) {
  *p = (problem){.B = c->B, .N = c->N, .M = c->M, .H = c->H,
                 .group = c->H / c->Hkv, .D = c->D, .Dv = c->Dv,
                 .element = c->element, .combine_union = !!(c->flags & UNION),
                 .branches = c->branches, .scale = 1 / sqrt(c->D)};
  for (int b = 0; b < c->branches; b++) {
    reference_branch *x = &p->branch[b];
    *x = (reference_branch){.segment = c->segment[b],
                            .dilation = c->dilation[b],
                            .left = c->left,
                            .right = c->right};
    heads_of(c, b, &x->head_first, &x->head_last);
    for (int h = 0; h < c->H; h++) x->phase[h] = phase_of(c, b, h);
  }
}

/* Pairs that the definition sums, a key once for each branch. */
static double count_pairs(const bench_case *c, const problem *p) {
  double pairs = 0;
  for (int b = 0; b < c->branches; b++)
    for (int h = p->branch[b].head_first; h <= p->branch[b].head_last; h++)
      for (int64_t t = c->M - c->N; t < c->M; t++) {
        int64_t s = c->segment[b] ? c->segment[b] : 1 << 30;
        int64_t r = c->dilation[b], low = t >= 0 ? t / s * s : 0;
        if (t < 0 || (t - low) % r != p->branch[b].phase[h]) continue;
        int64_t end = low + s < c->M ? low + s : c->M, first = low;
        if (c->left >= 0 && t - c->left > first) first = t - c->left;
        if (c->right >= 0 && t + c->right + 1 < end) end = t + c->right + 1;
        int64_t from = low + p->branch[b].phase[h];
        first = first <= from ? from : from + (first - from + r - 1) / r * r;
        pairs += first < end ? (double)((end - 1 - first) / r + 1) : 0;
      }
  return pairs;
}

/* ---- the device ---------------------------------------------------------- */

typedef struct variant {
  char name[48];
  int width, element;
  cuda_code code;
} variant;

typedef struct bench {
  dil_cuda *device;
  CUfunction fill, inspect, reference, spoil, gather;
  variant variant[VARIANTS];
  int variants, wrong;
  CUdeviceptr flush, counts, sample, exact, found;
  CUevent from, to;
} bench;

static void *load_file(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) perror(path), exit(3);
  fseek(f, 0, SEEK_END);
  long size = ftell(f);
  rewind(f);
  char *bytes = malloc((size_t)size);
  if (fread(bytes, 1, (size_t)size, f) != (size_t)size) exit(3);
  fclose(f);
  return bytes;
}

static CUfunction function_of(CUlibrary library, const char *name) {
  CUkernel kernel;
  CUfunction f;
  TRY(cuLibraryGetKernel(&kernel, library, name));
  TRY(cuKernelGetFunction(&f, kernel));
  return f;
}

static void load_variant(bench *x, const char *folder, const char *file) {
  int width, groups, keys, stages, element;
  char path[512], note[16] = "";
  if (sscanf(file, "%d_%d_%d_%d_%d%15[-a-z0-9]", &width, &groups, &keys,
             &stages, &element, note) < 5)
    return;
  snprintf(path, sizeof path, "%s/%s", folder, file);
  variant *v = &x->variant[x->variants++];
  CUlibrary library;
  TRY(cuLibraryLoadData(&library, load_file(path), 0, 0, 0, 0, 0, 0));
  v->width = width;
  v->element = element;
  snprintf(v->name, sizeof v->name, "%dx%d/%d%s", 64 * groups, keys, stages,
           note);
  v->code.about = (dil_cuda_code){.tile_rows = 64 * groups,
                                  .tile_keys = keys,
                                  .passes = 1,
                                  .threads = 128 * (groups + 1)};
  CUfunction f = function_of(library, "hopper_forward");
  v->code.function[0] = f;
  v->code.about.shared =
      3 * groups * 64 * width * 2 + stages * keys * width * 4 +
      HOPPER_REST_BYTES(width);
  TRY(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                         v->code.about.shared));
}

static void bench_open(bench *x, const char *folder) {
  char path[512];
  CUlibrary library;
  if (device_open(0, &x->device) || cuda_enter(x->device))
    fprintf(stderr, "%s\n", dil_last_error()), exit(3);
  snprintf(path, sizeof path, "%s/reference.cubin", folder);
  TRY(cuLibraryLoadData(&library, load_file(path), 0, 0, 0, 0, 0, 0));
  x->fill = function_of(library, "fill");
  x->inspect = function_of(library, "inspect");
  x->reference = function_of(library, "reference");
  x->spoil = function_of(library, "spoil");
  x->gather = function_of(library, "gather");
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));)
    load_variant(x, folder, e->d_name);
  closedir(dir);
  TRY(cuMemAlloc(&x->flush, 256 << 20));
  TRY(cuMemAlloc(&x->counts, 16));
  TRY(cuMemAlloc(&x->sample, SAMPLES * 12));
  TRY(cuMemAlloc(&x->exact, SAMPLES * 257 * 8));
  TRY(cuMemAlloc(&x->found, SAMPLES * 257 * 4));
  TRY(cuEventCreate(&x->from, 0));
  TRY(cuEventCreate(&x->to, 0));
}

#define RUN(f, blocks, threads, ...)                                        \
  do {                                                                      \
    void *arguments_[] = {__VA_ARGS__};                                     \
    TRY(cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, 0, arguments_, 0)); \
  } while (0)

/* ---- one case ------------------------------------------------------------ */

typedef struct setup {
  const bench_case *c;
  plan_data plan;
  problem problem;
  dil_call call;
  cuda_run run;
  CUdeviceptr o, lse;           /* o between two guards */
  size_t q_count, k_count, v_count, o_count, lse_count;
  int sample[SAMPLES * 3];
  double exact[SAMPLES * 257];
} setup;

static CUdeviceptr random_tensor(bench *x, size_t n, uint64_t seed,
                                 int element) {
  CUdeviceptr p;
  uint64_t count = n;
  TRY(cuMemAlloc(&p, n * 2));
  RUN(x->fill, 1024, 256, &p, &count, &seed, &element);
  return p;
}

/* Half of them near the ends and the borders of segments. */
static void choose_samples(setup *s) {
  const bench_case *c = s->c;
  uint32_t random = 12345;
  for (int i = 0; i < SAMPLES; i++) {
    random = random * 1664525u + 1013904223u;
    int n = (int)((uint64_t)random * (uint64_t)c->N >> 32);
    int border = c->segment[0] ? c->segment[0] : 128;
    if (i < 48) n = i;
    else if (i < 96) n = c->N - 1 - (i - 48);
    else if (i < 160) n = n / border * border - 4 + i % 8;
    random = random * 1664525u + 1013904223u;
    s->sample[3 * i] = i % c->B;
    s->sample[3 * i + 1] = n < 0 ? 0 : n >= c->N ? c->N - 1 : n;
    s->sample[3 * i + 2] = (int)((random >> 8) % (unsigned)c->H);
  }
}

static dil_tensor tensor(CUdeviceptr p, dil_dtype type, int64_t a, int64_t b,
                         int64_t h, int64_t d) {
  int64_t shape[4] = {a, b, h, d};
  return dil_tensor_make((void *)p, type, d ? 4 : 3, shape);
}

static void setup_make(bench *x, const bench_case *c, setup *s) {
  s->c = c;
  plan_fill(c, &s->plan);
  problem_fill(c, &s->problem);
  s->q_count = (size_t)c->B * c->N * c->H * c->D;
  s->k_count = (size_t)c->B * c->M * c->Hkv * c->D;
  s->v_count = (size_t)c->B * c->M * c->Hkv * c->Dv;
  s->o_count = (size_t)c->B * c->N * c->H * c->Dv;
  s->lse_count = (size_t)c->B * c->N * c->H;
  s->problem.q = random_tensor(x, s->q_count, 1, c->element);
  s->problem.k = random_tensor(x, s->k_count, 2, c->element);
  s->problem.v = random_tensor(x, s->v_count, 3, c->element);
  if (c->flags & SPOIL)
    RUN(x->spoil, (unsigned)c->M, 256, &s->problem, &s->problem.k,
        &s->problem.v);
  TRY(cuMemAlloc(&s->o, (s->o_count + 2 * GUARD) * 2));
  TRY(cuMemAlloc(&s->lse, s->lse_count * 4));
  dil_dtype type = s->plan.table.dtype;
  s->call = (dil_call){
      .size = sizeof s->call,
      .q = tensor(s->problem.q, type, c->B, c->N, c->H, c->D),
      .k = tensor(s->problem.k, type, c->B, c->M, c->Hkv, c->D),
      .v = tensor(s->problem.v, type, c->B, c->M, c->Hkv, c->Dv),
      .o = tensor(s->o + GUARD * 2, type, c->B, c->N, c->H, c->Dv),
      .lse = tensor(s->lse, DIL_F32, c->B, c->H, c->N, 0)};
  static const bool chained[128];
  s->run = (cuda_run){.device = x->device, .table = &s->plan.table,
                      .call = &s->call, .B = c->B, .N = c->N, .M = c->M,
                      .scale = (float)s->problem.scale, .weight = 1,
                      .chained = chained};
}

static void setup_drop(setup *s) {
  TRY(cuMemFree(s->problem.q));
  TRY(cuMemFree(s->problem.k));
  TRY(cuMemFree(s->problem.v));
  TRY(cuMemFree(s->o));
  TRY(cuMemFree(s->lse));
}

static void compute_exact(bench *x, setup *s) {
  CUdeviceptr scratch;
  choose_samples(s);
  TRY(cuMemcpyHtoD(x->sample, s->sample, sizeof s->sample));
  TRY(cuMemAlloc(&scratch, (size_t)SAMPLES * s->c->M * 8));
  RUN(x->reference, SAMPLES, 256, &s->problem, &x->sample, &scratch, &x->exact);
  TRY(cuMemcpyDtoH(s->exact, x->exact, (size_t)SAMPLES * (s->c->Dv + 1) * 8));
  TRY(cuMemFree(scratch));
}

static void run_once(setup *s, const variant *v) {
  if (cuda_hopper.launch(&s->run, 0, &v->code)) {
    printf("%s %s: %s\n", s->c->name, v->name, dil_last_error());
    exit(1);
  }
  TRY(cuCtxSynchronize());
}

typedef struct count_sum { uint64_t count, sum; } count_sum;

static count_sum inspect(bench *x, CUdeviceptr p, uint64_t n, int what) {
  count_sum found = {0};
  CUdeviceptr count = x->counts, sum = x->counts + 8;
  uint16_t bits = (uint16_t)what;
  TRY(cuMemsetD32(x->counts, 0, 4));
  RUN(x->inspect, 512, 256, &p, &n, &bits, &count, &sum);
  TRY(cuMemcpyDtoH(&found, x->counts, sizeof found));
  return found;
}

/* Relative error of O, largest error of lse; infinities must agree. */
static void compare(bench *x, setup *s, double *o_error, double *lse_error,
                    int *bad) {
  const bench_case *c = s->c;
  static float found[SAMPLES * 257];
  CUdeviceptr o = s->o + GUARD * 2;
  int N = c->N, H = c->H, Dv = c->Dv, element = c->element;
  RUN(x->gather, SAMPLES, 64, &o, &s->lse, &x->sample, &N, &H, &Dv, &element,
      &x->found);
  TRY(cuMemcpyDtoH(found, x->found, (size_t)SAMPLES * (Dv + 1) * 4));
  double square = 0, total = 0;
  *lse_error = 0;
  *bad = 0;
  for (int i = 0; i < SAMPLES; i++)
    for (int d = 0; d <= Dv; d++) {
      double have = found[i * (Dv + 1) + d], want = s->exact[i * (Dv + 1) + d];
      if (d == Dv && isinf(want)) *bad += have != want;
      else if (isnan(have)) ++*bad;
      else if (d == Dv) *lse_error = fmax(*lse_error, fabs(have - want));
      else square += (have - want) * (have - want), total += want * want;
    }
  *o_error = sqrt(square / (total > 0 ? total : 1));
}

/* Other K and V from position `at` on: no row before may change. */
static bool is_causal(bench *x, setup *s, const variant *v, int at) {
  const bench_case *c = s->c;
  if (c->right != 0 || c->B != 1) return true;
  uint64_t rows = (uint64_t)at - (uint64_t)(c->M - c->N), seed = 9;
  uint64_t n = rows * c->H * c->Dv, row = (uint64_t)c->Hkv * c->D;
  uint64_t rest = (uint64_t)(c->M - at) * row;
  int element = c->element;
  CUdeviceptr o = s->o + GUARD * 2, k = s->problem.k + at * row * 2;
  CUdeviceptr vv = s->problem.v + at * row * 2, keep_k, keep_v;
  count_sum before = inspect(x, o, n, 0);
  TRY(cuMemAlloc(&keep_k, rest * 2));
  TRY(cuMemAlloc(&keep_v, rest * 2));
  TRY(cuMemcpyDtoD(keep_k, k, rest * 2));
  TRY(cuMemcpyDtoD(keep_v, vv, rest * 2));
  RUN(x->fill, 512, 256, &k, &rest, &seed, &element);
  seed++;
  RUN(x->fill, 512, 256, &vv, &rest, &seed, &element);
  run_once(s, v);
  count_sum after = inspect(x, o, n, 0);
  TRY(cuMemcpyDtoD(k, keep_k, rest * 2));
  TRY(cuMemcpyDtoD(vv, keep_v, rest * 2));
  TRY(cuMemFree(keep_k));
  TRY(cuMemFree(keep_v));
  return before.sum == after.sum;
}

static bool check(bench *x, setup *s, variant *v) {
  if (cuda_hopper.open(&s->plan.table, &v->code) ||
      cuda_hopper.leaves(&s->run, 0, &v->code)) {
    printf("%-26s %-14s refused\n", s->c->name, v->name);
    return false;
  }
  double o_error, lse_error;
  int bad;
  CUdeviceptr o = s->o + GUARD * 2;
  TRY(cuMemsetD16(s->o, 0x7fc1, s->o_count + 2 * GUARD));
  TRY(cuMemsetD16(s->lse, 0x7fc1, s->lse_count * 2));
  run_once(s, v);
  count_sum first = inspect(x, o, s->o_count, 0x7fc1);
  count_sum lse = inspect(x, s->lse, s->lse_count * 2, 0x7fc1);
  uint64_t guards = inspect(x, s->o, GUARD, 0x7fc1).count +
                    inspect(x, o + s->o_count * 2, GUARD, 0x7fc1).count;
  compare(x, s, &o_error, &lse_error, &bad);
  run_once(s, v);
  bool same = inspect(x, o, s->o_count, 0x7fc1).sum == first.sum &&
              inspect(x, s->lse, s->lse_count * 2, 0x7fc1).sum == lse.sum;
  bool causal = is_causal(x, s, v, s->c->M - s->c->N / 3);
  double most = s->c->element == 1 ? 3e-3 : 4e-4;
  /* lse halves may look like poison by chance: whole words do not */
  bool right = o_error < most && lse_error < 1e-4 && !bad && same && causal &&
               !first.count && guards == 2 * GUARD;
  printf("%-26s %-14s %s: error %.1e lse %.0e nan %d unwritten %lld stray %lld"
         "%s%s\n", s->c->name, v->name, right ? "right" : "WRONG", o_error,
         lse_error, bad, (long long)first.count,
         (long long)(2 * GUARD - guards), same ? "" : " NOT THE SAME BITS",
         causal ? "" : " NOT CAUSAL");
  x->wrong += !right;
  return right;
}

static int compare_floats(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* A few launches of each variant in turn, each behind a flush of the cache; the
 * first of a turn only warms the instruction caches. */
static void time_case(bench *x, setup *s, const bool *use) {
  enum { TURNS = 6, EACH = 4, ROUNDS = TURNS * EACH };
  static float ms[VARIANTS][ROUNDS];
  double work = 2.0 * (s->c->D + s->c->Dv) * count_pairs(s->c, &s->problem);
  for (int turn = 0; turn < TURNS; turn++)
    for (int at = 0; at < x->variants * (EACH + 1); at++) {
      int v = at / (EACH + 1), i = at % (EACH + 1) - 1;
      float t;
      if (!use[v]) continue;
      if (!getenv("HOPPER_HOT"))
        TRY(cuMemsetD8Async(x->flush, (unsigned char)i, 256 << 20, 0));
      TRY(cuEventRecord(x->from, 0));
      cuda_hopper.launch(&s->run, 0, &x->variant[v].code);
      TRY(cuEventRecord(x->to, 0));
      TRY(cuEventSynchronize(x->to));
      TRY(cuEventElapsedTime(&t, x->from, x->to));
      if (i >= 0) ms[v][turn * EACH + i] = t;
    }
  for (int v = 0; v < x->variants; v++) {
    if (!use[v]) continue;
    qsort(ms[v], ROUNDS, sizeof **ms, compare_floats);
    printf("%-26s %-14s median %8.4f best %8.4f ms  %6.1f TFLOP/s\n",
           s->c->name, x->variant[v].name, ms[v][ROUNDS / 2], ms[v][0],
           work / ms[v][ROUNDS / 2] * 1e-9);
  }
}

static void bench_case_run(bench *x, const bench_case *c, bool timed) {
  static setup s;
  bool use[VARIANTS] = {0};
  setup_make(x, c, &s);
  compute_exact(x, &s);
  for (int v = 0; v < x->variants; v++)
    if (x->variant[v].width == (c->D + 31) / 32 * 32 &&
        x->variant[v].element == c->element)
      use[v] = check(x, &s, &x->variant[v]);
  if (timed && c->flags & TIMED) time_case(x, &s, use);
  for (int v = 0; v < x->variants; v++)
    if (x->variant[v].code.memory) cuda_hopper.close(&x->variant[v].code);
  setup_drop(&s);
}

int main(int count, char **arguments) {
  static bench x;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (count < 3) return 2;
  bool timed = strcmp(arguments[1], "check"), only = !strcmp(arguments[1], "time");
  bench_open(&x, arguments[2]);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (only && !(cases[i].flags & TIMED)) continue;
    if (count > 3 && strncmp(cases[i].name, arguments[3], strlen(arguments[3])))
      continue;
    bench_case_run(&x, &cases[i], timed);
  }
  printf("%d wrong\n", x.wrong);
  return x.wrong != 0;
}
