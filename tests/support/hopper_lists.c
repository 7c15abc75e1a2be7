/* hopper_lists.c - see hopper_lists.h. */
#include "hopper_lists.h"
#include "runtime/base/arithmetic.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- random lists -------------------------------------------------------- */

static uint64_t state;
int64_t random_to(int64_t n) { /* 0 .. n - 1 */
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((state >> 33) % (uint64_t)n);
}

static int64_t random_segment(void) {
  static const int64_t common[] = {0, 256, 512, 1024, 300, 500, 700, 1500};
  return random_to(3) ? common[random_to(8)] : 40 + random_to(2000);
}

static int64_t random_dilation(void) {
  static const int64_t common[] = {1, 1, 2, 3, 4, 6, 8, 12};
  return common[random_to(8)];
}

static void add_branch(hopper_list *s, int32_t b) {
  dil_branch *branch = &s->branch[b];
  *branch = (dil_branch){.segment = random_segment(),
                         .dilation = random_dilation(),
                         .head_last = HEADS - 1,
                         .predicate = random_to(4) ? -1 : 0,
                         .phase = s->phase[b]};
  if (!random_to(5)) branch->head_last = (int32_t)random_to(HEADS);
  for (int32_t h = 0; h < HEADS; h++)
    s->phase[b][h] = (int32_t)random_to(branch->dilation);
}

/* `phase each - shift`. */
static void take_each(hopper_list *s) {
  dil_branch *branch = &s->branch[0];
  branch->each = true;
  branch->shift = random_to(2) ? random_to(branch->dilation) : 0;
  for (int32_t h = 0; h < HEADS; h++) s->phase[0][h] = 0;
}

static void predicate_random(hopper_list *s) {
  s->predicate[0] =
      (dil_predicate){random_to(2) ? DIL_ENDLESS : random_to(800),
                      random_to(2) ? 0 : random_to(500), false, 0, 0, 0, 0};
  bool all = random_to(2); /* most windows are those of a whole pattern */
  for (int32_t b = 0; all && b < s->table.branch_count; b++)
    s->branch[b].predicate = 0;
}

/* One pass of branches, with one predicate. */
static void set_table(hopper_list *s, int32_t kv_heads, int32_t branches) {
  s->table = (dil_table){.name = "list",
                         .heads = HEADS,
                         .kv_heads = kv_heads,
                         .head_dim = 64,
                         .value_dim = 64,
                         .dtype = DIL_BF16,
                         .branch_count = branches,
                         .pass_count = 1,
                         .predicate_count = 1,
                         .chain_count = 1,
                         .branches = s->branch,
                         .passes = &s->pass,
                         .predicates = s->predicate};
}

void list_random(hopper_list *s, uint64_t seed) {
  state = seed * 7919 + 1;
  random_to(2);
  int32_t branches = 1 + (int32_t)random_to(BRANCHES);
  *s = (hopper_list){.B = 1 + random_to(2)};
  s->pass = (dil_pass){(1ull << branches) - 1, 1};
  for (int32_t b = 0; b < branches; b++) {
    add_branch(s, b);
    if (branches == 1 && !random_to(4)) {
      s->branch[0].dilation = 65 + random_to(200);
      for (int32_t h = 0; h < HEADS; h++)
        s->phase[0][h] = (int32_t)random_to(s->branch[0].dilation);
    }
    if (branches == 1 && s->branch[0].dilation > 1 && !random_to(2))
      take_each(s);
    int64_t period = s->pass.period, r = s->branch[b].dilation;
    while (s->pass.period % r) s->pass.period += period;
  }
  s->M = 1 + random_to(random_to(3) ? 3000 : 9000);
  s->N = random_to(2) ? s->M : 1 + random_to(3000);
  set_table(s, HEADS, branches);
  s->table.dedup = random_to(3) > 0;
  if (!random_to(3)) s->table.combine = DIL_COMBINE_UNION;
  s->table.dedup |= s->table.combine == DIL_COMBINE_UNION;
  predicate_random(s);
}

const char *list_describe(const hopper_list *s) {
  static char text[1000];
  int n = snprintf(text, sizeof text, "B %d N %d M %d, %s%s:", (int)s->B,
                   (int)s->N, (int)s->M,
                   s->table.combine == DIL_COMBINE_UNION ? "union" : "softmax",
                   s->table.dedup ? ", dedup" : "");
  for (int32_t b = 0; b < s->table.branch_count; b++)
    n += snprintf(text + n, sizeof text - (size_t)n,
                  " (%d, %d%s %d, heads to %d, phases %d %d %d %d, %s)",
                  (int)s->branch[b].segment, (int)s->branch[b].dilation,
                  s->branch[b].each ? ", each -" : ",",
                  (int)s->branch[b].shift, s->branch[b].head_last, s->phase[b][0], s->phase[b][1],
                  s->phase[b][2], s->phase[b][3],
                  s->branch[b].predicate < 0 ? "all" : "window");
  const hopper_place *at = &s->place;
  snprintf(text + n, sizeof text - (size_t)n,
           " window %lld %lld, rows %lld on, %lld..%lld, keys %lld..%lld%s "
           "%d %d %d",
           (long long)s->predicate[0].left, (long long)s->predicate[0].right,
           (long long)at->first, (long long)at->low, (long long)at->high,
           (long long)at->key_low, (long long)at->key_high,
           at->shorter ? ", lengths" : ", not", s->lengths[0], s->lengths[1],
           s->lengths[2]);
  return text;
}

/* ---- known lists --------------------------------------------------------- */

hopper_list *list_known(const known_shape *l, dil_combine combine, bool dedup) {
  hopper_list *s = calloc(1, sizeof *s);
  *s = (hopper_list){.B = l->B, .N = l->N, .M = l->M};
  s->pass = (dil_pass){(1ull << l->branches) - 1, 1};
  for (int32_t b = 0; b < l->branches; b++) {
    s->branch[b] = (dil_branch){.segment = l->segment[b],
                                .dilation = l->dilation[b],
                                .head_last = HEADS - 1,
                                .predicate = -1,
                                .phase = s->phase[b]};
    for (int32_t h = 0; h < HEADS; h++)
      s->phase[b][h] = h % (int32_t)l->dilation[b];
    int64_t period = s->pass.period;
    while (s->pass.period % l->dilation[b]) s->pass.period += period;
  }
  s->predicate[0] = (dil_predicate){100, 0, false, 0, 0, 0, 0};
  set_table(s, 2, l->branches);
  s->table.dedup = dedup;
  s->table.combine = combine;
  return s;
}

/* ---- the definition ------------------------------------------------------ */

bool list_selects(const hopper_list *s, int32_t b, int32_t h, int64_t t) {
  const dil_branch *branch = &s->branch[b];
  if (h > branch->head_last || (t < 0 && branch->segment)) return false;
  int64_t inside = branch->segment ? t % branch->segment : t;
  int64_t r = branch->dilation;
  return branch->each || ((inside - branch->phase[h]) % r + r) % r == 0;
}

bool list_reaches(const hopper_list *s, int32_t b, int32_t h, int64_t t,
                  int64_t j) {
  const dil_branch *branch = &s->branch[b];
  int64_t segment = branch->segment;
  if (!list_selects(s, b, h, t) || !list_selects(s, b, h, j)) return false;
  if (segment && t / segment != j / segment) return false;
  if (branch->each && floor_mod(t - j - branch->shift, branch->dilation))
    return false;
  const dil_predicate *p = &s->table.predicates[branch->predicate];
  return branch->predicate < 0 || (j - t <= p->right && t - j <= p->left);
}
