/* hopper_config.c - tile configurations of the Hopper kernels; see
 * hopper_config.h.
 *
 * In: a request and a strategy's configurations. Out: the configuration of an
 * configuration, the facts of its code, the macros that
 * templates/hopper/hopper.cu takes. */
#include "hopper_config.h"
#include "runtime/cuda/chips.h"
#include "runtime/rowset/patch.h"
#include "runtime/tables/hopper_table.h"
#include <string.h>

static int32_t config_round_up(int32_t n, int32_t to) {
  return (n + to - 1) / to * to;
}

/* The shared memory of a thread block, laid out at the top of
 * templates/hopper/hopper.cu. HOPPER_REST_BYTES covers barriers, messages and
 * zeros. */
int32_t hopper_config_bytes(const dil_table *t, const hopper_config *s) {
  int32_t q = config_round_up(t->head_dim, 32) * 2,
          v = config_round_up(t->value_dim, 32) * 2;
  return s->warpgroups * 64 * (s->queries * q + s->staged * v) +
         s->stages * s->keys * (q + v) + HOPPER_REST_BYTES(t->value_dim) +
         s->drops * HOPPER_WORD_BYTES(s->keys, s->stages, s->warpgroups);
}

static int32_t config_width(const dil_table *t) {
  return config_round_up(
      t->head_dim > t->value_dim ? t->head_dim : t->value_dim, 32);
}

/* Finds configuration number `fallback` at a plan's heads. False: there is
 * none. */
static bool config_find(const hopper_configs *all, const dil_table *t,
                        bool drops, int32_t fallback, hopper_config *s) {
  int32_t width = 0;
  for (int32_t i = 0; i < all->count; i++) {
    *s = all->row[i];
    s->drops = drops;
    if (s->width < config_width(t) || (width && s->width > width)) continue;
    width = s->width;
    if (hopper_config_bytes(t, s) <= HOPPER_SHARED_MOST && fallback-- == 0)
      return true;
  }
  return false;
}

/* ---- knobs --------------------------------------------------------------- */

/* The first configuration with a schedule's numbers in place of its own. */
static hopper_config config_of_knobs(const gpu_request *r,
                                     const hopper_configs *all, bool drops) {
  const dil_table *t = &r->common.plan->table;
  hopper_config s;
  config_find(all, t, false, 0, &s);
  s.drops = drops;
  if (knob_given(r->knobs, KNOB_TILE)) {
    s.warpgroups = r->knobs->value[KNOB_TILE][0] / 64;
    s.keys = r->knobs->value[KNOB_TILE][1];
  }
  if (knob_given(r->knobs, KNOB_STAGES))
    s.stages = r->knobs->value[KNOB_STAGES][0];
  all->adapt(t, &s);
  return s;
}

static bool config_knobs_fit(const gpu_request *r, const hopper_configs *all,
                             char *reason, size_t size) {
  const dil_table *t = &r->common.plan->table;
  hopper_config s = config_of_knobs(r, all, t->dropout > 0);
  int32_t shared = hopper_config_bytes(t, &s);
  int32_t rows = knob_given(r->knobs, KNOB_TILE) ? r->knobs->value[KNOB_TILE][0]
                                                 : 64 * s.warpgroups;
  if (!all->fits(&s, rows, reason, size)) return false;
  if (shared <= HOPPER_SHARED_MOST) return true;
  snprintf(reason, size, "%d bytes of shared memory are more than %d", shared,
           HOPPER_SHARED_MOST);
  return false;
}

/* ---- passes of a strategy ------------------------------------------------ */

/* The passes that have tables and are `pairwise` or not, as asked; `reason`
 * becomes that of the last pass that is left out. Without knobs, the kernels for
 * grids and the general ones have those that visit far fewer keys by patches. */
static uint64_t config_passes(const gpu_request *r, int32_t keys, bool pairwise,
                              char *reason, size_t size) {
  const dil_table *t = &r->common.plan->table;
  hopper_table made;
  uint64_t passes = 0;
  for (int32_t p = 0; p < t->pass_count && p < 64; p++) {
    if (!hopper_table_fill(t, p, keys, &made, reason, size)) continue;
    if (!r->knobs && (patch_saves(t, &t->passes[p]) || hopper_grid_takes(t, p)))
      snprintf(reason, size, "patches of the grid see far fewer keys");
    else if (made.pairwise == pairwise)
      passes |= 1ull << p;
    else
      snprintf(reason, size,
               pairwise ? "no masks or scores" : "masks or scores");
  }
  return passes;
}

/* The passes need room in the tables of the kernel's launch, and code. `bare`: for rows
 * that no branch selects. `shifts`: for residues that shift from segment to segment.
 * `left`: for windows with a left bound; `back`: for those that end before the row;
 * `each`: for branches of every phase. */
typedef struct kernel_features {
  launch_layout layout;
  bool bare, shifts, left, back, each;
} kernel_features;

static void features_add(const hopper_table *made, kernel_features *w) {
  layout_add(&w->layout, made);
  w->bare |= made->bare;
  w->shifts |= made->relative || made->period != made->interval;
  for (int32_t i = 0; i < made->range_count; i++) {
    w->left |= made->ranges[i].left < HOPPER_FAR;
    w->back |= made->ranges[i].right < 0;
  }
  for (int32_t i = 0; i < made->class_count; i++)
    w->each |= made->classes[i].phases > 1;
}

static kernel_features config_features(const dil_table *t, uint64_t passes,
                                       int32_t keys, bool keeps_states) {
  hopper_table made;
  char reason[128];
  kernel_features w = {.layout = layout_of(t, keeps_states)};
  for (int32_t p = 0; p < t->pass_count && p < 64; p++)
    if ((passes >> p & 1) &&
        hopper_table_fill(t, p, keys, &made, reason, sizeof reason))
      features_add(&made, &w);
  return w;
}

bool hopper_config_is_nested(const dil_table *t) {
  for (int32_t p = 0; p < t->pass_count; p++)
    if (!hopper_is_nested(t, t->passes[p].branches)) return false;
  return true;
}

bool hopper_config_can(const gpu_request *r, const hopper_configs *all,
                       char *reason, size_t size) {
  const dil_table *t = &r->common.plan->table;
  hopper_config first;
  const char *fast = cuda_chip_fast(r->arch);
  if (!fast || strcmp(fast, "hopper")) {
    snprintf(reason, size, "wgmma needs sm_90a");
    return false;
  }
  if (!config_find(all, t, false, 0, &first)) {
    snprintf(reason, size, "%sa head_dim of %d by %d", all->what, t->head_dim,
             t->value_dim);
    return false;
  }
  if (r->knobs && !config_knobs_fit(r, all, reason, size)) return false;
  int32_t keys = r->knobs ? config_of_knobs(r, all, false).keys : first.keys;
  return config_passes(r, keys, all->pairwise, reason, size) != 0;
}

/* ---- a configuration
 * ---------------------------------------------------------- */

/* Whether rows may resume the running state of other passes or shards. */
static bool config_has_states(const gpu_request *r) {
  return !r->full_sequences_only || r->common.plan->table.pass_count > 1;
}

static void config_describe(const gpu_request *r, const hopper_configs *all,
                            const hopper_config *s, dil_cuda_code *code) {
  const dil_table *t = &r->common.plan->table;
  char reason[256];
  *code = (dil_cuda_code){
      .family = "hopper",
      .arch = r->arch,
      .passes = config_passes(r, s->keys, all->pairwise, reason, sizeof reason),
      .threads = 128 * (s->warpgroups + 1),
      .shared = hopper_config_bytes(t, s),
      .tile_rows = 64 * s->warpgroups,
      .tile_keys = s->keys,
      .knob = {[HOPPER_KNOB_WHOLE] = !config_has_states(r),
               [HOPPER_KNOB_DROPS] = s->drops}};
  snprintf(code->variant, sizeof code->variant, "hopper %s%s %dx%d d%d",
           s->drops ? "dropout " : "", dil_dtype_name(t->dtype),
           code->tile_rows, s->keys, t->head_dim);
}

/* With knobs a variant has one configuration. */
bool hopper_config_write(const gpu_request *r, const hopper_configs *all,
                         int32_t variant, int32_t fallback, hopper_config *s,
                         dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  if (variant > (t->dropout > 0) || (r->knobs && fallback)) return false;
  if (!config_find(all, t, variant > 0, fallback, s)) return false;
  if (r->knobs) *s = config_of_knobs(r, all, variant > 0);
  config_describe(r, all, s, code);
  hopper_put_widths(t, text);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      s->warpgroups, s->keys, s->stages);
  kernel_features w =
      config_features(t, code->passes, s->keys, config_has_states(r));
  hopper_put_layout(&w.layout, text);
  put(text, "#define NESTED %d\n#define BARE %d\n#define SHIFTS %d\n",
      hopper_config_is_nested(t), w.bare, w.shifts);
  put(text, "#define LEFT_WINDOWS %d\n#define BACK_WINDOWS %d\n", w.left,
      w.back);
  put(text, "#define ROW_RANGES %d\n#define STATES %d\n", has_row_ranges(t),
      config_has_states(r));
  put(text, "#define EACH_PHASE %d\n", w.each);
  return true;
}

void hopper_put_layout(const launch_layout *l, source_text *text) {
  put(text, "#define HOPPER_STRIDES %d\n#define HOPPER_SHAPES %d\n", l->strides,
      l->shapes);
  put(text, "#define HOPPER_CLASSES %d\n#define HOPPER_KEY_RANGES %d\n",
      l->classes, l->ranges);
  put(text, "#define HOPPER_INSTANCES %d\n#define HOPPER_INPUTS %d\n",
      l->instances, l->inputs);
  put(text, "#define HOPPER_LIVE_BRANCHES %d\n#define HOPPER_LIVE_PHASES %d\n",
      l->live_branches, l->live_phases);
  put(text, "#define HOPPER_LAUNCH_BYTES %d\n", (int)layout_bytes(l));
}

void hopper_config_put_dropout(const gpu_request *r, const hopper_config *s,
                               source_text *text) {
  double share = s->drops ? r->common.plan->table.dropout : 0;
  put(text, "#define DROPS %d\n#undef DROPOUT\n#define DROPOUT %lluu\n",
      s->drops, (unsigned long long)(share * 4294967296.0));
}

void hopper_config_put_documents(const gpu_request *r, const hopper_config *s,
                                 dil_cuda_code *code, source_text *text) {
  const plan *p = r->common.plan;
  bool takes =
      hopper_config_is_nested(&p->table) && !s->drops && !reads_batch_row(p);
  code->knob[HOPPER_KNOB_DOCUMENTS] = takes;
  put(text, "#define DOCUMENTS %d\n", takes);
}

bool hopper_is_whole(const dil_table *t) {
  const dil_branch *b = &t->branches[0];
  return t->branch_count == 1 && t->pass_count == 1 && b->segment == 0 &&
         b->dilation == 1 && b->head_first == 0 && b->head_last + 1 == t->heads;
}

int32_t hopper_width(int32_t size) { return (size + 31) / 32 * 32; }

void hopper_put_widths(const dil_table *t, source_text *text) {
  enum { PRODUCT = 16 };
  put(text, "#define HEAD_WIDTH %d\n#define VALUE_WIDTH %d\n",
      hopper_width(t->head_dim), hopper_width(t->value_dim));
  put(text, "#define HEAD_COLUMNS %d\n#define VALUE_COLUMNS %d\n",
      config_round_up(t->head_dim, PRODUCT), config_round_up(t->value_dim, PRODUCT));
}
