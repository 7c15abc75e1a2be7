/* test_ranks.c - ranks of a host against one call of the whole: o, lse and all
 * gradients, also where a sequence has fewer rows than there are ranks. The
 * ranks are threads, which meet at a file. With DIL_TEST_DEVICE=cuda each has a
 * GPU of its own, and the call of the whole is the processor's. */
#include "runtime/rank/rank.h"
#include "tests/support/failing_device.h"
#include "tests/support/gpu.h"
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *text =
    "pattern p { heads 4 kv 2; head_dim 16; dtype f32; causal;\n"
    " input slope : f32[H] gradient; score s - slope[h] * (i - j);\n"
    " branch { } }\nkernel k = p backward;\n";

enum { RANKS_MOST = 3, BATCH = 2, HEADS = 4, WIDTH = 16, ROWS_MOST = 100 };

static int32_t ranks = RANKS_MOST;

/* The tensors that a call reads and writes. */
enum { Q, K, V, O, D_O, DQ, DK, DV, LSE, DLSE, PARTS };
static const int heads_of[PARTS] = {4, 2, 2, 4, 4, 4, 2, 2, 4, 4};

/* Tensors of `rows` rows: 4 dimensions, but lse and dlse have [B, H, rows]. */
typedef struct row_tensors {
  int64_t rows;
  float *at[PARTS];
  DLTensor tensor[PARTS];
  int64_t shape[PARTS][4], stride[PARTS][4], slope_shape;
  DLTensor slope, d_slope;
  const DLTensor *inputs;
  DLTensor *d_inputs;
  float slopes[HEADS], d_slopes[HEADS];
} row_tensors;

static int64_t width_of(int part) {
  return part >= LSE ? 1 : WIDTH;
}

/* Row-major, and without elements as PyTorch says it. */
static void stride_make(const DLTensor *t, int64_t *stride) {
  int64_t next = 1;
  for (int32_t axis = t->ndim; axis-- > 0;) {
    stride[axis] = next;
    next *= t->shape[axis] ? t->shape[axis] : 1;
  }
}

/* Without rows a tensor has no memory, but gradients have an address. */
static bool has_memory(int part, int64_t rows) {
  return rows || (part >= DQ && part <= DV);
}

static void tensors_make(row_tensors *t, int64_t rows) {
  static const float slopes[HEADS] = {0.1f, 0.2f, 0.3f, 0.4f};
  *t = (row_tensors){.rows = rows, .slope_shape = HEADS};
  memcpy(t->slopes, slopes, sizeof slopes);
  for (int i = 0; i < PARTS; i++) {
    int64_t floats = BATCH * rows * heads_of[i] * width_of(i);
    bool sums = i >= LSE;
    int64_t shape[4] = {BATCH, sums ? heads_of[i] : rows,
                        sums ? rows : heads_of[i], WIDTH};
    memcpy(t->shape[i], shape, sizeof shape);
    t->at[i] = has_memory(i, rows) ? calloc((size_t)floats + 1, sizeof(float))
                                   : NULL;
    t->tensor[i] = (DLTensor){t->at[i], {kDLCPU, 0}, sums ? 3 : 4,
                              {kDLFloat, 32, 1}, t->shape[i], t->stride[i], 0};
    stride_make(&t->tensor[i], t->stride[i]);
  }
  t->slope = (DLTensor){t->slopes, {kDLCPU, 0}, 1, {kDLFloat, 32, 1},
                        &t->slope_shape, NULL, 0};
  t->d_slope = t->slope;
  t->d_slope.data = t->d_slopes;
  t->inputs = &t->slope;
  t->d_inputs = &t->d_slope;
}

static void tensors_free(row_tensors *t) {
  for (int i = 0; i < PARTS; i++) free(t->at[i]);
}

static dil_arguments arguments_of(row_tensors *t) {
  dil_arguments a = DIL_ARGUMENTS_INIT;
  a.q = &t->tensor[Q];
  a.k = &t->tensor[K];
  a.v = &t->tensor[V];
  a.o = &t->tensor[O];
  a.lse = &t->tensor[LSE];
  a.inputs = &t->inputs;
  a.input_count = 1;
  return a;
}

static dil_gradients gradients_of(row_tensors *t, const dil_arguments *a) {
  dil_gradients g = DIL_GRADIENTS_INIT;
  g.forward = a;
  g.d_o = &t->tensor[D_O];
  g.dlse = &t->tensor[DLSE];
  g.dq = &t->tensor[DQ];
  g.dk = &t->tensor[DK];
  g.dv = &t->tensor[DV];
  g.inputs = &t->d_inputs;
  g.input_count = 1;
  return g;
}

/* The elements of a row, over batch rows, heads and numbers of a head. */
static int64_t row_count(int part) {
  return BATCH * heads_of[part] * width_of(part);
}

/* Element `e` of a row. In lse and dlse heads are `rows` apart. */
static float *element(const row_tensors *t, int part, int64_t row, int64_t e) {
  int64_t width = width_of(part), heads = heads_of[part];
  int64_t d = e % width, h = e / width % heads, b = e / width / heads;
  int64_t at = part >= LSE ? (b * heads + h) * t->rows + row
                           : ((b * t->rows + row) * heads + h) * width + d;
  return &t->at[part][at];
}

/* ---- a rank -------------------------------------------------------------- */

enum { PLACE = 64 }; /* bytes of the name of a place to meet */

typedef struct rank_scene {
  dil_kernel *kernel;
  row_tensors whole;
  dil_sizes sizes;
  char meet[PLACE];
  int32_t layout;
} rank_scene;

typedef struct rank_thread {
  const rank_scene *s;
  int32_t rank;
  bool whole;              /* its kernel on a GPU is for whole sequences */
  pthread_t thread;
  row_tensors own;
  int64_t position[ROWS_MOST];
  dil_context *gpu;        /* NULL: the processor */
  void *there[PARTS + 2];  /* the rows, slopes and their gradient on it */
  dil_status status, later; /* of its calls; of one more, where a rank fails */
  char text[256];
} rank_thread;

static bool is_given(int part) {
  return part < O || part == D_O || part == DLSE;
}

/* The rank's rows of what the whole gives. */
static void take_rows(rank_thread *r) {
  for (int i = 0; i < PARTS; i++)
    for (int64_t n = 0; n < r->own.rows && is_given(i); n++)
      for (int64_t e = 0; e < row_count(i); e++)
        *element(&r->own, i, n, e) =
            *element(&r->s->whole, i, r->position[n], e);
}

/* ---- on a GPU ------------------------------------------------------------ */

static int64_t bytes_of(const DLTensor *t) {
  int64_t bytes = (int64_t)sizeof(float);
  for (int32_t i = 0; i < t->ndim; i++) bytes *= t->shape[i];
  return bytes;
}

/* All tensors of a rank: those of its rows first. */
static DLTensor *tensor_of(rank_thread *r, int part) {
  row_tensors *t = &r->own;
  return part < PARTS ? &t->tensor[part] : part == PARTS ? &t->slope : &t->d_slope;
}

/* Copies them to the device, where they stay. */
static dil_status move_up(rank_thread *r) {
  char name[24];
  snprintf(name, sizeof name, "%s", r->gpu ? dil_context_device(r->gpu) : "");
  dil_status status = DIL_OK;
  for (int i = 0; i < PARTS + 2 && r->gpu && !status; i++) {
    DLTensor *t = tensor_of(r, i);
    t->device = (DLDevice){kDLCUDA, atoi(strchr(name, ':') + 1)};
    if (!t->data) continue;
    status = dil_memory_take(r->gpu, bytes_of(t) + 1, &r->there[i]);
    if (!status)
      status = dil_memory_write(r->gpu, r->there[i], t->data, bytes_of(t));
    t->data = r->there[i];
  }
  return status;
}

/* Copies them back. */
static dil_status move_down(rank_thread *r) {
  dil_status status = DIL_OK;
  for (int i = 0; i < PARTS + 2 && r->gpu && !status; i++) {
    float *here = i < PARTS ? r->own.at[i]
                  : i == PARTS ? r->own.slopes : r->own.d_slopes;
    if (!r->there[i]) continue;
    status = dil_memory_read(r->gpu, here, r->there[i],
                             bytes_of(tensor_of(r, i)));
  }
  return status;
}

static void close_gpu(rank_thread *r) {
  for (int i = 0; i < PARTS + 2; i++)
    if (r->there[i]) dil_memory_give(r->gpu, r->there[i]);
  dil_context_free(r->gpu);
}

/* A kernel on the GPU of the rank's number. */
static dil_status make_kernel(rank_thread *r, dil_kernel **made) {
  dil_context_options on = DIL_CONTEXT_OPTIONS_INIT;
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  dil_program *parsed = NULL;
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", r->rank);
  on.device = device;
  o.ranks = !r->whole;
  dil_status status = dil_context_new(&on, &r->gpu);
  if (!status)
    status = dil_program_parse(r->gpu, "ranks", text, strlen(text), NULL,
                               &parsed);
  if (!status) status = dil_program_kernel(parsed, NULL, &o, made);
  if (parsed) dil_program_free(parsed);
  return status;
}

static int32_t failing = -1; /* the rank whose device fails a request; -1: none */

static dil_status make_gradients(const rank_thread *r, dil_rank *rank,
                                 const dil_gradients *g) {
  ring_device_calls calls;
  if (r->rank != failing) return dil_rank_backward(rank, &r->s->sizes, g);
  const ring_device_calls *own = failing_device_begin(rank->device, &calls);
  dil_status status = dil_rank_backward(rank, &r->s->sizes, g);
  rank->device->calls = own;
  return status;
}

static dil_status call_both(rank_thread *r, dil_rank *rank) {
  int64_t rows = 0;
  dil_status status =
      dil_rank_positions(rank, r->s->sizes.queries, r->position, &rows);
  if (status) return status;
  tensors_make(&r->own, rows);
  take_rows(r);
  status = move_up(r);
  const dil_arguments a = arguments_of(&r->own);
  const dil_gradients g = gradients_of(&r->own, &a);
  if (!status) status = dil_rank_run(rank, &r->s->sizes, &a);
  if (!status) status = make_gradients(r, rank, &g);
  if (failing < 0) return status ? status : move_down(r);
  snprintf(r->text, sizeof r->text, "%s", dil_last_error());
  r->later = dil_rank_backward(rank, &r->s->sizes, &g);
  return status;
}

static void *run_rank(void *context) {
  rank_thread *r = context;
  dil_rank_options o = DIL_RANK_OPTIONS_INIT;
  dil_rank *rank = NULL;
  dil_kernel *own = r->s->kernel;
  o.meet = r->s->meet;
  o.rank = r->rank;
  o.ranks = ranks;
  o.layout = r->s->layout;
  r->status = gpu_wanted() ? make_kernel(r, &own) : DIL_OK;
  if (!r->status) r->status = dil_rank_new(own, &o, &rank);
  if (!r->status) r->status = call_both(r, rank);
  if (failing < 0 || !rank)
    snprintf(r->text, sizeof r->text, "%s", dil_last_error());
  dil_rank_free(rank);
  if (own != r->s->kernel) dil_kernel_free(own);
  close_gpu(r);
  return NULL;
}

/* ---- against the whole --------------------------------------------------- */

static void expect_close(float found, float wanted, const char *what, int at) {
  ck_assert_msg(fabsf(found - wanted) <= 2e-5f * (1 + fabsf(wanted)),
                "%s %d: %g, not %g", what, at, (double)found, (double)wanted);
}

static void compare_rank(const rank_thread *r) {
  for (int i = 0; i < PARTS; i++)
    for (int64_t n = 0; n < r->own.rows; n++)
      for (int64_t e = 0; e < row_count(i); e++)
        expect_close(*element(&r->own, i, n, e),
                     *element(&r->s->whole, i, r->position[n], e), "part", i);
  for (int h = 0; h < HEADS; h++)
    expect_close(r->own.d_slopes[h], r->s->whole.d_slopes[h], "slope of head",
                 h);
}

/* Of this process; the link takes the file away again. */
static void name_place(char place[PLACE], int32_t number) {
  snprintf(place, PLACE, "/tmp/test_ranks.%d.%d", (int)getpid(), (int)number);
}

static void scene_open(rank_scene *s, int64_t rows, int32_t layout) {
  uint32_t seed = 1;
  *s = (rank_scene){.kernel = host_kernel(NULL, text),
               .sizes = {BATCH, rows, rows},
               .layout = layout};
  name_place(s->meet, layout);
  tensors_make(&s->whole, rows);
  for (int i = 0; i < PARTS; i++)
    for (int64_t n = 0; n < rows * row_count(i) && is_given(i); n++) {
      seed = seed * 1664525u + 1013904223u;
      s->whole.at[i][n] = (float)(seed >> 8) / (float)(1 << 23) - 1;
    }
  const dil_arguments a = arguments_of(&s->whole);
  const dil_gradients g = gradients_of(&s->whole, &a);
  host_must(dil_kernel_run(s->kernel, &a));
  host_must(dil_kernel_backward(s->kernel, &g));
}

/* The last rank's kernel may be for whole sequences. */
static void run_ranks(const rank_scene *s, bool whole,
                      rank_thread each[RANKS_MOST]) {
  for (int32_t i = 0; i < ranks; i++) {
    each[i] = (rank_thread){.s = s, .rank = i, .whole = whole && i == ranks - 1};
    ck_assert(!pthread_create(&each[i].thread, NULL, run_rank, &each[i]));
  }
  for (int32_t i = 0; i < ranks; i++) pthread_join(each[i].thread, NULL);
}

static void scene_close(rank_scene *s) {
  tensors_free(&s->whole);
  dil_kernel_free(s->kernel);
}

static void ranks_agree(int64_t rows, int32_t layout) {
  rank_scene s;
  rank_thread each[RANKS_MOST];
  scene_open(&s, rows, layout);
  run_ranks(&s, false, each);
  for (int32_t i = 0; i < ranks; i++) {
    ck_assert_msg(!each[i].status, "rank %d: %s", i, each[i].text);
    compare_rank(&each[i]);
    tensors_free(&each[i].own);
  }
  scene_close(&s);
}

START_TEST(ranks_are_the_whole) {
  ranks_agree(ROWS_MOST, _i);
}
END_TEST

/* Some ranks have no rows. */
START_TEST(so_are_ranks_without_rows) {
  ranks_agree(2, _i);
  ranks_agree(1, _i);
}
END_TEST

/* A rank on a GPU says by name what it cannot take. */
START_TEST(a_gpu_refuses_by_name) {
  dil_rank_options o = DIL_RANK_OPTIONS_INIT;
  rank_thread r = {.rank = 0};
  dil_kernel *own = NULL;
  dil_rank *rank = NULL;
  dil_sizes sizes = {BATCH, 9, 9};
  char place[PLACE];
  if (!gpu_wanted()) return;
  name_place(place, -1);
  o.meet = place;
  host_must(make_kernel(&r, &own));
  host_must(dil_rank_new(own, &o, &rank));
  tensors_make(&r.own, 9);
  const dil_arguments a = arguments_of(&r.own);
  const dil_gradients g = gradients_of(&r.own, &a);
  host_refused(dil_rank_run(rank, &sizes, &a), DIL_USAGE, "q is on");
  host_must(move_up(&r));
  r.own.tensor[DK].strides = (int64_t[]){9 * 32, 16, 9 * 16, 1};
  host_refused(dil_rank_backward(rank, &sizes, &g), DIL_UNSUPPORTED,
               "dk is not row-major");
  dil_rank_free(rank);
  dil_kernel_free(own);
  close_gpu(&r);
  tensors_free(&r.own);
}
END_TEST

/* A rank whose kernel is for whole sequences: all hear why, and before they have
 * waited in vain. */
START_TEST(all_hear_of_a_kernel_for_whole_sequences) {
  rank_scene s;
  rank_thread each[RANKS_MOST];
  if (!gpu_wanted()) return;
  scene_open(&s, 9, DIL_RANKS_ZIGZAG);
  run_ranks(&s, true, each);
  for (int32_t i = 0; i < ranks; i++) {
    dil_status want = i == ranks - 1 ? DIL_USAGE : DIL_PEER;
    ck_assert_msg(each[i].status == want && strstr(each[i].text, "set `ranks`"),
                  "rank %d: %s: %s", i, dil_status_name(each[i].status),
                  each[i].text);
  }
  scene_close(&s);
}
END_TEST

/* A rank that fails says why, and the others name it, unless they were `done`. No
 * rank goes on after that. */
static void expect_named(const rank_thread *r, bool done) {
  bool named = r->rank == failing
                   ? r->status == DIL_INTERNAL
                   : r->status == DIL_PEER && strstr(r->text, "rank 1");
  ck_assert_msg(done || (named && strstr(r->text, "the device refuses")),
                "rank %d: %s: %s", r->rank, dil_status_name(r->status), r->text);
  ck_assert_int_ne(r->later, DIL_OK);
}

/* Request number `left` fails; whether there was one. Where the last is refused, to
 * write what all have added up, the others may be done. */
static bool fail_request(device_request kind, int32_t left) {
  rank_scene s;
  rank_thread each[RANKS_MOST];
  scene_open(&s, 20, DIL_RANKS_ZIGZAG);
  failing = 1;
  failing_device_set(kind, left);
  run_ranks(&s, false, each);
  for (int32_t i = 0; i < ranks; i++) {
    if (failing_device_struck())
      expect_named(&each[i],
                   i != failing && kind == DEVICE_WRITE && !each[i].status);
    tensors_free(&each[i].own);
  }
  failing = -1;
  scene_close(&s);
  return failing_device_struck();
}

START_TEST(a_rank_whose_gradients_fail_is_named) {
  int32_t left = 0;
  if (ranks < 2) return;
  while (fail_request((device_request)_i, left)) left++;
  if (_i != DEVICE_WRITE || gpu_wanted()) ck_assert_int_gt(left, 0);
}
END_TEST

/* As many ranks as there are GPUs for. False: there is no GPU where one is wanted. */
static bool count_ranks(void) {
  int32_t count = RANKS_MOST;
  if (gpu_wanted() && gpu_module()->devices(&count)) {
    fprintf(stderr, "%s\n", dil_last_error());
    return false;
  }
  if (count < RANKS_MOST) ranks = count;
  if (ranks < 1) fprintf(stderr, "there is no GPU\n");
  if (ranks == 1) fprintf(stderr, "# one GPU: rows of ranks do not travel here\n");
  return ranks >= 1;
}

int main(void) {
  host_modules();
  if (!count_ranks()) return 1;
  Suite *suite = suite_create("ranks");
  TCase *tests = tcase_create("ranks");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, ranks_are_the_whole, 0, DIL_RANKS_STRIPED + 1);
  tcase_add_loop_test(tests, so_are_ranks_without_rows, 0,
                      DIL_RANKS_STRIPED + 1);
  tcase_add_test(tests, a_gpu_refuses_by_name);
  tcase_add_test(tests, all_hear_of_a_kernel_for_whole_sequences);
  tcase_add_loop_test(tests, a_rank_whose_gradients_fail_is_named, 0,
                      DEVICE_REQUESTS);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
