/* test_papers.c - every preset keeps the pairs of its paper: those of masks
 * that tests/support/papers.c fills without dil. The oracle keeps them,
 * arithmetic counts them, and the branches that a kernel is made of keep them,
 * too. */
#include "compiler/analysis/cover.h"
#include "compiler/oracle/oracle.h"
#include "tests/support/definition.h"
#include "tests/support/papers.h"
#include "tests/support/suite.h"
#include <check.h>
#include <string.h>

typedef struct preset_case {
  const char *preset, *defines;
  int64_t N, M;
  paper *fill;
} preset_case;

static const preset_case cases[] = {
    {"dense", "", 50, 70, paper_dense},
    {"dense", "ahead=0", 70, 70, paper_dense},
    {"sliding", "w=9", 97, 97, paper_window},
    {"sliding", "w=9 ahead=0", 5, 97, paper_window},
    {"streaming", "w=17 sinks=4 ahead=0", 150, 150, paper_streaming},
    {"streaming", "w=17 sinks=3 ahead=0", 1, 131, paper_streaming},
    {"prefix", "p=33", 150, 150, paper_prefix},
    {"prefix", "p=300", 77, 97, paper_prefix},
    {"prefix", "p=0", 64, 64, paper_prefix},
    {"dilated_window", "w=5 r=4", 150, 150, paper_dilated_window},
    {"dilated_window", "w=7 r=3", 41, 140, paper_dilated_window},
    {"dilated_window", "w=2 r=40", 100, 100, paper_dilated_window},
    {"dilated_window", "w=9 r=1", 60, 60, paper_dilated_window},
    {"strided", "l=12 ahead=0", 150, 150, paper_strided},
    {"strided", "l=1 ahead=0", 33, 40, paper_strided},
    {"strided", "l=64 ahead=0", 100, 143, paper_strided},
    {"fixed", "l=16 c=3 ahead=0", 150, 150, paper_fixed},
    {"fixed", "l=16 c=4 places=3 ahead=0", 141, 141, paper_fixed},
    {"fixed", "l=7 c=2 places=2 ahead=0", 20, 130, paper_fixed},
    {"fixed", "l=8 c=8 ahead=0", 61, 61, paper_fixed},
    {"longformer", "w=10 g=3", 150, 150, paper_longformer},
    {"longformer", "w=10 g=0 ahead=0", 99, 120, paper_longformer},
    {"longformer_global", "w=10", 150, 150, paper_longformer_global},
    {"longformer_global", "w=0 ahead=0", 99, 121, paper_longformer_global},
    {"bigbird", "size=8 near=1 g=2 r=3", 160, 160, paper_bigbird},
    {"bigbird", "size=8 near=0 g=0 r=5 draw=9", 150, 187, paper_bigbird},
    {"bigbird", "size=5 near=1 g=1 r=0", 93, 93, paper_bigbird},
    {"bigbird", "size=16 near=0 g=0 r=9 ahead=0", 77, 77, paper_bigbird},
    {"longnet", "w=8", 150, 150, paper_longnet},
    {"longnet", "w=8 ahead=0", 101, 143, paper_longnet},
    {"torchscale", "w=8 last=16 blocks=1", 150, 150, paper_longnet},
    {"swin", "wide=14 w=7", 196, 196, paper_swin},
    {"swin", "wide=14 w=7 shift=0", 196, 196, paper_swin},
    {"swin", "wide=13 w=4 shift=1", 143, 143, paper_swin},
    {"swin", "wide=9 w=8", 100, 100, paper_swin},
    {"swin", "wide=3 w=5", 11, 33, paper_swin},
    {"neighborhood2d", "wide=14 k=5", 196, 196, paper_neighborhood},
    {"neighborhood2d", "wide=13 k=3 r=2", 143, 143, paper_neighborhood},
    {"neighborhood2d", "wide=11 ky=5 kx=3 ry=2 rx=3", 154, 154,
     paper_neighborhood},
    {"neighborhood2d", "wide=12 k=4 r=3", 156, 156, paper_neighborhood},
    {"neighborhood2d", "wide=11 k=3 past_y=1", 121, 121, paper_neighborhood},
    {"neighborhood2d", "wide=13 k=3 r=3 past_y=1 past_x=1", 169, 169,
     paper_neighborhood},
    {"neighborhood2d", "wide=7 k=9 past_x=1", 77, 77, paper_neighborhood},
    {"neighborhood2d", "wide=16 k=3 ahead=0", 128, 128, paper_neighborhood},
    {"neighborhood3d", "tall=6 wide=7 k=3", 210, 210, paper_neighborhood},
    {"neighborhood3d", "tall=5 wide=7 kz=2 ky=3 kx=3 rz=2 rx=2", 245, 245,
     paper_neighborhood},
    {"neighborhood3d", "tall=5 wide=6 k=3 r=2 past_z=1 past_x=1", 180, 180,
     paper_neighborhood},
    {"neighborhood3d", "tall=5 wide=5 k=5 past_y=1", 75, 75,
     paper_neighborhood},
    {"block_causal", "size=16", 150, 150, paper_block_causal},
    {"block_causal", "size=7", 16, 90, paper_block_causal},
    {"block_diffusion", "size=16", 192, 192, paper_block_diffusion},
    {"block_diffusion", "size=4", 134, 134, paper_block_diffusion},
    {"tree", "", 63, 150, paper_tree},
    {"tree", "", 40, 40, paper_tree},
    {"documents", "w=20 sinks=4 ahead=0", 200, 200, paper_documents},
    {"documents", "w=3 sinks=2 ahead=99", 90, 170, paper_documents},
};
enum { CASES = sizeof cases / sizeof *cases, DEFINES = 12 };

/* ---- the preset ---------------------------------------------------------- */

/* A word of papers.c that no let of the preset has. */
static bool is_note(const char *name) {
  return !strcmp(name, "last") || !strcmp(name, "blocks");
}

/* Splits "a=1 b=2"; returns how many. */
static int32_t split_defines(const char *text, define *to) {
  char *words = ARENA_ARRAY(memory, char, strlen(text) + 1), *rest = NULL;
  int32_t count = 0;
  strcpy(words, text);
  for (char *word = strtok_r(words, " ", &rest); word;
       word = strtok_r(NULL, " ", &rest)) {
    char *sign = strchr(word, '=');
    *sign = 0;
    if (!is_note(word)) to[count++] = (define){word, sign + 1};
  }
  return count;
}

/* The pattern with heads of size 1 and values of size M: with zeros for q and
 * the unit vectors for v, the output of a row is not 0 at the keys it sees. */
static pattern *read_preset(const preset_case *c) {
  char path[80];
  define defines[DEFINES];
  int32_t count = split_defines(c->defines, defines);
  defines[count++] = (define){"q_heads", "4"};
  defines[count++] = (define){"width", "1"};
  diag *d = diag_new(memory);
  dil_status status = DIL_OK;
  snprintf(path, sizeof path, "preset:%s", c->preset);
  program *p = program_read(memory, d, path, defines, count, &status);
  if (!p) diag_print(d, stdout, false);
  ck_assert_ptr_nonnull(p);
  p->pattern[0]->value_dim = c->M;
  p->pattern[0]->dtype = DIL_F32;
  return p->pattern[0];
}

/* ---- the call ------------------------------------------------------------ */

enum { ROW = 1 }; /* the batch row that is compared */

static void set_input(dil_call *call, int64_t b, int64_t x, int64_t y,
                      int64_t number) {
  const dil_tensor *to = &call->inputs[0];
  dil_element_write(to->data, to->dtype,
                    b * to->stride[0] + x * to->stride[1] +
                        (to->rank > 2 ? y * to->stride[2] : 0),
                    (double)number);
}

static void bring_tree(paper_mask *m, dil_call *call, uint64_t *state) {
  for (int64_t n = 0; n < m->N; n++) {
    m->parent[n] = random_in(state, n > 9 ? n - 10 : -1, n - 1);
    for (int64_t c = 0; c < m->N; c++) set_input(call, ROW, n, c, 0);
    for (int64_t c = m->parent[n]; c >= 0; c = m->parent[c])
      set_input(call, ROW, n, c, 1);
  }
}

static void bring_documents(paper_mask *m, dil_call *call, uint64_t *state) {
  int64_t start = 0;
  for (int64_t t = 0; t < m->M; t++) {
    bool ends = t > 0 && random_chance(state, 4);
    m->document[t] = t ? m->document[t - 1] + ends : 0;
    if (ends) start = t;
    set_input(call, ROW, t, 0, start);
  }
}

static void bring_chosen(paper_mask *m, dil_call *call, uint64_t *state) {
  for (int64_t t = 0; t < m->M; t++) {
    m->chosen[t] = random_chance(state, 3);
    set_input(call, ROW, t, 0, m->chosen[t] ? random_in(state, 1, 255) : 0);
  }
}

static dil_call *unit_call(const preset_case *c, const pattern *p,
                           paper_mask *m) {
  uint64_t state = 20;
  dil_call *call = sample_call(memory, p, 2, c->N, c->M, 7);
  sample_declared(memory, p, call, &state);
  for (int64_t e = 0; e < dil_tensor_count(&call->q); e++)
    dil_element_write(call->q.data, p->dtype, e, 0);
  for (int64_t j = 0; j < c->M; j++)
    for (int64_t h = 0; h < p->kv_heads; h++)
      for (int64_t d = 0; d < c->M; d++)
        sample_set(&call->v, ROW, j, h, d, j == d);
  if (c->fill == paper_tree) bring_tree(m, call, &state);
  if (c->fill == paper_documents) bring_documents(m, call, &state);
  if (c->fill == paper_longformer_global) bring_chosen(m, call, &state);
  return call;
}

/* ---- comparison ---------------------------------------------------------- */

static bool is_reached(const preset_case *c, const pattern *p, int64_t h,
                       int64_t i, int64_t j, dil_call *call) {
  const expr_point point = {.b = ROW,
                            .B = 2,
                            .N = (int32_t)c->N,
                            .M = (int32_t)c->M,
                            .input = sample_input,
                            .context = call};
  for (int32_t b = 0; b < p->branch_count; b++)
    if (pattern_reaches(p, b, h, i, j, &point)) return true;
  return false;
}

static void compare_row(const preset_case *c, const pattern *p,
                        const pattern *normal, const paper_mask *m,
                        dil_call *call, int64_t n) {
  double *o = ARENA_ARRAY(memory, double, c->M), lse;
  int64_t i = n + c->M - c->N;
  oracle_row(p, call, ROW, n, m->h, o, &lse);
  for (int64_t j = 0; j < c->M; j++) {
    bool wanted = m->sees[i][j];
    bool reached = is_reached(c, normal, m->h, i, j, call);
    if ((o[j] > 0) != wanted || reached != wanted)
      ck_abort_msg("%s %s, head %d: key %d of position %d: the paper %d, the "
                   "oracle %d, branches of a kernel %d",
                   c->preset, c->defines, (int)m->h, (int)j, (int)i, wanted,
                   o[j] > 0, reached);
  }
}

static double count_pairs(const preset_case *c, const paper_mask *m) {
  double pairs = 0;
  for (int64_t i = c->M - c->N; i < c->M; i++)
    for (int64_t j = 0; j < c->M; j++) pairs += m->sees[i][j];
  return pairs;
}

START_TEST(pairs_are_the_papers) {
  const preset_case *c = &cases[_i];
  pattern *p = read_preset(c);
  const pattern *normal = pattern_normalise(memory, p);
  paper_mask *m = ARENA_NEW(memory, paper_mask);
  double pairs = 0;
  *m = (paper_mask){.defines = c->defines, .H = p->heads, .M = c->M, .N = c->N};
  ck_assert_int_le(c->M, PAPER_MOST);
  dil_call *call = unit_call(c, p, m);
  for (m->h = 0; m->h < p->heads; m->h++) {
    memset(m->sees, 0, sizeof m->sees);
    c->fill(m);
    paper_look_back(m);
    pairs += count_pairs(c, m);
    for (int64_t n = 0; n < c->N; n++) compare_row(c, p, normal, m, call, n);
  }
  cover_count count;
  cover_pattern(p, c->N, c->M, 32, 32, call, ROW, &count);
  ck_assert(!count.estimated);
  ck_assert_double_eq(count.distinct, pairs);
}
END_TEST

/* Presets that choose blocks by the numbers of a call, or take lists: test_choice
 * compares the first three, test_selection_call and test_key_list the others. */
static const char *const choosing[] = {"moba", "nsa_selected", "seer", "vsa",
                                       "vertical_slash"};

/* A preset without a case would be one that nobody compares. GigaPath's is
 * torchscale's with segments too long for a list of pairs. */
START_TEST(every_preset_has_a_case) {
  const char *name = dil_preset_name(_i);
  bool found = !strcmp(name, "gigapath");
  for (size_t k = 0; k < sizeof choosing / sizeof *choosing; k++)
    found |= !strcmp(name, choosing[k]);
  for (int k = 0; k < CASES && !found; k++)
    found = !strcmp(cases[k].preset, name);
  ck_assert_msg(found, "preset %s", name);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("papers");
  TCase *tests = tcase_create("papers");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, pairs_are_the_papers, 0, CASES);
  tcase_add_loop_test(tests, every_preset_has_a_case, 0, dil_preset_count());
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
