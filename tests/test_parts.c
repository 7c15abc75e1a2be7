/* test_parts.c - a sequence computed in parts, as ranks of a ring would: each
 * owner's queries over each owner's keys, the state carried in between,
 * against the oracle. */
#include "../runtime/place.h"
#include "numeric.h"
#include <check.h>
#include <stdlib.h>

#define P(body) "pattern p { heads 4; head_dim 24; dtype f32; " body " }"

static const char *const patterns[] = {
    P("branch { }"),
    P("causal; branch { }"),
    P("causal; segments 32, 64, 128; dilations 1, 2, 4;"),
    P("phase block; segments 48, 90; dilations 3, 2;"),
    P("causal; combine union; branch { window 20, 0; } branch { dilation 5; }"),
    P("combine mean; branch { segment 50; } branch { dilation 3; }"),
    P("combine sum; branch { heads 0..1; } branch { heads 2..3; segment 9; }"),
    P("branch { segment 40; window 30, 30; mask (i + j) % 3 != 0; }"),
    P("dropout 1.0 / 8; causal; branch { } branch { segment 64; dilation 2; }"),
    P("score s - 0.1 * abs(i - j) * (h + 1); branch { dilation 2; phase 1; }"),
    P("branch { segment 7; }"), /* by rows */
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };
static const unsigned forces[] = {0, FORCE_CHAIN, FORCE_GENERAL};

/* The rows of a tensor [B, rows, H, D] that a comb names. */
static dil_tensor view(const dil_tensor *whole, dil_comb comb, int64_t origin) {
  dil_tensor t = *whole;
  t.data = (char *)whole->data + (comb.first - origin) * whole->stride[1] *
                                     (int64_t)dil_dtype_size(whole->dtype);
  t.stride[1] = whole->stride[1] * comb.step;
  t.shape[1] = comb.count;
  return t;
}

static dil_tensor view_lse(const dil_tensor *whole, dil_comb comb,
                           int64_t origin) {
  dil_tensor t = *whole;
  if (!t.data) return t;
  t.data = (float *)whole->data + (comb.first - origin);
  t.stride[2] = comb.step;
  t.shape[2] = comb.count;
  return t;
}

static void must(dil_status status) {
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
}

/* One comb of queries over every owner's keys. */
static void run_queries_of(data *d, const kernel_made *k, const ring_shape *ring,
                           dil_comb asking, dil_threads *threads) {
  const pattern *p = d->pattern;
  dil_call call = d->call;
  int64_t origin = ring->M - ring->N;
  int64_t count = d->shape.batch * asking.count * p->heads *
                 cpu_kernel_states(k->kernel);
  float *o = calloc((size_t)(count * p->value_dim), sizeof *o);
  float *lse = calloc((size_t)count, sizeof *lse);
  pool *scratch = pool_new_host(NULL, NULL);
  dil_part part = {.queries = asking, .B = d->shape.batch, .N = ring->N,
                   .M = ring->M, .o = o, .lse = lse};
  call.q = view(&d->call.q, asking, origin);
  call.o = view(&d->call.o, asking, origin);
  call.lse = view_lse(&d->call.lse, asking, origin);
  for (int32_t from = 0, begun = 0; from < ring->ranks; from++) {
    shard owned = place_keys(ring, from);
    for (int32_t i = 0; i < owned.count; i++) {
      part.keys = owned.comb[i];
      call.k = view(&d->call.k, part.keys, 0);
      call.v = view(&d->call.v, part.keys, 0);
      if (!begun++) must(cpu_kernel_begin(k->kernel, threads, &call, &part));
      must(cpu_kernel_advance(k->kernel, threads, scratch, &call, &part));
    }
  }
  must(cpu_kernel_finish(k->kernel, threads, &call, &part));
  dil_pool_free(scratch);
  free(o);
  free(lse);
}

static void check_parts(const subject *s, unsigned force, call_shape size) {
  data *d = data_new(s, size);
  kernel_made *k = kernel_make(s, (recipe){.force = force});
  dil_threads *threads = dil_threads_new(2);
  for (int32_t ranks = 1; ranks <= 5 && !k->refused; ranks += 1 + ranks / 2)
    for (int layout = 0; layout < DIL_LAYOUT_COUNT; layout++) {
      ring_shape ring = {&k->plan->table, (dil_layout)layout, ranks,
                         size.queries, size.keys};
      for (int32_t rank = 0; rank < ranks; rank++) {
        shard mine = place_queries(&ring, rank);
        for (int32_t i = 0; i < mine.count; i++)
          run_queries_of(d, k, &ring, mine.comb[i], threads);
      }
      const char *problem = data_compare(d);
      ck_assert_msg(!*problem, "%d ranks, layout %d, force %u: %s", ranks,
                    layout, force, problem);
    }
  dil_threads_free(threads);
  kernel_unmake(k);
  data_free(d);
}

START_TEST(parts) {
  const char *text = patterns[_i / 3];
  static const int64_t lengths[][2] = {{171, 171}, {100, 160}, {170, 120}};
  subject *s = subject_new("parts", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  for (int i = 0; i < 3; i++)
    check_parts(s, forces[_i % 3],
                (call_shape){.batch = 2, .queries = lengths[i][0],
                             .keys = lengths[i][1], .seed = 5,
                             .train = true, .dropout_seed = 77});
  subject_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("parts");
  TCase *tests = tcase_create("parts");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, parts, 0, PATTERNS * 3);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
