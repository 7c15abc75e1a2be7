/* test_stream.c - a call cut into chunks that come one by one, against the
 * oracle: any cut, lengths, dtypes; what is brought is just what is needed, and
 * what is in memory stays within its bound. */
#include "compiler/analysis/cover.h"
#include "runtime/base/status.h"
#include "tests/support/stream_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define P(body) "pattern p { heads 4; head_dim 16; dtype f32; " body " }"

static const char *const patterns[] = {
    P("causal; segments 32, 64, 128; dilations 1, 2, 4;"),
    P("branch { }"),
    P("phase block; segments 48, 90; dilations 3, 2;"),
    P("causal; combine union; branch { window 20, 0; } branch { dilation 5; }"),
    P("combine mean; branch { segment 50; } branch { dilation 3; }"),
    P("heads split; branch { segment 40; } branch { dilation 2; }"),
    "pattern p { heads 6 kv 2; head_dim 16; dtype f32; causal; phase kv;"
    " segments 40, 200; dilations 1, 4; dropout 1.0 / 8; }",
    P("causal; score s - 0.1 * abs(i - j) * (h + 1); branch { dilation 2; }"),
    P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; branch { }"),
    P("input far : f32[H, N]; score s + far[h, row];"
      " branch { segment 64; } branch { window 9, 30; mask (i + j) % 3 < M; }"),
    P("input z : f32[H] gradient; sink z[h]; branch { sink 0.1 * row; }"
      " branch { segment 40; dilation 3; heads 1..2; sink log(2.0); }"),
    P("combine mean; sink 0.5; branch { segment 50; sink -1.0; }"
      " branch { dilation 3; sink h == 1 ? inf : -inf; }"),
};
enum {
  PATTERNS = sizeof patterns / sizeof patterns[0],
  UNMASKED = 7 /* the first ones: geometry alone decides */
};

/* Rows of a chunk: batch rows, queries, keys. */
static const stream_chunks cuts[] = {
    {2, 400, 400}, {1, 400, 400}, {2, 64, 400}, {2, 400, 40},
    {1, 50, 33},   {2, 17, 128},  {3, 128, 64}, {1, 5, 100},
};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

static void wipe(const dil_tensor *t) {
  if (t->data && dil_tensor_count(t))
    memset(t->data, 0xFF,
           (size_t)dil_tensor_count(t) * dil_dtype_size(t->dtype));
}

/* A run of these cuts: its rows, its count beforehand, its pairs. */
static stream_facts run_cut(stream_case *c, stream_chunks cut) {
  dil_stream s = stream_case_stream(c, cut);
  stream_facts counted;
  wipe(&c->d->call.o);
  wipe(&c->d->call.lse);
  ck_assert_msg(!stream_run(&s), "%s", dil_last_error());
  ck_assert(!stream_count(&s.shape, &counted));
  ck_assert_int_eq(s.facts.chunks, counted.chunks);
  ck_assert_int_eq(s.facts.skipped, counted.skipped);
  ck_assert_int_eq(s.facts.loaded, counted.loaded);
  ck_assert_int_eq(counted.chunks + counted.skipped, stream_pairs(&s.shape));
  ck_assert_int_eq(atomic_load(&c->pairs), stream_pairs(&s.shape));
  return s.facts;
}

static void expect_good(stream_case *c, stream_chunks cut) {
  run_cut(c, cut);
  const char *problem = data_compare(c->d);
  ck_assert_msg(!*problem, "chunks of %d, %d, %d: %s", (int)cut.batch,
                (int)cut.queries, (int)cut.keys, problem);
}

START_TEST(cuts_agree_with_the_oracle) {
  static const unsigned forces[] = {0, FORCE_CHAIN, FORCE_GENERAL};
  stream_case *c = stream_case_open(patterns[_i / 3],
                                    (call_shape){.queries = 171, .keys = 171},
                                    forces[_i % 3]);
  for (int i = 0; i < CUTS && !c->k->refused; i++) expect_good(c, cuts[i]);
  stream_case_close(c);
}
END_TEST

START_TEST(other_sizes) {
  static const int64_t sizes[][3] = {{2, 3, 200}, {1, 90, 40}, {5, 2, 2},
                                     {2, 5, 0},   {2, 0, 9}};
  for (int i = 0; i < 5; i++) {
    call_shape of = {.batch = sizes[i][0], .queries = sizes[i][1],
                     .keys = sizes[i][2],
                     .layout = (guard_layout)(i % GUARD_LAYOUT_COUNT)};
    stream_case *c = stream_case_open(patterns[_i], of, 0);
    dil_stream s = stream_case_stream(c, (stream_chunks){1, 30, 27});
    ck_assert_msg(!stream_run(&s), "%s", dil_last_error());
    const char *problem = data_compare(c->d);
    ck_assert_msg(!*problem, "size %d: %s", i, problem);
    stream_case_close(c);
  }
}
END_TEST

START_TEST(batch_rows_of_their_own_lengths) {
  static const int32_t lengths[] = {171, 60, 0, 121};
  call_shape of = {.batch = 4, .queries = 100, .keys = 171, .lengths = lengths};
  stream_case *c = stream_case_open(patterns[_i], of, 0);
  for (int i = 0; i < CUTS; i++) {
    stream_chunks cut = cuts[i];
    cut.batch = 1;
    expect_good(c, cut);
  }
  stream_case_close(c);
}
END_TEST

static char *output_of(const stream_case *c, size_t *size) {
  const dil_tensor *o = &c->d->call.o;
  *size = (size_t)dil_tensor_count(o) * dil_dtype_size(o->dtype);
  char *copy = malloc(*size);
  ck_assert(copy != NULL);
  return memcpy(copy, o->data, *size);
}

/* Where tiles of keys begin with a segment, other cuts between queries give
 * the same bits; the same cuts always do. */
START_TEST(order_of_keys_decides_the_bits) {
  stream_case *c = stream_case_open(
      patterns[_i], (call_shape){.queries = 300, .keys = 300}, 0);
  bool windows = _i == 3 || _i == 9;
  static const stream_chunks others[] = {
      {2, 300, 96}, {1, 300, 96}, {2, 150, 96}, {1, 170, 96}};
  size_t size;
  run_cut(c, others[0]);
  char *first = output_of(c, &size);
  for (int i = 0; i < (windows ? 2 : 4); i++) {
    run_cut(c, others[i]);
    ck_assert(!memcmp(first, c->d->call.o.data, size));
  }
  free(first);
  stream_case_close(c);
}
END_TEST

/* ---- what is brought ----------------------------------------------------- */

static bool is_reached(const stream_case *c, int64_t kv, int64_t j,
                       int64_t first, int64_t end) {
  const pattern *p = c->s->pattern;
  int64_t group = p->heads / p->kv_heads;
  int64_t origin = c->d->shape.keys - c->d->shape.queries;
  expr_point point = {.N = (int32_t)c->d->shape.queries,
                      .M = (int32_t)c->d->shape.keys};
  for (int64_t h = kv * group; h < (kv + 1) * group; h++)
    for (int64_t n = first; n < end; n++)
      for (int32_t b = 0; b < p->branch_count; b++)
        if (pattern_reaches(p, b, h, n + origin, j, &point)) return true;
  return false;
}

/* Rows of K among positions j0..j1-1 that queries first..end-1 reach. */
static int64_t count_rows(const stream_case *c, int64_t first, int64_t end,
                          int64_t j0, int64_t j1) {
  int64_t rows = 0;
  for (int64_t j = j0; j < j1; j++)
    for (int64_t kv = 0; kv < c->s->pattern->kv_heads; kv++)
      rows += is_reached(c, kv, j, first, end);
  return rows;
}

/* Every pair, against a count key by key. */
START_TEST(just_the_needed_rows_are_brought) {
  stream_case *c = stream_case_open(
      patterns[_i], (call_shape){.queries = 170, .keys = 190}, 0);
  const pattern *p = c->s->pattern;
  dil_stream s = stream_case_stream(c, (stream_chunks){2, 60, 38});
  stream_walk w;
  dil_status status;
  int64_t sum = 0, first = 0, end = 0;
  stream_walk_begin(&w, &s.shape, (stream_place){0});
  while (stream_walk_next(&w, &status)) {
    const stream_job *j = &w.job;
    if (!j->keys) {
      first = j->first;
      end = first + j->rows.count;
      continue;
    }
    int64_t rows = count_rows(c, first, end, j->first,
                              j->first + j->rows.count);
    ck_assert_int_eq(j->route.rows, rows);
    ck_assert_int_eq(j->bytes, j->there ? 0
                                        : 2 * 4 * rows *
                                              (p->head_dim + p->value_dim));
    sum += rows;
  }
  stream_walk_end(&w);
  ck_assert_int_eq(status, DIL_OK);
  for (first = 0; first < 170; first += 60)
    sum -= count_rows(c, first, first + 60 < 170 ? first + 60 : 170, 0, 190);
  ck_assert_int_eq(sum, 0); /* none of them is in a pair that was skipped */
  stream_case_close(c);
}
END_TEST

/* What is in a buffer still is not brought again; what no query of a chunk
 * reaches is not looked at. */
START_TEST(chunks_are_kept_and_skipped) {
  stream_case *c = stream_case_open(
      patterns[1], (call_shape){.queries = 200, .keys = 100}, 0);
  int64_t q = 2 * 200 * 4 * 16 * 4, kv = 2 * 100 * 4 * 32 * 4;
  ck_assert_int_eq(run_cut(c, (stream_chunks){2, 40, 100}).loaded, q + kv);
  ck_assert_int_eq(run_cut(c, (stream_chunks){2, 40, 50}).loaded, q + kv);
  ck_assert_int_eq(run_cut(c, (stream_chunks){2, 40, 25}).loaded, q + 5 * kv);
  stream_case_close(c);
  c = stream_case_open(P("branch { segment 50; }"),
                       (call_shape){.queries = 200, .keys = 200}, 0);
  stream_facts f = run_cut(c, (stream_chunks){2, 50, 50});
  ck_assert_int_eq(f.chunks, 4);
  ck_assert_int_eq(f.skipped, 12);
  stream_case_close(c);
}
END_TEST

/* ---- dtypes -------------------------------------------------------------- */

static dil_tensor widened(const dil_tensor *from) {
  int64_t count = dil_tensor_count(from);
  float *wide = malloc((size_t)(count + 1) * sizeof *wide);
  ck_assert(wide != NULL);
  for (int64_t i = 0; i < count; i++)
    wide[i] = (float)dil_element_read(from->data, from->dtype, i);
  return dil_tensor_make(wide, DIL_F32, 4, from->shape);
}

/* Arrays of another float type are rounded as they come, and o as it goes. */
START_TEST(arrays_are_converted) {
  stream_case *c =
      stream_case_open("pattern p { heads 2; head_dim 24; dtype bf16; causal;"
                       " segments 32, 128; dilations 1, 2; }",
                       (call_shape){.queries = 171, .keys = 171}, 0);
  stream_chunks cut = {1, 60, 64};
  run_cut(c, cut);
  size_t size;
  uint16_t *narrow = (uint16_t *)output_of(c, &size);
  dil_call call = c->d->call;
  call.q = widened(&call.q);
  call.k = widened(&call.k);
  call.v = widened(&call.v);
  call.o = widened(&call.o);
  dil_stream s = stream_case_stream(c, cut);
  s.call = &call;
  wipe(&call.o);
  ck_assert_msg(!stream_run(&s), "%s", dil_last_error());
  const float *got = call.o.data;
  for (size_t i = 0; i < size / 2; i++)
    ck_assert(got[i] == dil_bf16_to_f32(narrow[i]));
  free(call.q.data);
  free(call.k.data);
  free(call.v.data);
  free(call.o.data);
  free(narrow);
  stream_case_close(c);
}
END_TEST

/* ---- bounds and failures ------------------------------------------------- */

typedef struct counting {
  ring_device device;
  ring_device *real;
  int64_t bytes;
} counting;
static counting *counter; /* the calls below have no other way to it */

static dil_status counted_take(ring_device *d, int64_t bytes, ring_content content,
                               void **memory) {
  counter->bytes += bytes;
  return counter->real->calls->take(d, bytes, content, memory);
}

/* Buffers and states of a plan, as the device is asked for them. */
START_TEST(memory_stays_within_its_bound) {
  stream_case *c = stream_case_open(
      patterns[_i], (call_shape){.queries = 300, .keys = 300}, 0);
  static const int64_t bounds[] = {100000, 250000, 400000, 100000000};
  ring_device_calls calls = *c->device->calls;
  counting count = {.real = &(ring_device){c->device->calls}};
  counter = &count;
  calls.take = counted_take;
  c->device->calls = &calls;
  for (int i = 0; i < 4; i++) {
    dil_stream s = stream_case_stream(c, (stream_chunks){0});
    dil_status status = stream_plan(&s.shape, 2, bounds[i]);
    ck_assert_msg(!status || (i == 0 && status == DIL_USAGE), "%s",
                  dil_last_error());
    if (status) continue;
    count.bytes = 0;
    expect_good(c, s.shape.chunks);
    ck_assert_int_gt(count.bytes, 0);
    ck_assert_int_le(count.bytes, bounds[i]);
  }
  c->device->calls = count.real->calls;
  stream_case_close(c);
}
END_TEST

/* Bytes that a shape brings with these cuts. */
static int64_t brought(stream_shape shape, stream_chunks cut) {
  stream_facts counted;
  shape.chunks = cut;
  ck_assert(!stream_count(&shape, &counted));
  return counted.loaded;
}

/* Beside as many queries as keys: few of the first bring all keys often. */
START_TEST(cuts_for_a_device_bring_little) {
  stream_case *c =
      stream_case_open(patterns[_i], (call_shape){.queries = 9, .keys = 9}, 0);
  stream_shape shape = stream_case_stream(c, (stream_chunks){0}).shape;
  shape.N = shape.M = 40000;
  ck_assert_msg(!stream_plan(&shape, 0, 4 << 20), "%s", dil_last_error());
  stream_chunks cut = shape.chunks;
  int64_t even = (cut.queries + cut.keys) / 2;
  ck_assert_int_lt(cut.queries, shape.N);
  ck_assert_int_le(brought(shape, cut),
                   brought(shape, (stream_chunks){1, even, even}));
  if (!shape.table->branches[0].segment)
    ck_assert_int_gt(cut.queries, cut.keys);
  stream_case_close(c);
}
END_TEST

START_TEST(bound_below_one_row_is_refused) {
  stream_case *c =
      stream_case_open(patterns[1], (call_shape){.queries = 9, .keys = 9}, 0);
  dil_stream s = stream_case_stream(c, (stream_chunks){0});
  ck_assert_int_eq(stream_plan(&s.shape, 1, 100), DIL_USAGE);
  ck_assert(strstr(dil_last_error(), "100 bytes are too few to stream"));
  stream_case_close(c);
}
END_TEST

static int32_t failures_after;

static dil_status fail_later(ring_device *d, const dil_call *call,
                             const dil_shard *shard) {
  (void)d, (void)call, (void)shard;
  if (failures_after-- > 0) return DIL_OK;
  return dil_fail(DIL_INTERNAL, "passes have failed");
}

/* At any pass, with the thread that loads wherever it is. */
START_TEST(failure_ends_both_threads) {
  stream_case *c = stream_case_open(
      patterns[1], (call_shape){.queries = 171, .keys = 171}, 0);
  ring_device_calls calls = *c->device->calls;
  const ring_device_calls *real = c->device->calls;
  calls.advance = fail_later;
  c->device->calls = &calls;
  for (int after = 0; after < 20; after++) {
    dil_stream s = stream_case_stream(c, (stream_chunks){1, 40, 16});
    failures_after = after;
    ck_assert_int_eq(stream_run(&s), DIL_INTERNAL);
    ck_assert_str_eq(dil_last_error(), "passes have failed");
  }
  c->device->calls = real;
  stream_case_close(c);
}
END_TEST

/* The text comes from the other thread. */
START_TEST(failure_to_load_is_told) {
  stream_case *c =
      stream_case_open(P("segments 8192, 8192; dilations 71, 73;"),
                       (call_shape){.queries = 200, .keys = 8000}, 0);
  dil_stream s = stream_case_stream(c, (stream_chunks){1, 200, 8000});
  ck_assert_int_eq(stream_run(&s), DIL_UNSUPPORTED);
  ck_assert_str_eq(dil_last_error(),
                   "dilations with a common period of 5183 in a sequence of "
                   "parts (at most 4096)");
  stream_case_close(c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("stream");
  TCase *tests = tcase_create("stream");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, cuts_agree_with_the_oracle, 0, PATTERNS * 3);
  tcase_add_loop_test(tests, other_sizes, 0, PATTERNS);
  tcase_add_loop_test(tests, batch_rows_of_their_own_lengths, 0, PATTERNS);
  tcase_add_loop_test(tests, order_of_keys_decides_the_bits, 0, PATTERNS);
  tcase_add_loop_test(tests, just_the_needed_rows_are_brought, 0, UNMASKED);
  tcase_add_test(tests, chunks_are_kept_and_skipped);
  tcase_add_test(tests, arrays_are_converted);
  tcase_add_loop_test(tests, memory_stays_within_its_bound, 0, PATTERNS);
  tcase_add_loop_test(tests, cuts_for_a_device_bring_little, 0, UNMASKED);
  tcase_add_test(tests, bound_below_one_row_is_refused);
  tcase_add_test(tests, failure_ends_both_threads);
  tcase_add_test(tests, failure_to_load_is_told);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
