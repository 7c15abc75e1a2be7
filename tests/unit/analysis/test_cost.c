/* test_cost.c - what is foretold of a call on a processor, as a share of what
 * is foretold of dense attention, against the share that was measured
 * (bench/NOTES.md); and the terms of the model one by one. Nothing is timed
 * here. */
#include "compiler/analysis/cost.h"
#include "compiler/front/program.h"
#include "runtime/api/kernel.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4096 };

static arena *memory;

static void open_memory(void) {
  memory = arena_new();
}
static void close_memory(void) {
  arena_free(memory);
}

static const pattern *parse_statements(const char *statements) {
  const char *text = arena_print(
      memory, "pattern p { head_dim 64; dtype f32; %s }", statements);
  program *all = program_parse(memory, diag_new(memory), "p.dil", text,
                               strlen(text), NULL, 0);
  ck_assert_ptr_nonnull(all);
  return all->pattern[0];
}

static bool has_masks(const pattern *p) {
  for (int32_t i = 0; i < p->branch_count; i++)
    if (p->branch[i].mask_count || p->branch[i].keeps[0].count) return true;
  return false;
}

/* Global tokens: every 512th. */
static void fill_input(const pattern *p, dil_tensor *input, dil_call *call) {
  int64_t shape[2] = {1, TOKENS};
  uint8_t *global = ARENA_ARRAY(memory, uint8_t, TOKENS);
  for (int32_t i = 0; i < TOKENS; i++) global[i] = i % 512 == 77;
  *input = dil_tensor_make(global, DIL_U8, 2, shape);
  call->q.shape[0] = 1;
  call->inputs = input;
  call->input_count = p->input_count;
}

/* A thread of 118 GFLOP/s. */
static cost_case case_of(const pattern *p, int64_t N, int64_t M,
                         cover_count *count) {
  dil_call call = {0};
  dil_tensor input;
  int32_t keys = has_masks(p) ? COVER_SUBTILE : COST_TILE_KEYS;
  fill_input(p, &input, &call);
  cover_pattern(p, N, M, COST_TILE_ROWS, keys, &call, 0, count);
  return (cost_case){.count = count,
                     .tile_keys = keys,
                     .B = 1,
                     .N = N,
                     .M = M,
                     .rows = N < DIL_TILE_ROWS_LEAST,
                     .threads = 1,
                     .dedup = p->combine == DIL_COMBINE_UNION,
                     .peak = 118e9};
}

static cost_parts predicted_parts(const pattern *p, int64_t N, int64_t M) {
  cover_count count;
  cost_case c = case_of(p, N, M, &count);
  cost_parts parts = cost_split(p, &c);
  double sum =
      parts.products + parts.masks + parts.scores + parts.bounds + parts.rows;
  ck_assert_double_le(fabs(cost_seconds(p, &c) - sum), 1e-9 * sum);
  return parts;
}

static double parts_total(const cost_parts *x) {
  return x->products + x->masks + x->scores + x->bounds + x->rows;
}

static cost_parts dense_parts(const pattern *p, bool causal) {
  return predicted_parts(cost_beside(memory, p, causal), TOKENS, TOKENS);
}

/* ---- shares of dense attention ------------------------------------------- */

static const struct {
  const char *statements;
  double share; /* measured */
} known[] = {
    {"heads 8; causal; branch { }", 0.51},
    {"heads 8; causal; branch { window 127, 0; } "
     "branch { mask (i - j) % 128 == 0; } combine union;",
     0.194},
    {"heads 8; mask i - j < 256 && i >= j || j < 4; branch { }", 0.078},
    {"heads 8; mask abs(i / 64 - j / 64) <= 3 && abs(i % 64 - j % 64) <= 3; "
     "branch { }",
     0.113},
    {"heads 8; causal; block 64; keep hierarchical(1, 1, 4, 8, 16, 64); "
     "branch { }",
     0.076},
    {"heads 8; mask abs(i / 32 - j / 32) <= 1 || "
     "hash(h, i / 32, j / 32, 7) % 100 < 10; branch { }",
     0.17},
    {"heads 8; input f : u8[B, M]; mask abs(i - j) <= 128 || f[b, i] != 0 || "
     "f[b, j] != 0; branch { }",
     0.337},
    {"heads 8; input z : f32[B, H, N, M]; score s + z[b, h, i, j]; "
     "branch { }",
     1.84},
    {"heads 8; input t : f32[H, 2 * M]; score s + t[h, i - j + M]; branch { }",
     1.26},
    {"heads 8; causal; score 30 * tanh(s / 30); branch { }", 0.60},
};

START_TEST(shares_are_those_measured) {
  const pattern *p = parse_statements(known[_i].statements);
  cost_parts own = predicted_parts(p, TOKENS, TOKENS),
             dense = dense_parts(p, false);
  double ratio = parts_total(&own) / parts_total(&dense) / known[_i].share;
  ck_assert_msg(ratio > 1 / 1.5 && ratio < 1.5, "%s: %g of what was measured",
                known[_i].statements, ratio);
}
END_TEST

/* ---- gradients ----------------------------------------------------------- */

/* The time of gradients over that of the run forward: 10 operations for 4, and
 * the shares of the peak that both reached (bench/NOTES.md). */
static const struct {
  const char *statements;
  double forward, backward;
  bool bf16;
} gradient_shares[] = {
    {"heads 8; head_dim 64; dtype f32; branch { }", 86.0, 79.7, false},
    {"heads 8; head_dim 128; dtype f32; branch { }", 77.8, 76.4, false},
    {"heads 8; head_dim 64; dtype bf16; branch { }", 79.5, 72.2, true},
    {"heads 8; head_dim 128; dtype bf16; branch { }", 81.6, 75.8, true},
    {"heads 8; head_dim 64; dtype bf16; causal; branch { }", 71.6, 69.3, true},
    {"heads 8; head_dim 64; dtype bf16; causal; "
     "mask i - j < 256 || j < 4; branch { }",
     49.7, 46.0, true},
};

static double gradient_ratio(const char *statements, bool bf16, int64_t N) {
  const char *text = arena_print(memory, "pattern p { %s }", statements);
  program *all = program_parse(memory, diag_new(memory), "p.dil", text,
                               strlen(text), NULL, 0);
  cover_count count;
  ck_assert_ptr_nonnull(all);
  cost_case c = case_of(all->pattern[0], N, TOKENS, &count);
  c.products = bf16 ? COST_PAIRS : COST_F32;
  c.peak *= bf16 ? 2 : 1;
  return cost_gradient_seconds(all->pattern[0], &c) /
         cost_seconds(all->pattern[0], &c);
}

START_TEST(gradients_take_what_was_measured) {
  double measured =
      2.5 * gradient_shares[_i].forward / gradient_shares[_i].backward;
  double ratio = gradient_ratio(gradient_shares[_i].statements,
                                gradient_shares[_i].bf16, TOKENS) /
                 measured;
  ck_assert_msg(ratio > 1 / 1.25 && ratio < 1.25, "%s: %g of what was measured",
                gradient_shares[_i].statements, ratio);
}
END_TEST

/* Where each branch has its own softmax, the run forward comes once more. */
START_TEST(own_softmaxes_run_again) {
  const char *branches = "branch { segment 512; } branch { dilation 4; }";
  const char *head = "heads 8; head_dim 64; dtype f32;";
  double joint = gradient_ratio(arena_print(memory, "%s %s", head, branches),
                                false, TOKENS);
  double own =
      gradient_ratio(arena_print(memory, "%s combine mean; %s", head, branches),
                     false, TOKENS);
  ck_assert_double_eq_tol(own, joint + 1, 1e-9);
}
END_TEST

/* Milliseconds of 8 queries over 4096 keys, 32 heads: 268 MFLOP. */
START_TEST(rows_share_keys) {
  cost_parts one =
      predicted_parts(parse_statements("heads 32 kv 1; branch { }"), 8, TOKENS);
  cost_parts each =
      predicted_parts(parse_statements("heads 32; branch { }"), 8, TOKENS);
  ck_assert_double_gt(parts_total(&one), 9.0e-3 / 1.5);
  ck_assert_double_lt(parts_total(&one), 9.0e-3 * 1.5);
  ck_assert_double_eq(one.products, each.products);
  ck_assert_double_eq_tol(each.rows, 2 * one.rows, 1e-12);
}
END_TEST

START_TEST(no_rows_take_no_time) {
  cost_parts none =
      predicted_parts(parse_statements("heads 8; branch { }"), 0, TOKENS);
  ck_assert_double_eq(parts_total(&none), 0);
}
END_TEST

/* A mask skips no key of a row that runs alone, a window does. */
START_TEST(rows_try_masks_on_all_keys) {
  cost_parts all =
      predicted_parts(parse_statements("heads 8; branch { }"), 1, TOKENS);
  cost_parts mask = predicted_parts(
      parse_statements("heads 8; mask i - j < 64; branch { }"), 1, TOKENS);
  cost_parts window = predicted_parts(
      parse_statements("heads 8; branch { window 63, 0; }"), 1, TOKENS);
  ck_assert_double_eq(mask.products, all.products);
  ck_assert_double_gt(mask.masks, 0);
  ck_assert_double_eq_tol(window.products, all.products / 64, 1e-12);
}
END_TEST

/* ---- terms --------------------------------------------------------------- */

static cost_work masks_of(const char *mask) {
  const pattern *p = parse_statements(arena_print(
      memory,
      "heads 8; input small : u8[M]; input large : u8[N, M]; mask %s; "
      "branch { }",
      mask));
  cost_case c = {.B = 1, .N = TOKENS, .M = TOKENS};
  return cost_masks(p, &c, &p->branch[0]);
}

START_TEST(parts_cost_where_they_are_computed) {
  cost_work row = masks_of("i % 7 == h || small[i] != 0");
  ck_assert(row.cycles == 0 && row.gathered == 0 && row.key_seconds == 0);
  cost_work key = masks_of("small[j] != 0");
  ck_assert(key.cycles == 0 && key.gathered == 0 && key.key_seconds > 0);
  cost_work pair = masks_of("small[i - j] != 0");
  ck_assert(pair.cycles > 0 && pair.gathered == 1 && pair.fetched == 0);
  cost_work large = masks_of("large[i, j] != 0");
  ck_assert(large.gathered == 1 && large.fetched == 1 && large.inputs == 2);
  ck_assert_double_gt(masks_of("(i - j) % N == 0").cycles,
                      masks_of("(i - j) % 7 == 0").cycles);
  ck_assert_double_gt(masks_of("(i - j) % 7 == 0").cycles,
                      masks_of("(i - j) % 8 == 0").cycles);
}
END_TEST

/* 32 rows or keys of an element each; both at once are not looked at. An index
 * that an input gives may be any of the line, which is summed up. */
START_TEST(bounds_look_at_elements) {
  const double element = COST_ELEMENT_SECONDS;
  const pattern *p = parse_statements(
      "heads 8; input a : u8[M]; input t : u8[nb, nb]; block 64; "
      "input n : i32[M]; branch { mask a[i] != 0; } "
      "branch { mask t[bi, bj] != 0; } branch { mask t[i, j] != 0; } "
      "branch { mask a[n[j]] != 0; }");
  cost_case c = {.B = 1, .N = TOKENS, .M = TOKENS, .tile_keys = COVER_SUBTILE};
  double none = cost_bound(p, &c, &p->branch[2]);
  ck_assert_double_gt(none, 0);
  ck_assert_double_lt(none, element * 8);
  ck_assert_double_gt(cost_bound(p, &c, &p->branch[0]), element * 32);
  ck_assert_double_lt(cost_bound(p, &c, &p->branch[1]), none + element * 4);
  double line = element * (32 + 64 + TOKENS / 64);
  ck_assert_double_gt(cost_bound(p, &c, &p->branch[3]), line);
  ck_assert_double_lt(cost_bound(p, &c, &p->branch[3]), 1.2 * line);
}
END_TEST

/* All tiles partial: each stretch, half and piece is asked about; one full
 * stretch of 16 pieces once. */
START_TEST(boxes_of_a_walk) {
  cover_count count;
  cover_pattern(parse_statements("heads 1; mask (i + j) % 3 == 0; branch { }"),
                32, 512, 32, COVER_SUBTILE, NULL, 0, &count);
  ck_assert_double_eq(count.asked, 1 + 2 + 4 + 16);
  ck_assert_double_eq(count.together, 0);
  cover_pattern(parse_statements("heads 1; mask j >= 0; branch { }"), 32, 512,
                32, COVER_SUBTILE, NULL, 0, &count);
  ck_assert_double_eq(count.together, count.full);
}
END_TEST

/* ---- slower than dense --------------------------------------------------- */

static cost_reason slower_reason(const char *statements, bool causal) {
  const pattern *p = parse_statements(statements);
  cost_parts own = predicted_parts(p, TOKENS, TOKENS),
             dense = dense_parts(p, causal);
  return cost_slower(&own, &dense);
}

START_TEST(slower_patterns_say_why) {
  static const char input[] = "heads 8; input z : f32[B, H, N, M]; ";
  ck_assert_ptr_null(slower_reason("heads 8; causal; branch { }", true).text);
  ck_assert_ptr_null(
      slower_reason("heads 8; branch { window 63, 0; }", true).text);
  cost_reason masks = slower_reason(
      "heads 8; causal; mask hash(i, j) % 9 < 3; branch { }", true);
  ck_assert(masks.text && !strncmp(masks.text, "masks:", 6) && masks.hint);
  cost_reason cap =
      slower_reason("heads 8; score 30 * tanh(s / 30); branch { }", false);
  ck_assert(cap.text && !strncmp(cap.text, "scores:", 7) && !cap.hint);
  cost_reason twice = slower_reason("heads 8; branch { } branch { }", false);
  ck_assert(twice.text && !strncmp(twice.text, "branches:", 9));
  cost_reason score = slower_reason(
      arena_print(memory, "%sscore s + z[b, h, i, j]; branch { }", input),
      false);
  ck_assert(score.text && !strncmp(score.text, "inputs:", 7) && score.hint);
}
END_TEST

/* By hand, for two rows of queries and three of keys. */
START_TEST(gradients_are_counted) {
  pattern narrow = *parse_statements("heads 4 kv 2; branch { }");
  narrow.value_dim = 32;
  narrow.dtype = DIL_BF16;
  cost_gradients g = cost_gradients_of(&narrow, 24, 1, 2, 3);
  ck_assert(g.flops == 24 * 2 * (3 * 64 + 2 * 32));
  double q = 2 * 4 * 64, o = 2 * 4 * 32, kv = 3 * 2 * (64 + 32), rows = 2 * 4;
  ck_assert(g.read == 2 * (q + kv + 2 * o) + 4 * rows);
  ck_assert(g.written == 2 * (q + kv));
  ck_assert(g.saved == 2 * o + 4 * rows);
  ck_assert(g.workspace == 4 * (q + kv) + 8 * rows);
  const pattern *own = parse_statements(
      "heads 4; input z : f32[H] gradient; score s + z[h]; combine mean;"
      "branch { } branch { segment 2; }");
  cost_gradients m = cost_gradients_of(own, 24, 1, 2, 2);
  ck_assert(m.saved == 4 * 2 * 4 * 64);
  ck_assert(m.workspace == 4 * (3 * 2 * 4 * 64) + 4 * 8 * 6 + (64 << 20));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cost");
  TCase *tests = tcase_create("cost");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, gradients_take_what_was_measured, 0,
                      (int)(sizeof gradient_shares / sizeof *gradient_shares));
  tcase_add_test(tests, own_softmaxes_run_again);
  tcase_add_loop_test(tests, shares_are_those_measured, 0,
                      sizeof known / sizeof *known);
  tcase_add_test(tests, rows_share_keys);
  tcase_add_test(tests, no_rows_take_no_time);
  tcase_add_test(tests, rows_try_masks_on_all_keys);
  tcase_add_test(tests, parts_cost_where_they_are_computed);
  tcase_add_test(tests, bounds_look_at_elements);
  tcase_add_test(tests, boxes_of_a_walk);
  tcase_add_test(tests, slower_patterns_say_why);
  tcase_add_test(tests, gradients_are_counted);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
