/* test_plan.c - plans: which branches share a pass, what is refused, and what
 * the tables say of masks, inputs and sinks. test_plan_text.c has their text. */
#include "compiler/plan/plan.h"
#include "tests/support/plan_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <string.h>

/* ---- passes -------------------------------------------------------------- */

#define LISTS "input g : i32[*]; input f : i32[H, *];"
static const struct {
  const char *statements;
  unsigned force;
  int32_t passes;
  int64_t first_period;
} shapes[] = {
    {"segments 2048, 4096, 8192; dilations 1, 2, 4;", 0, 1, 4},
    {"segments 2048, 4096, 8192; dilations 1, 2, 4;", FORCE_CHAIN, 3, 1},
    {"segments 7, 14, 28; dilations 1, 2, 4;", 0, 3, 1},
    {"segments 7, 14, 28; dilations 1, 2, 4;", FORCE_FUSE, 1, 4},
    {"segments 64, 4096; dilations 1, 64;", 0, 2, 1},
    {"segments 2048, 4096; dilations 1, 2; combine mean;", 0, 2, 1},
    {"segments 2048, 4096; dilations 1, 2; combine sum;", FORCE_FUSE, 2, 1},
    {"segments 7, 14; dilations 5, 6; combine union;", 0, 1, 30},
    {"heads split; segments 2048, 4096; dilations 1, 2;", 0, 2, 1},
    {"branch { heads 0..1; segment 512; } branch { heads 2..3; segment 512; }"
     "branch { heads 1..2; segment 1024; dilation 2; }", 0, 1, 2},
    {LISTS "branch { window 9, 9; } branch { keys g; }", 0, 2, 1},
    {LISTS "branch { window 9, 9; } branch { keys g; }", FORCE_FUSE, 1, 1},
    {LISTS "branch { keys g; } branch { keys g; causal; } branch { keys f; }", 0,
     2, 1},
    {LISTS "combine union; branch { window 9, 9; } branch { keys g; }", 0, 2, 1},
    {LISTS "combine union; branch { dilation 2; } branch { keys g; }", 0, 1, 2},
};

START_TEST(passes_fill_tiles) {
  plan *p = plan_of(shapes[_i].statements, shapes[_i].force);
  ck_assert_msg(p != NULL, "%s", complaints());
  plan_verify(p);
  ck_assert_int_eq(p->table.pass_count, shapes[_i].passes);
  ck_assert_int_eq(p->table.passes[0].period, shapes[_i].first_period);
}
END_TEST

/* What shares a pass on a GPU: its tiles are higher, and states are counted. */
#define FAR_APART "segments 2048, 16384, 131072; dilations 1, 8, 64;"
static const struct {
  const char *sizes, *statements;
  unsigned force;
  int32_t passes;
} counted[] = {
    {"heads 12; head_dim 64; dtype bf16;", FAR_APART, 0, 3},
    {"heads 12; head_dim 64; dtype bf16;", "causal;" FAR_APART, 0, 3},
    {"heads 16; head_dim 128; dtype f16;", FAR_APART, 0, 2},
    {"heads 12; head_dim 64; dtype bf16;", FAR_APART, FORCE_FUSE, 1},
    {"heads 12; head_dim 64; dtype f32;", FAR_APART, 0, 1},
    {"heads 12; head_dim 64; dtype bf16;",
     "segments 2048, 4096, 8192; dilations 1, 2, 4;", 0, 1},
    {"heads 16; head_dim 128; dtype bf16;",
     "causal; segments 2048, 4096, 8192; dilations 1, 2, 4;", 0, 1},
    {"heads 12; head_dim 64; dtype bf16;",
     "input g : i32[*]; branch { window 128, 128; } branch { keys g; }", 0, 2},
    {"heads 12; head_dim 64; dtype bf16;",
     "segments 2048, 4096, 8192, 16384, 32768; dilations 1, 2, 4, 6, 12;", 0, 1},
    {"heads 12; head_dim 64; dtype bf16;",
     "segments 2048, 4096, 8192; dilations 1, 2, 4;", FORCE_CHAIN, 3},
    {"heads 4; head_dim 64; dtype bf16;",
     "heads split; segments 2048, 4096; dilations 1, 2;", 0, 2},
    {"heads 4; head_dim 64; dtype bf16;", "combine union;" FAR_APART, 0, 1},
    {"heads 12; head_dim 64; dtype bf16;", /* one for want of states alone */
     "segments 2048, 16384; dilations 2, 16;", 0, 1},
};

/* A union with a list becomes a softmax of a window and of both sides of it. */
START_TEST(a_list_stands_apart_in_a_union) {
  plan *p = plan_of(LISTS "combine union; branch { window 9, 9; }"
                    "branch { keys g; }", 0);
  ck_assert_ptr_nonnull(p);
  ck_assert_int_eq(p->table.combine, DIL_COMBINE_SOFTMAX);
  ck_assert_int_eq(p->table.branch_count, 3);
  ck_assert_uint_eq(p->table.passes[1].branches, 6);
  ck_assert_int_eq(dil_pass_list(&p->table, &p->table.passes[0]), -1);
  ck_assert_int_eq(dil_pass_list(&p->table, &p->table.passes[1]), 2);
  for (int32_t b = 1; b < 3; b++) {
    const dil_predicate *rest =
        &p->table.predicates[p->table.branches[b].rest];
    ck_assert(!rest->masked);
    ck_assert_int_eq(b == 1 ? rest->right : rest->left, -10);
  }
}
END_TEST

START_TEST(passes_are_counted_for_gpus) {
  char *text = arena_print(memory, "pattern p { %s %s }", counted[_i].sizes,
                           counted[_i].statements);
  program *read = program_parse(memory, messages, "p.dil", text, strlen(text),
                                NULL, 0);
  ck_assert_ptr_nonnull(read);
  plan *p = plan_make_for(memory, messages, read->pattern[0],
                          counted[_i].force, DIL_FORWARD, &plan_target_gpu);
  ck_assert_msg(p != NULL, "%s", complaints());
  plan_verify(p);
  ck_assert_int_eq(p->table.pass_count, counted[_i].passes);
}
END_TEST

START_TEST(equal_conditions_and_scores_are_one) {
  plan *p = plan_of("causal; score s - i; branch { segment 64; }"
                    "branch { window 5, 0; mask j % 2 == 0; }"
                    "branch { window 5, inf; mask j % 2 == 0; score 2 * s; }",
                    0);
  ck_assert_ptr_nonnull(p);
  ck_assert_int_eq(p->table.predicate_count, 2);
  ck_assert_int_eq(p->table.chain_count, 2);
  ck_assert_int_eq(p->table.branches[0].predicate, 0);
  ck_assert_int_eq(p->table.branches[1].predicate, 1);
  ck_assert_int_eq(p->table.branches[2].predicate, 1);
  ck_assert_int_eq(p->table.predicates[1].right, 0);
  ck_assert_int_eq(p->table.branches[1].chain, 0);
  ck_assert_int_eq(p->table.branches[2].chain, 1);
}
END_TEST

/* What masks say that branches can say: segments and dilations of the plan, and
 * whether a mask is left. */
#define NEAR "i / 64 == j / 64"
#define FAR "i / 128 == j / 128 && i % 128 % 2 == h % 2 && h % 2 == j % 128 % 2"
static const struct {
  const char *statements;
  unsigned force;
  int32_t branches;
  int64_t segment[2], dilation[2];
  bool masked;
} lifted[] = {
    {"branch { mask " NEAR "; }", 0, 1, {64}, {1}, false},
    {"mask j / 64 == i / 64 && (i + j) % 3 != 0; branch { causal; }", 0, 1,
     {64}, {1}, true},
    {"branch { mask " FAR "; }", 0, 1, {128}, {2}, false},
    {"branch { mask " NEAR " || (" FAR "); }", 0, 2, {64, 128}, {1, 2}, false},
    {"mask i != j; branch { mask " NEAR " || (" FAR "); }", 0, 2, {64, 128},
     {1, 2}, true},
    {"branch { segment 512; } branch { mask " NEAR "; }", 0, 2, {512, 64},
     {1, 1}, false},
    /* left as they are: what is forced; rows that only some branches count;
     * which key of several is dropped; rows or keys alone; another segment;
     * a head without residue; tiles that stay empty; no segment */
    {"branch { mask " NEAR " || (" FAR "); }", FORCE_CHAIN, 1, {0}, {1}, true},
    {"combine mean; branch { mask " NEAR "; }", 0, 1, {0}, {1}, true},
    {"dropout 0.5; branch { mask " NEAR " || (" FAR "); }", 0, 1, {0}, {1},
     true},
    {"branch { mask " NEAR " && j % 2 == 0; }", 0, 1, {0}, {1}, true},
    {"branch { mask " NEAR " && i % 60 % 4 == 0 && j % 60 % 4 == 1; }", 0, 1,
     {0}, {1}, true},
    {"branch { mask " NEAR " && i % 2 == h && j % 2 == h; }", 0, 1, {0}, {1},
     true},
    {"branch { mask i / 16 == j / 16; }", 0, 1, {0}, {1}, true},
    {"branch { mask i % 2 == h % 2 && j % 2 == h % 2; }", 0, 1, {0}, {1}, true},
    {"branch { segment 512; mask " NEAR "; }", 0, 1, {512}, {1}, true},
};

START_TEST(masks_become_branches) {
  plan *p = plan_of(lifted[_i].statements, lifted[_i].force);
  ck_assert_msg(p != NULL, "%s", complaints());
  plan_verify(p);
  const dil_table *t = &p->table;
  ck_assert_int_eq(t->branch_count, lifted[_i].branches);
  for (int32_t b = 0; b < t->branch_count; b++) {
    ck_assert_int_eq(t->branches[b].segment, lifted[_i].segment[b]);
    ck_assert_int_eq(t->branches[b].dilation, lifted[_i].dilation[b]);
    for (int32_t h = 0; h < t->heads; h++)
      ck_assert_int_eq(t->branches[b].phase[h],
                       h % t->branches[b].dilation);
  }
  bool masked = false;
  for (int32_t i = 0; i < t->predicate_count; i++)
    masked |= t->predicates[i].masked;
  ck_assert(masked == lifted[_i].masked);
}
END_TEST

START_TEST(a_branch_without_condition_has_no_predicate) {
  plan *p = plan_of("branch { segment 64; }", 0);
  ck_assert_int_eq(p->table.branches[0].predicate, -1);
  ck_assert(!p->table.scored);
}
END_TEST

START_TEST(tiles_end_where_blocks_do) {
  static const int32_t block[] = {16, 32, 48, 64, 100, 128, 200};
  static const int32_t keys[] = {128, 128, 96, 128, 100, 128, 128};
  for (size_t i = 0; i < sizeof block / sizeof *block; i++) {
    plan *p = plan_of(arena_print(memory, "branch { block %d; keep local(1); }",
                                  block[i]), 0);
    ck_assert_int_eq(p->table.tile_keys, keys[i]);
  }
}
END_TEST

/* ---- refusals ------------------------------------------------------------ */

static const struct {
  const char *statements;
  unsigned force;
  const char *message;
} refused[] = {
    {"combine union; branch { } branch { segment 8; }", FORCE_CHAIN,
     "`combine union` cannot be forced into a chain"},
    {"combine union; branch { } branch { segment 8; }", FORCE_MULTISET,
     "`combine union` cannot be forced into a multiset"},
    {"branch { dilation 67; } branch { dilation 71; }", FORCE_FUSE,
     "branches that share a pass must have a period of at most 4096, got 4757"},
};

START_TEST(what_cannot_run_is_refused) {
  ck_assert_ptr_null(plan_of(refused[_i].statements, refused[_i].force));
  ck_assert_msg(strstr(complaints(), refused[_i].message), "%s", complaints());
  ck_assert_int_eq(diag_errors(messages), 1);
}
END_TEST

/* What is wrong with one pattern says nothing of the next. */
START_TEST(a_plan_after_an_error_is_whole) {
  const pattern *good = pattern_of("segments 64, 128; dilations 1, 2;");
  const pattern *long_period = pattern_of(refused[2].statements);
  ck_assert_ptr_null(plan_of(refused[0].statements, refused[0].force));
  plan *p = plan_make(memory, messages, good, 0);
  ck_assert_msg(p != NULL, "%s", complaints());
  plan_verify(p);
  ck_assert_ptr_null(plan_make(memory, messages, long_period, FORCE_FUSE));
  ck_assert_msg(strstr(complaints(), refused[2].message), "%s", complaints());
}
END_TEST

/* Equal elements of a row and a key are a range where the input is sorted. */
START_TEST(inputs_with_spans_are_marked) {
  const pattern *of = pattern_of(
      "input d : i32[B, M]; input e : i32[H, M]; input f : f32[M]; "
      "input g : i32[M, 2]; mask d[b, j] == d[b, i] && e[0, i] == e[h, j] && "
      "f[i] == f[j] && g[i, 0] == g[j, 0]; branch { }");
  plan *p = plan_make(memory, messages, of, 0);
  ck_assert_msg(p != NULL, "%s", complaints());
  for (int k = 0; k < 4; k++) {
    ck_assert(p->table.inputs[k].masks);
    ck_assert_int_eq(p->table.inputs[k].spans, k == 0);
  }
}
END_TEST

/* Which variables tell the elements of an input apart: an index of every read. */
START_TEST(reads_tell_elements_apart) {
  static const struct {
    const char *text;
    uint8_t apart;
  } cases[] = {
      {"input z : f32[N, M] gradient; score s + z[row, j]; branch { }",
       DIL_APART_I | DIL_APART_J},
      {"input z : f32[B, H, M] gradient; score s * z[b, h, 2 + j - 1]; "
       "branch { }",
       DIL_APART_B | DIL_APART_H | DIL_APART_J},
      {"input z : f32[M, M] gradient; score s + z[i, j] + z[j, i]; branch { }",
       0},
      {"input z : f32[M, M] gradient; score s + z[i, j] + z[i - 1, j]; "
       "branch { }",
       DIL_APART_J},
      {"input z : f32[M, M] gradient; score s + z[i, j]; score s * z[i, i]; "
       "branch { }",
       DIL_APART_I},
      {"input z : f32[M] gradient; score s + z[i / 2] * z[j % 3]; branch { }",
       0},
      {"input z : f32[M] gradient; score s + z[i - j]; branch { }", 0},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    plan *p = plan_make_for(memory, messages, pattern_of(cases[k].text), 0,
                            DIL_BACKWARD, NULL);
    ck_assert_msg(p != NULL, "%s", complaints());
    ck_assert_msg(p->table.inputs[0].apart == cases[k].apart, "%s: %d",
                  cases[k].text, p->table.inputs[0].apart);
  }
}
END_TEST

START_TEST(sinks_stand_in_the_tables) {
  const pattern *of = pattern_of("input z : f32[H] gradient; sink z[h]; "
                                 "branch { segment 8; } branch { sink 1.0; "
                                 "heads 0..0; }");
  plan *p = plan_make(memory, messages, of, 0);
  ck_assert_msg(p != NULL, "%s", complaints());
  ck_assert(p->table.sinks && p->table.sink_branches == 2);
  ck_assert(p->table.inputs[0].gradient);
  ck_assert_ptr_null(p->slopes);
  p = plan_make_for(memory, messages, of, 0, DIL_BACKWARD, NULL);
  ck_assert_msg(p != NULL, "%s", complaints());
  ck_assert_int_eq(p->sinks.read_count, 1);
  ck_assert(p->table.inputs[0].in_sinks && !p->table.inputs[0].in_scores);
  ck_assert_uint_eq(p->table.inputs[0].apart, DIL_APART_H);
  ck_assert_int_eq(p->branch_sinks[1].read_count, 0);
}
END_TEST

/* The sinks of a branch that selects every row are the pattern's. Any other
 * branch with sinks keeps its rows. */
START_TEST(sinks_of_every_row_rise) {
  plan *p = plan_of("mask i / 512 == j / 512; branch { sink 2.0; }", 0);
  ck_assert_int_eq(p->pattern->sink_count, 1);
  ck_assert_int_eq(p->pattern->branch[0].sink_count, 0);
  ck_assert_int_eq(p->pattern->branch[0].segment, 512);
  p = plan_of("mask i / 512 == j / 512; branch { sink 2.0; heads 0..0; }", 0);
  ck_assert_int_eq(p->pattern->branch[0].sink_count, 1);
  ck_assert_int_eq(p->pattern->branch[0].segment, 0);
}
END_TEST

/* Thin pieces of one tile would each visit it; pieces far apart do not. */
START_TEST(thin_pieces_stay_a_mask) {
  const pattern *thin = pattern_of(
      "branch { mask i == j || i - j == 3 || i - j == 7 || i - j == 12; }");
  const pattern *apart = pattern_of(
      "branch { mask i - j < 300 && j <= i || j < 4 || i - j == 9000 || i < 2; }");
  ck_assert_int_gt(pattern_normalise(memory, thin)->branch_count, 3);
  ck_assert_ptr_eq(plan_normalise(memory, thin, 0), thin);
  ck_assert_int_gt(plan_normalise(memory, apart, 0)->branch_count, 3);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

int main(void) {
  Suite *suite = suite_create("plan");
  TCase *tests = tcase_create("plan");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, open_plans, close_memory);
  tcase_add_loop_test(tests, passes_fill_tiles, 0, COUNT(shapes));
  tcase_add_test(tests, a_list_stands_apart_in_a_union);
  tcase_add_loop_test(tests, passes_are_counted_for_gpus, 0, COUNT(counted));
  tcase_add_test(tests, equal_conditions_and_scores_are_one);
  tcase_add_loop_test(tests, masks_become_branches, 0, COUNT(lifted));
  tcase_add_test(tests, a_branch_without_condition_has_no_predicate);
  tcase_add_test(tests, tiles_end_where_blocks_do);
  tcase_add_test(tests, thin_pieces_stay_a_mask);
  tcase_add_loop_test(tests, what_cannot_run_is_refused, 0, COUNT(refused));
  tcase_add_test(tests, a_plan_after_an_error_is_whole);
  tcase_add_test(tests, inputs_with_spans_are_marked);
  tcase_add_test(tests, reads_tell_elements_apart);
  tcase_add_test(tests, sinks_stand_in_the_tables);
  tcase_add_test(tests, sinks_of_every_row_rise);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
