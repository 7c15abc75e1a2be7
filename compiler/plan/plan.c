/* plan.c - from the meaning to a chain of passes.
 *
 * In: a checked pattern and what is forced. Out: a plan, that is the tables
 * that the run time walks (runtime/plan_table.h) and the expressions behind
 * their numbers. Branches that share heads run in one pass, with one running
 * softmax, where the rows of a class fill tiles (on a GPU by counting: fuse.c);
 * else each is its own pass and resumes the state of the one before. */
#include "planner.h"
#include "compiler/analysis/cover.h"
#include "compiler/pattern/key_span.h"
#include "runtime/base/arithmetic.h"
#include <assert.h>

/* ---- conditions ---------------------------------------------------------- */

static expr *join_conditions(arena *a, expr_op op, expr *left, expr *right) {
  if (!left) return right;
  expr *e = ARENA_NEW(a, expr);
  *e = (expr){.op = op, .type = TYPE_CONDITION, .at = right->at, .count = 2};
  e->arg = ARENA_ARRAY(a, expr *, 2);
  e->arg[0] = left;
  e->arg[1] = right;
  return e;
}

/* Masks and keeps of a branch as one condition; NULL: none. Masks that bounds
 * say become part of `bounds`, unless that is NULL. */
static expr *condition_of(arena *a, const branch *b, pair_bounds *bounds) {
  expr *all = NULL;
  for (int32_t m = 0; m < b->mask_count; m++)
    if (!bounds || !pair_bounds_take(b->mask[m], bounds))
      all = join_conditions(a, EXPR_AND, all, b->mask[m]);
  for (int32_t level = 0; level < 2; level++) {
    expr *any = NULL;
    for (int32_t k = 0; k < b->keeps[level].count; k++)
      any = join_conditions(a, EXPR_OR, any, b->keeps[level].keep[k].condition);
    if (any) all = join_conditions(a, EXPR_AND, all, any);
  }
  return all;
}

static bool same_condition(const expr *a, const expr *b) {
  return a && b ? expr_same(a, b) : a == b;
}

static bool same_predicate(const dil_predicate *a, const dil_predicate *b) {
  return a->left == b->left && a->right == b->right &&
         a->key_first == b->key_first && a->key_end == b->key_end &&
         a->row_first == b->row_first && a->row_end == b->row_end;
}

/* The predicate of a branch, one for all branches that have the same. */
static int32_t predicate_of(planner *pl, const branch *b) {
  dil_predicate *list = (dil_predicate *)pl->plan->table.predicates;
  pair_bounds x = {.left = b->left,
                   .right = b->causal && b->right > 0 ? 0 : b->right};
  bool unites = pl->plan->table.combine == DIL_COMBINE_UNION;
  expr *condition = condition_of(pl->arena, b, unites ? NULL : &x);
  dil_predicate made = {.left = x.left,
                        .right = x.right,
                        .masked = condition != NULL,
                        .key_first = x.keys.first,
                        .key_end = x.keys.end,
                        .row_first = x.rows.first,
                        .row_end = x.rows.end};
  if (!condition && x.left == DIL_ENDLESS && x.right == DIL_ENDLESS &&
      !dil_predicate_has_range(&made))
    return -1;
  int32_t p = 0;
  for (; p < pl->plan->table.predicate_count; p++)
    if (same_predicate(&list[p], &made) &&
        same_condition(pl->plan->predicate[p], condition))
      return p;
  list[p] = made;
  pl->plan->predicate[p] = condition;
  pl->plan->table.predicate_count++;
  return p;
}

static bool same_chain(expr *const *chain, const branch *b) {
  int32_t i = 0;
  for (; i < b->score_count; i++)
    if (!chain[i] || !expr_same(chain[i], b->score[i])) return false;
  return chain[i] == NULL;
}

static int32_t chain_of(planner *pl, const branch *b) {
  int32_t c = 0;
  for (; c < pl->plan->table.chain_count; c++)
    if (same_chain(pl->plan->chain[c], b)) return c;
  expr **list = ARENA_ARRAY(pl->arena, expr *, b->score_count + 1);
  for (int32_t i = 0; i < b->score_count; i++) list[i] = b->score[i];
  pl->plan->chain[c] = list;
  pl->plan->table.chain_count++;
  pl->plan->table.scored |= b->score_count > 0;
  return c;
}

static void mark_mask_inputs(const expr *e, dil_input *inputs) {
  key_span keys = key_span_of(e);
  if (e->op == EXPR_INPUT) inputs[e->integer].masks = true;
  if (keys.kind == SPAN_ALIKE) inputs[keys.row->integer].spans = true;
  for (int32_t i = 0; i < e->count; i++) mark_mask_inputs(e->arg[i], inputs);
}

/* ---- tables -------------------------------------------------------------- */

static void fill_sizes(planner *pl, const pattern *p) {
  dil_table *t = &pl->plan->table;
  t->name = p->name;
  t->heads = (int32_t)p->heads;
  t->kv_heads = (int32_t)p->kv_heads;
  t->head_dim = (int32_t)p->head_dim;
  t->value_dim = (int32_t)p->value_dim;
  t->dtype = p->dtype;
  t->combine = p->combine;
  t->runtime_scale = p->scale_kind == SCALE_RUNTIME;
  t->scale = p->scale;
  t->dropout = p->dropout;
  t->lse_allowed = pattern_has_lse(p);
  t->sinks = pattern_has_sinks(p);
  for (int32_t b = 0; b < p->branch_count; b++)
    if (p->branch[b].sink_count) t->sink_branches |= 1ull << b;
  t->grid = p->grid;
  t->branch_count = p->branch_count;
  t->input_count = p->input_count;
  t->made_count = p->made_count;
}

/* Key tiles that no border of a block mask cuts. */
static int32_t tile_keys_of(const pattern *p) {
  enum { MOST = 128, LEAST = 32 };
  int64_t keys = MOST;
  for (int32_t b = 0; b < p->branch_count; b++)
    for (int32_t level = 0; level < 2; level++) {
      int64_t block = p->branch[b].keeps[level].block;
      if (p->branch[b].keeps[level].count && block < MOST)
        keys = block > LEAST ? MOST / block * block : keys;
    }
  return (int32_t)keys;
}

/* The branch's reach along a grid's axes, in the form of the run time. */
static dil_reach reach_of(const planner *pl, const branch *b) {
  dil_reach out = {.alone = b->mask_count == b->reach.mask_count &&
                            !b->keeps[0].count && !b->keeps[1].count};
  for (int32_t a = 0; a < pl->plan->pattern->grid.axes; a++) {
    out.left[a] = b->reach.left[a];
    out.right[a] = b->reach.right[a];
    out.kernel[a] = b->reach.kernel[a];
    out.dilation[a] = b->reach.dilation[a];
    out.causal[a] = b->reach.causal[a];
  }
  return out;
}

/* The list of keys that a branch sees, which a pass of its own may visit. */
static void find_list(planner *pl, const branch *b, dil_branch *out) {
  const pattern *p = pl->plan->pattern;
  branch without = *b;
  int32_t m = pattern_key_list(p, b);
  bool room = 2 * p->branch_count <= DIL_PART_MAX; /* for predicates */
  out->listed = out->rest = -1;
  if (!room || m < 0) return;
  without.mask = ARENA_ARRAY(pl->arena, expr *, b->mask_count);
  without.mask_count = 0;
  for (int32_t k = 0; k < b->mask_count; k++)
    if (k != m) without.mask[without.mask_count++] = b->mask[k];
  out->listed = (int32_t)b->mask[m]->arg[0]->integer;
  out->rest = predicate_of(pl, &without);
}

static void fill_branch(planner *pl, const branch *b, dil_branch *out) {
  *out = (dil_branch){.segment = b->segment,
                      .dilation = b->dilation,
                      .head_first = b->head_first,
                      .head_last = b->head_last,
                      .predicate = predicate_of(pl, b),
                      .chain = chain_of(pl, b),
                      .phase = b->phase,
                      .each = branch_has_each(b),
                      .shift = b->shift,
                      .reach = reach_of(pl, b)};
  find_list(pl, b, out);
}

/* Finds the forms of all chains, for the widest window of the branches. */
static void fill_forms(planner *pl) {
  const dil_table *t = &pl->plan->table;
  score_pairs pairs = {INT64_MIN, INT64_MIN, t->heads};
  for (int32_t b = 0; b < t->branch_count; b++) {
    int32_t k = t->branches[b].predicate;
    int64_t left = k < 0 ? DIL_ENDLESS : t->predicates[k].left;
    int64_t right = k < 0 ? DIL_ENDLESS : t->predicates[k].right;
    if (left > pairs.left) pairs.left = left;
    if (right > pairs.right) pairs.right = right;
  }
  pl->plan->form = ARENA_ARRAY(pl->arena, score_form, t->chain_count);
  for (int32_t c = 0; c < t->chain_count; c++)
    pl->plan->form[c] = score_form_of(pl->arena, pl->plan->chain[c], &pairs);
}

static void fill_choices(planner *pl, const pattern *p) {
  dil_table *t = &pl->plan->table;
  dil_choice *choices = ARENA_ARRAY(pl->arena, dil_choice, p->branch_count);
  for (int32_t b = 0; b < p->branch_count; b++) {
    if (branch_choice(&p->branch[b]))
      choices[t->choice_count++] = pattern_choice(p, b);
  }
  t->choices = choices;
}

static void fill_tables(planner *pl, const pattern *p) {
  dil_table *t = &pl->plan->table;
  int32_t n = p->branch_count;
  dil_branch *branches = ARENA_ARRAY(pl->arena, dil_branch, n);
  dil_input *inputs = ARENA_ARRAY(pl->arena, dil_input, pattern_reads(p) + 1);
  t->branches = branches;
  t->inputs = inputs;
  t->predicates = ARENA_ARRAY(pl->arena, dil_predicate, 2 * n);
  t->passes = ARENA_ARRAY(pl->arena, dil_pass, n);
  pl->plan->predicate = ARENA_ARRAY(pl->arena, expr *, 2 * n);
  pl->plan->chain = ARENA_ARRAY(pl->arena, expr **, n);
  fill_sizes(pl, p);
  t->tile_keys = tile_keys_of(p);
  for (int32_t i = 0; i < pattern_reads(p); i++) inputs[i] = p->input[i];
  for (int32_t b = 0; b < n; b++) fill_branch(pl, &p->branch[b], &branches[b]);
  for (int32_t i = 0; i < t->predicate_count; i++)
    if (pl->plan->predicate[i]) mark_mask_inputs(pl->plan->predicate[i], inputs);
  fill_choices(pl, p);
  fill_forms(pl);
}

/* ---- passes -------------------------------------------------------------- */

static bool partition_heads(const dil_table *t, uint64_t branches, int32_t b) {
  const dil_branch *one = &t->branches[b];
  for (; branches; branches &= branches - 1) {
    const dil_branch *other = &t->branches[__builtin_ctzll(branches)];
    if (one->head_first <= other->head_last &&
        other->head_first <= one->head_last)
      return true;
  }
  return false;
}

bool plan_share_heads(const dil_table *t, uint64_t one, uint64_t other) {
  bool share = false;
  for (; other; other &= other - 1)
    share |= partition_heads(t, one, __builtin_ctzll(other));
  return share;
}

/* `mean` and `sum` finish each branch by itself. */
static bool is_apart(const dil_table *t) {
  return t->combine == DIL_COMBINE_MEAN || t->combine == DIL_COMBINE_SUM;
}

/* Backward, `gradient detached` asks for the o of each branch alone: a pass for
 * each makes it. Processors join the passes again where they can do without. */
static bool is_detached(const plan *p) {
  return p->direction == DIL_BACKWARD && p->table.detached &&
         !(p->force & FORCE_FUSE);
}

/* Branches that see the keys of a list visit these alone in a pass of their own. */
bool plan_share_list(const dil_table *t, uint64_t one, uint64_t other) {
  int32_t list = t->branches[__builtin_ctzll(other)].listed;
  for (uint64_t rest = one | other; rest; rest &= rest - 1)
    if (t->branches[__builtin_ctzll(rest)].listed != list) return false;
  return true;
}

static bool branch_joins(const planner *pl, uint64_t pass, int32_t b) {
  const dil_table *t = &pl->plan->table;
  if (is_apart(t) || is_detached(pl->plan) || pl->plan->force & FORCE_CHAIN ||
      !partition_heads(t, pass, b))
    return false;
  bool whole = t->combine == DIL_COMBINE_UNION || pl->plan->force & FORCE_FUSE;
  if (!whole && !plan_share_list(t, pass, 1ull << b)) return false;
  return whole || walk_fills_tiles(t, pass | 1ull << b);
}

/* Returns whether the passes are the planner's to choose, and there is a
 * choice. */
static bool counts_passes(const plan *p) {
  const unsigned forced = FORCE_FUSE | FORCE_CHAIN | FORCE_GENERAL;
  return !(p->force & forced) && !is_detached(p) && p->table.branch_count > 1 &&
         p->table.combine == DIL_COMBINE_SOFTMAX;
}

/* A branch that joins several passes makes them one. */
static void join_branches(planner *pl) {
  dil_table *t = &pl->plan->table;
  dil_pass *passes = (dil_pass *)t->passes;
  for (int32_t b = 0; b < t->branch_count; b++) {
    uint64_t mine = 1ull << b;
    int32_t kept = 0;
    for (int32_t p = 0; p < t->pass_count; p++) {
      if (branch_joins(pl, passes[p].branches, b))
        mine |= passes[p].branches;
      else passes[kept++] = passes[p];
    }
    passes[kept++].branches = mine;
    t->pass_count = kept;
  }
}

static void choose_passes(planner *pl, const plan_target *target) {
  dil_table *t = &pl->plan->table;
  dil_pass *passes = (dil_pass *)t->passes;
  if (!target || !counts_passes(pl->plan) || !fuse_choose(pl->plan, target))
    join_branches(pl);
  for (int32_t p = 0; p < t->pass_count; p++)
    passes[p].period = walk_period(t, passes[p].branches);
}

/* ---- refusals ------------------------------------------------------------ */

const char *plan_force_clash(unsigned set) {
  if (set & FORCE_FUSE && set & FORCE_CHAIN) return "fuse and chain";
  return set & FORCE_DEDUP && set & FORCE_MULTISET ? "dedup and multiset"
                                                   : NULL;
}

static void refuse_force(planner *pl, const pattern *p) {
  if (p->combine != DIL_COMBINE_UNION || p->branch_count == 1) return;
  if (pl->plan->force & FORCE_CHAIN)
    diag_report(pl->diag, SEVERITY_ERROR, p->at,
                "a key that two branches reach counts once only in one pass",
                "`combine union` cannot be forced into a chain");
  if (pl->plan->force & FORCE_MULTISET)
    diag_report(pl->diag, SEVERITY_ERROR, p->at,
                "a key that two branches reach counts once",
                "`combine union` cannot be forced into a multiset");
}

static bool is_alone(uint64_t branches) { return !(branches & (branches - 1)); }

static bool shares_with_others(const dil_table *t, int32_t pass) {
  uint64_t others = 0;
  for (int32_t i = 0; i < t->pass_count; i++)
    if (i != pass) others |= t->passes[i].branches;
  for (uint64_t rest = t->passes[pass].branches; rest; rest &= rest - 1)
    if (partition_heads(t, others, __builtin_ctzll(rest))) return true;
  return false;
}

static void refuse_pass(planner *pl, span at, int32_t i) {
  const dil_table *t = &pl->plan->table;
  const dil_pass *pass = &t->passes[i];
  if (is_apart(t) && !is_alone(pass->branches))
    diag_report(pl->diag, SEVERITY_ERROR, at,
                "`mean` and `sum` finish each branch by itself",
                "pass %d must hold one branch with this `combine`", i);
  if (t->combine == DIL_COMBINE_UNION && shares_with_others(t, i))
    diag_report(pl->diag, SEVERITY_ERROR, at,
                "a key that two branches reach counts once only in one pass",
                "pass %d must hold all branches of its heads", i);
  if (pass->period > DIL_PERIOD_MAX && !is_alone(pass->branches))
    diag_report(pl->diag, SEVERITY_ERROR, at,
                "the period is the least common multiple of the dilations",
                "branches that share a pass must have a period of at most "
                "%d, got %lld",
                DIL_PERIOD_MAX, (long long)pass->period);
}

bool plan_passes_fit(planner *pl, span at) {
  int before = diag_errors(pl->diag);
  for (int32_t i = 0; i < pl->plan->table.pass_count; i++)
    refuse_pass(pl, at, i);
  return diag_errors(pl->diag) == before;
}

/* ---- the plan ------------------------------------------------------------ */

planner plan_begin(arena *a, diag *d, const pattern *p, unsigned force) {
  planner pl = {a, d, ARENA_NEW(a, plan)};
  int before = diag_errors(d);
  pl.plan->arena = a;
  pl.plan->pattern = p;
  pl.plan->force = force;
  refuse_force(&pl, p);
  if (diag_errors(d) > before) return pl;
  fill_tables(&pl, p);
  pl.plan->table.dedup = !(force & FORCE_MULTISET);
  pl.plan->table.detached = p->detached;
  pl.plan->table.general = force & FORCE_GENERAL;
  return pl;
}

static bool masks_read_inputs(const pattern *p) {
  bool reads = false;
  for (int32_t b = 0; b < p->branch_count; b++) {
    const branch *of = &p->branch[b];
    for (int32_t m = 0; m < of->mask_count; m++)
      reads |= expr_uses(of->mask[m], EXPR_INPUT);
    reads |= of->keeps[0].count || of->keeps[1].count;
  }
  return reads;
}

/* Returns whether the branches that masks became keep about as few tiles as the
 * masks do: many thin pieces of one tile would each visit it. */
static bool keeps_few_tiles(const pattern *normal, const pattern *p) {
  enum { LENGTH = 32768, TILE = 128, FEW = 2 };
  const double more = 1.25;
  if (normal->branch_count <= p->branch_count + FEW || masks_read_inputs(p))
    return true;
  return cover_kept_tiles(normal, LENGTH, TILE, TILE) <=
         more * cover_kept_tiles(p, LENGTH, TILE, TILE);
}

const pattern *plan_normalise(arena *a, const pattern *p, unsigned force) {
  bool as_written = force & (FORCE_CHAIN | FORCE_MULTISET);
  const pattern *normal = as_written ? p : pattern_normalise(a, p);
  return keeps_few_tiles(normal, p) ? normal : p;
}

/* The fast kernels of a GPU know `phase each` alone in a pass. As a few branches,
 * it shares a pass with others. */
static const pattern *plan_spell(arena *a, const pattern *normal,
                                 unsigned force, const plan_target *target) {
  const pattern *spelled = NULL;
  if (target && !(force & FORCE_GENERAL))
    spelled = pattern_spell_each(a, normal, target->phases);
  return spelled ? spelled : normal;
}

plan *plan_fuse(arena *a, diag *d, const pattern *normal, unsigned force,
                dil_direction direction, const plan_target *target) {
  int before = diag_errors(d);
  planner pl = plan_begin(a, d, plan_spell(a, normal, force, target), force);
  if (diag_errors(d) > before) return NULL;
  plan_direct(&pl, direction);
  choose_passes(&pl, target);
  return plan_passes_fit(&pl, normal->at) ? pl.plan : NULL;
}

plan *plan_make(arena *a, diag *d, const pattern *p, unsigned force) {
  return plan_make_for(a, d, p, force, DIL_FORWARD, NULL);
}

plan *plan_make_for(arena *a, diag *d, const pattern *p, unsigned force,
                    dil_direction direction, const plan_target *target) {
  return plan_fuse(a, d, plan_normalise(a, p, force), force, direction, target);
}

plan *plan_apply_knobs(arena *a, const plan *p, const knobs *k) {
  plan *tuned = ARENA_NEW(a, plan);
  *tuned = *p;
  if (knob_given(k, KNOB_TILE_KEYS))
    tuned->table.tile_keys = k->value[KNOB_TILE_KEYS][0];
  return tuned;
}

static void plan_verify_branch(const plan *p, int32_t b) {
  const dil_branch *row = &p->table.branches[b];
  assert(row->dilation >= 1 && row->segment >= 0);
  assert(row->predicate >= -1 &&
         row->predicate < p->table.predicate_count);
  assert(row->chain >= 0 && row->chain < p->table.chain_count);
  assert(row->shift >= 0 && row->shift < row->dilation);
  for (int32_t h = 0; h < p->table.heads; h++)
    assert(row->phase[h] >= 0 && row->phase[h] < row->dilation);
}

void plan_verify(const plan *p) {
  const dil_table *t = &p->table;
  uint64_t seen = 0;
  pattern_verify(p->pattern);
  assert(t->branch_count == p->pattern->branch_count && t->pass_count >= 1);
  for (int32_t i = 0; i < t->pass_count; i++) {
    assert(t->passes[i].branches && !(seen & t->passes[i].branches));
    assert(t->passes[i].period == walk_period(t, t->passes[i].branches));
    seen |= t->passes[i].branches;
  }
  assert(seen == (t->branch_count == 64 ? ~0ull
                                        : (1ull << t->branch_count) - 1));
  for (int32_t b = 0; b < t->branch_count; b++) plan_verify_branch(p, b);
  for (int32_t i = 0; i < t->predicate_count; i++)
    assert(t->predicates[i].masked == (p->predicate[i] != NULL));
  assert(t->tile_keys >= 32 && t->tile_keys <= DIL_TILE_KEYS_MOST);
}
