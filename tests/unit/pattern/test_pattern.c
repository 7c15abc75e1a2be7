/* test_pattern.c - patterns as text and as invariants: what is printed reads
 * back as the same pattern, with the same keys; broken invariants abort. */
#include "compiler/analysis/cover.h"
#include "runtime/base/arithmetic.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- text and back ------------------------------------------------------- */

static char *text_of(const pattern *p) {
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  pattern_print(p, out);
  fclose(out);
  char *kept = arena_copy(memory, text, length);
  free(text);
  return kept;
}

static pattern *parse_pattern(const char *text) {
  diag *d = diag_new(memory);
  program *all =
      program_parse(memory, d, "text", text, strlen(text), NULL, 0);
  if (all == NULL || all->pattern_count != 1) {
    diag_print(d, stderr, false);
    ck_abort_msg("not read back:\n%s", text);
  }
  return all->pattern[0];
}

static pattern *check_round_trip(const pattern *p) {
  const char *text = text_of(p);
  pattern *again = parse_pattern(text);
  pattern_verify(again);
  ck_assert_str_eq(text_of(again), text);
  ck_assert(pattern_same(p, again));
  return again;
}

/* Any numbers will do, as long as both patterns see the same. */
static value made_up(void *context, int32_t index, const int32_t *at) {
  const pattern *p = context;
  int64_t x = index;
  for (int32_t axis = 0; axis < p->input[index].rank; axis++)
    x = x * 7 + at[axis];
  return (value){floor_mod(x, 3), (double)floor_mod(x, 5) / 4};
}

static void check_same_keys(const pattern *a, const pattern *b) {
  expr_point point = {.B = 2, .b = 1, .N = 20, .M = 17, .input = made_up,
                      .context = (void *)a};
  for (int32_t k = 0; k < a->branch_count; k++)
    for (int64_t h = 0; h < a->heads; h++)
      for (int64_t t = -3; t < 17; t++)
        for (int64_t j = 0; j < 17; j++)
          ck_assert_int_eq(pattern_reaches(a, k, h, t, j, &point),
                           pattern_reaches(b, k, h, t, j, &point));
}

/* Keeps of the pattern's level are the same in every branch. */
static void share_upper_keeps(pattern *p) {
  for (int32_t k = 1; k < p->branch_count; k++)
    p->branch[k].keeps[0] = p->branch[0].keeps[0];
}

static void random_names(pattern *p, uint64_t *state) {
  static const char *const names[] = {"near", "mid", "far", "wide"};
  for (int32_t k = 0; k < p->branch_count; k++)
    p->branch[k].name = random_chance(state, 50) ? names[k] : NULL;
  p->detached = random_chance(state, 40) && pattern_mixes_branches(p);
  p->dropout = random_chance(state, 20) ? 0.1 : 0;
  p->scale_kind = (scale_kind)random_in(state, SCALE_DEFAULT, SCALE_RUNTIME);
  if (p->scale_kind == SCALE_FIXED) p->scale = 1.0 / 3;
  p->dtype = (dil_dtype)random_in(state, DIL_F32, DIL_F16);
  p->fast = p->dtype == DIL_F32 && random_chance(state, 50);
}

START_TEST(random_patterns_read_back) {
  uint64_t state = 31;
  for (int k = 0; k < 300; k++) {
    if (k % 20 == 0) fresh_memory();
    pattern *p = random_pattern(memory, &state, true);
    random_names(p, &state);
    if (random_chance(&state, 40)) random_sinks(memory, &state, p);
    random_gradient(&state, p);
    share_upper_keeps(p);
    pattern_verify(p);
    check_same_keys(p, check_round_trip(p));
  }
}
END_TEST

START_TEST(examples_read_back) {
  glob_t files;
  if (glob("examples/*.dil", 0, NULL, &files) != 0)
    ck_abort_msg("no examples here: run this from the top of the tree");
  for (size_t k = 0; k < files.gl_pathc; k++) {
    diag *d = diag_new(memory);
    dil_status status;
    program *all = program_read(memory, d, files.gl_pathv[k], NULL, 0, &status);
    ck_assert_msg(all != NULL, "%s is not read", files.gl_pathv[k]);
    for (int32_t n = 0; n < all->pattern_count; n++)
      check_round_trip(all->pattern[n]);
  }
  globfree(&files);
}
END_TEST

START_TEST(everything_is_spelled_out) {
  const char *text =
      "let w = 8; pattern p { heads 4 kv 2; head_dim 16; dtype bf16; causal;"
      " input slope : f32[H]; window w, inf; mask bi != bj || bi == nb;"
      " block 4; score s * (w / 2.0) - slope[h];"
      " branch a { segment 2 * w; dilation w / 4; phase block; }"
      " branch { heads 1..2; window 2, 0; keep local(1) || global(2); } }";
  ck_assert_str_eq(
      text_of(parse_pattern(text)),
      "pattern p {\n"
      "    heads 4 kv 2;\n"
      "    head_dim 16 value 16;\n"
      "    dtype bf16;\n"
      "    combine softmax;\n"
      "    gradient exact;\n"
      "    input slope : f32[4];\n"
      "    branch a {\n"
      "        segment 16;\n"
      "        dilation 2;\n"
      "        phase block;\n"
      "        heads 0..3;\n"
      "        causal;\n"
      "        window 8, inf;\n"
      "        mask i / 4 != j / 4 || i / 4 == (M + 3) / 4;\n"
      "        score s * 4.0 - slope[h];\n"
      "    }\n"
      "    branch {\n"
      "        dilation 1;\n"
      "        phase cycle;\n"
      "        heads 1..2;\n"
      "        causal;\n"
      "        window 2, 0;\n"
      "        mask i / 4 != j / 4 || i / 4 == (M + 3) / 4;\n"
      "        score s * 4.0 - slope[h];\n"
      "        block 4;\n"
      "        keep abs(i / 4 - j / 4) <= 1 || (i / 4 < 2 || j / 4 < 2);\n"
      "    }\n"
      "}\n");
}
END_TEST

static void check_text(const char *text) {
  check_round_trip(parse_pattern(text));
}

#define HEAD "pattern p { heads 3; head_dim 2; dtype f32; "

START_TEST(tables_of_blocks_are_conditions) {
  static const struct {
    const char *size, *index;
  } tables[] = {{"nb, nb", "bi, bj"},
                {"H, nb, nb", "h, bi, bj"},
                {"B, H, nb, nb", "b, h, bi, bj"}};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    const char *head = arena_print(
        memory, HEAD "input kept : u8[%s]; block 4; branch { } keep ",
        tables[i].size);
    const pattern *given =
        parse_pattern(arena_print(memory, "%sfrom kept; }", head));
    const pattern *spelled = parse_pattern(
        arena_print(memory, "%skept[%s] != 0; }", head, tables[i].index));
    ck_assert_str_eq(text_of(given), text_of(spelled));
  }
}
END_TEST

START_TEST(odd_corners_read_back) {
  /* a share without a head, which only `heads split` can say */
  check_text(HEAD "heads split; branch { } branch { } branch { } branch { } }");
  /* a table of blocks, and two levels of which one is no condition */
  check_text(HEAD "input kept : u8[H, nb, nb]; block 4; keep from kept; "
             "branch { keep local(1); } branch { } }");
  check_text(HEAD "block 4; keep top 2 by mean; branch { keep local(1); } }");
  check_text(HEAD "block 4; keep mass 0.5, 3 by mean each; branch { } }");
  check_text(HEAD "input g : f32[H, nbq, nb]; block 8, 4; branch { causal; "
             "keep top 2 by g; shared kv; } branch { window 9, 3; } }");
  check_text(HEAD "block 4; keep local(1); branch { block 8; } branch { } }");
  /* conditions that fold away, negative and extreme numbers */
  check_text(HEAD "mask 1 < 2 || i < j; branch { mask 2 < 1; } }");
  check_text(HEAD "mask i - -3 > -(-j) && i > -2147483648; branch { } }");
  check_text(HEAD "score j < 0 ? -inf : -(-s) * -0.5; branch { } }");
  check_text(HEAD "score (i < j ? s : 1) + (i == j ? 1 : i > j ? 2.5 : s); "
             "branch { } }");
  check_text(HEAD "combine union; score s * 2; "
             "branch { } branch { causal; } }");
}
END_TEST

/* ---- questions ----------------------------------------------------------- */

START_TEST(lse_is_asked_of_one_branch_a_head) {
  pattern *p = make_pattern(memory, 4, 4, 1, 1, 2);
  ck_assert(pattern_has_lse(p));
  p->combine = DIL_COMBINE_UNION;
  ck_assert(pattern_has_lse(p));
  p->combine = DIL_COMBINE_MEAN;
  ck_assert(!pattern_has_lse(p));
  p->branch[0].head_last = 1;
  p->branch[1].head_first = 2;
  ck_assert(pattern_has_lse(p));
  p->branch[1].head_last = 2; /* nobody serves the last head */
  ck_assert(!pattern_has_lse(p));
  p->combine = DIL_COMBINE_SUM;
  ck_assert(!pattern_has_lse(p));
}
END_TEST

START_TEST(differences_are_seen) {
  uint64_t state = 5;
  pattern *p = random_pattern(memory, &state, true), other = *p;
  ck_assert(pattern_same(p, &other));
  other.head_dim++;
  ck_assert(!pattern_same(p, &other));
  other = *p;
  other.branch = ARENA_ARRAY(memory, branch, p->branch_count);
  memcpy(other.branch, p->branch, (size_t)p->branch_count * sizeof(branch));
  ck_assert(pattern_same(p, &other));
  other.branch[0].causal = !other.branch[0].causal;
  ck_assert(!pattern_same(p, &other));
}
END_TEST

START_TEST(reach_by_hand) {
  pattern *p = make_pattern(memory, 2, 1, 1, 1, 1);
  p->branch[0].segment = 7;
  p->branch[0].dilation = 3;
  p->branch[0].causal = true;
  set_phases(memory, p);
  const expr_point point = {.N = 20, .M = 20};
  ck_assert(pattern_reaches(p, 0, 0, 10, 7, &point));
  ck_assert(pattern_reaches(p, 0, 0, 10, 10, &point));
  ck_assert(!pattern_reaches(p, 0, 0, 10, 13, &point)); /* after t */
  ck_assert(!pattern_reaches(p, 0, 0, 10, 6, &point));  /* before */
  ck_assert(!pattern_reaches(p, 0, 0, 9, 7, &point));   /* row not selected */
  ck_assert(pattern_reaches(p, 0, 1, 11, 8, &point));   /* phase 1 */
  ck_assert(!pattern_reaches(p, 0, 0, 21, 21, &point)); /* no such key */
  p->branch[0].head_last = 0;
  ck_assert(!pattern_reaches(p, 0, 1, 11, 8, &point));
}
END_TEST

/* ---- invariants ---------------------------------------------------------- */

static bool verify_aborts(const pattern *p) {
  fflush(NULL);
  pid_t child = fork();
  ck_assert(child >= 0);
  if (child == 0) {
    close(2);
    pattern_verify(p);
    _exit(0);
  }
  int status;
  ck_assert(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static pattern *sound_pattern(void) {
  pattern *p = make_pattern(memory, 4, 2, 8, 8, 2);
  add_inputs(memory, p);
  p->branch[1].dilation = 2;
  set_phases(memory, p);
  return p;
}

static void break_heads(pattern *p) { p->kv_heads = 3; }
static void break_dropout(pattern *p) { p->dropout = 1; }
static void break_fast(pattern *p) { p->fast = true, p->dtype = DIL_F16; }
static void break_dtype(pattern *p) { p->dtype = DIL_U8; }
static void break_rank(pattern *p) { p->input[DOC].rank = 5; }
static void break_dilation(pattern *p) { p->branch[0].dilation = 0; }
static void break_phase(pattern *p) { p->branch[1].phase[1] = 0; }
static void break_range(pattern *p) { p->branch[0].head_last = 4; }
static void break_window(pattern *p) { p->branch[0].left = -1; }

static void break_mask_type(pattern *p) {
  add_mask(memory, &p->branch[0], make_int(memory, 1));
}

static void break_mask_sight(pattern *p) {
  add_mask(memory, &p->branch[0],
           make_condition(memory, EXPR_LT, make_leaf(memory, EXPR_S_),
                          make_int(memory, 1)));
}

static void break_mask_input(pattern *p) {
  expr *doc = make_input(memory, DOC, TYPE_I32, make_int(memory, 0), NULL);
  add_mask(memory, &p->branch[0],
           make_condition(memory, EXPR_EQ, doc, doc));
}

static void break_block(pattern *p) {
  add_keep(memory, &p->branch[0].keeps[0], 0,
           (keep){.kind = KEEP_TOP, .amount = 1});
}

static void break_union(pattern *p) {
  p->combine = DIL_COMBINE_UNION;
  add_score(memory, &p->branch[1], make_leaf(memory, EXPR_S_));
}

static void (*const breaks[])(pattern *p) = {
    break_heads,    break_dropout,   break_fast,       break_dtype,
    break_rank,     break_dilation,  break_phase,      break_range,
    break_window,   break_mask_type, break_mask_sight, break_mask_input,
    break_block,    break_union,
};

START_TEST(broken_invariants_abort) {
  pattern *p = sound_pattern();
  ck_assert(!verify_aborts(p));
  breaks[_i](p);
  ck_assert(verify_aborts(p));
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *pattern_suite(void) {
  Suite *suite = suite_create("pattern");
  TCase *tests = tcase_create("pattern");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, random_patterns_read_back);
  tcase_add_test(tests, examples_read_back);
  tcase_add_test(tests, everything_is_spelled_out);
  tcase_add_test(tests, tables_of_blocks_are_conditions);
  tcase_add_test(tests, odd_corners_read_back);
  tcase_add_test(tests, lse_is_asked_of_one_branch_a_head);
  tcase_add_test(tests, differences_are_seen);
  tcase_add_test(tests, reach_by_hand);
  tcase_add_loop_test(tests, broken_invariants_abort, 0,
                      sizeof breaks / sizeof *breaks);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(pattern_suite(), CK_FORK_GETENV);
}
