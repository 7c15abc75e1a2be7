/* general.c - the strategy that takes every plan: templates/general/general.cu
 * with mma.sync. Its variants and configurations differ only in their tiles. A
 * configuration with fewer keys for each tile needs fewer registers and less
 * shared memory. */
#include "gpu.h"
#include "runtime/cuda/chips.h"
#include "runtime/rowset/patch.h"
#include <string.h>

typedef struct general_tiles {
  int32_t warps, groups, keys; /* groups: 16 rows each, of a warp */
  int32_t blocks;              /* least thread blocks of a processor */
  bool q_in_registers;         /* queries stay in registers */
  bool lenient; /* registers may spill: no smaller tile exists */
} general_tiles;

static int32_t general_rows(const general_tiles *tl) {
  return 16 * tl->groups * tl->warps;
}

int64_t general_scratch_bytes(const dil_table *t) {
  return 512 + (has_multiplicity(t) ? 2 * 24 * t->branch_count : 0);
}

/* Returns whether some pass may have patches. */
static bool general_may_patch(const dil_table *t) {
  bool may = false;
  for (int32_t p = 0; p < t->pass_count; p++)
    may |= patch_may(t, &t->passes[p]);
  return may;
}

int64_t general_patch_bytes(const dil_table *t, int32_t rows, int32_t keys) {
  enum { BOXES = 144, COLUMN = 16, SPAN = 8, ROW = 4 };
  if (!general_may_patch(t)) return 0;
  return BOXES + 2 * COLUMN * keys + (SPAN * t->grid.axes + ROW) * rows;
}

void general_put_patches(source_text *text, const dil_table *t) {
  put(text, "#define PATCH_AXES %d\n", general_may_patch(t) ? t->grid.axes : 0);
}

int64_t general_pitch(const dil_table *t, int64_t width) {
  int64_t bytes = (int64_t)dil_dtype_size(t->dtype), depth = bytes == 4 ? 8 : 16;
  return (width + depth - 1) / depth * depth * bytes + 16;
}

/* Keys that several heads list are held for all of them: the table says whose. */
static bool general_asks_table(const dil_table *t, int32_t list,
                               bool holds_keys) {
  return holds_keys && t->inputs[list].rank > 1 && t->heads > t->kv_heads;
}

void general_put_tables(source_text *text, const plan *p, bool holds_keys) {
  const dil_table *t = &p->table;
  plan own = *p;
  dil_branch branches[DIL_BRANCH_MAX];
  bool listed = false;
  memcpy(branches, t->branches, (size_t)t->branch_count * sizeof *branches);
  own.table.branches = branches;
  for (int32_t i = 0; i < t->pass_count; i++) {
    int32_t list = dil_pass_list(t, &t->passes[i]);
    listed |= list >= 0;
    if (list < 0 || general_asks_table(t, list, holds_keys)) continue;
    for (uint64_t rest = t->passes[i].branches; rest; rest &= rest - 1) {
      dil_branch *b = &branches[__builtin_ctzll(rest)];
      b->predicate = b->rest;
    }
  }
  if (listed) put(text, "#define LISTED 1\n");
  put_tables(text, &own);
}

static int64_t general_scratch(const dil_table *t, const general_tiles *tl) {
  return general_scratch_bytes(t) +
         general_patch_bytes(t, general_rows(tl), tl->keys);
}

/* The shared memory of a thread block, laid out at the top of
 * templates/general/general.cu. */
static int64_t general_shared_bytes(const dil_table *t,
                                    const general_tiles *tl) {
  int64_t key_pitch = general_pitch(t, t->head_dim);
  int64_t value_pitch = general_pitch(t, t->value_dim), keys = tl->keys;
  int64_t loop = (general_rows(tl) + keys) * key_pitch + keys * value_pitch +
                 keys + 4 * keys + (t->dropout > 0 ? 4 * keys : 0);
  int64_t end = 16 * tl->warps * ((t->value_dim + 2) | 1) * 4;
  return general_scratch(t, tl) + (loop > end ? loop : end);
}

/* Configurations in order of preference: f32 with wide heads, f32, 16-bit
 * types. The last of each row fits every chip, however large the scratch
 * memory. */
enum { WIDE = 128, NARROW = 80, CHOICES = 4 };
static const general_tiles choices[3][CHOICES] = {
    {{4, 1, 16, 1, false, true}, {2, 1, 16, 1, false, true}},
    {{4, 1, 32, 3, false, false},
     {4, 1, 32, 1, false, false},
     {4, 1, 16, 1, false, true}},
    {{4, 1, 64, 3, true, false},
     {4, 1, 64, 1, false, false},
     {4, 1, 32, 1, false, false},
     {4, 1, 16, 1, false, true}},
};
/* Tiles for many rows: f32, 16-bit types, 16-bit types of chips that do not
 * hold queries in registers. Their rows share more reads of keys and values, and
 * leave no registers for masks and scores. */
static const general_tiles large[3] = {{4, 2, 32, 2, false, false},
                                       {4, 2, 64, 2, true, false},
                                       {4, 2, 64, 2, false, false}};

static bool general_is_narrow(const dil_table *t) {
  return t->head_dim <= NARROW && t->value_dim <= NARROW;
}

/* Configuration number `fallback` among the choices that fit the chip. */
static const general_tiles *general_choose(const gpu_request *r,
                                           int32_t fallback) {
  const dil_table *t = &r->common.plan->table;
  bool wide = t->value_dim > WIDE || t->head_dim > WIDE;
  const general_tiles *list = choices[t->dtype != DIL_F32 ? 2 : wide ? 0 : 1];
  for (int32_t i = 0; i < CHOICES && list[i].warps; i++)
    if ((list[i].blocks == 1 || general_is_narrow(t)) &&
        general_shared_bytes(t, &list[i]) <= gpu_shared_limit(r->arch) &&
        fallback-- == 0)
      return &list[i];
  return NULL;
}

static const general_tiles *general_choose_large(const gpu_request *r) {
  const dil_table *t = &r->common.plan->table;
  bool registers = cuda_chip_like(r->arch)->q_in_registers;
  const general_tiles *tl = &large[t->dtype == DIL_F32 ? 0 : registers ? 1 : 2];
  bool plain = general_is_narrow(t) && !t->scored && t->dropout == 0;
  if (cuda_chip_fast(r->arch) && t->dtype != DIL_F32 && !r->only)
    return NULL; /* the fast family takes these: nothing to compile */
  for (int32_t i = 0; i < t->predicate_count; i++)
    plain = plain && !t->predicates[i].masked;
  return plain && general_shared_bytes(t, tl) <= gpu_shared_limit(r->arch)
             ? tl
             : NULL;
}

/* ---- knobs --------------------------------------------------------------- */

enum { ROWS = 16, GROUPS_MOST = 4, WARPS_MOST = 16 };

/* The tiles of a schedule; fields without a knob are those of the first
 * choice. */
static general_tiles general_tiles_of_knobs(const gpu_request *r) {
  gpu_request plain = *r;
  plain.knobs = NULL;
  general_tiles tl = *general_choose(&plain, 0);
  int32_t groups = tl.warps * tl.groups; /* groups of the tile */
  if (knob_given(r->knobs, KNOB_TILE)) {
    groups = r->knobs->value[KNOB_TILE][0] / ROWS;
    tl.keys = r->knobs->value[KNOB_TILE][1];
    tl.blocks = 1;
    tl.warps = groups;
  }
  if (knob_given(r->knobs, KNOB_WARPS))
    tl.warps = r->knobs->value[KNOB_WARPS][0];
  if (knob_given(r->knobs, KNOB_BLOCKS))
    tl.blocks = r->knobs->value[KNOB_BLOCKS][0];
  tl.groups = tl.warps && groups % tl.warps == 0 ? groups / tl.warps : 0;
  tl.q_in_registers = tl.q_in_registers && tl.groups == 1;
  tl.lenient = false;
  return tl;
}

static bool general_knobs_fit(const gpu_request *r, char *reason, size_t size) {
  general_tiles tl = general_tiles_of_knobs(r);
  int64_t shared = general_shared_bytes(&r->common.plan->table, &tl);
  bool whole = !knob_given(r->knobs, KNOB_TILE) ||
               r->knobs->value[KNOB_TILE][0] % ROWS == 0;
  if (!whole || tl.groups < 1 || tl.groups > GROUPS_MOST ||
      tl.warps > WARPS_MOST)
    snprintf(reason, size, "its rows are not %d, or up to %d times that, for "
             "each of 1 to %d warps", ROWS, GROUPS_MOST, WARPS_MOST);
  else if (tl.keys % 16 || tl.keys > 64)
    snprintf(reason, size, "%d keys a tile are none of 16, 32, 48 and 64",
             tl.keys);
  else if (shared * tl.blocks > gpu_shared_limit(r->arch))
    snprintf(reason, size,
             "%d blocks of %lld bytes are more shared memory "
             "than the %lld of a processor",
             tl.blocks, (long long)shared,
             (long long)gpu_shared_limit(r->arch));
  else
    return true;
  return false;
}

bool general_can(const gpu_request *r, char *reason, size_t size) {
  if (cuda_chip_like(r->arch)) return true;
  snprintf(reason, size, "mma.sync and cp.async need sm_%d",
           cuda_chip_row(0)->number);
  return false;
}

static bool general_can_with_knobs(const gpu_request *r, char *reason,
                                   size_t size) {
  return general_can(r, reason, size) &&
         (!r->knobs || general_knobs_fit(r, reason, size));
}

/* ---- source -------------------------------------------------------------- */

/* Finds the tiles of a configuration. Variant 0 is the kernel for many rows, if
 * there is one. With knobs there is one variant. */
static bool general_find_tiles(const gpu_request *r, int32_t variant,
                               int32_t fallback, general_tiles *tl) {
  const general_tiles *many = r->knobs ? NULL : general_choose_large(r),
                      *found = NULL;
  general_tiles tuned;
  if (r->knobs) {
    tuned = general_tiles_of_knobs(r);
    if (variant == 0 && fallback == 0) found = &tuned;
  } else if (many && variant == 0) {
    if (fallback == 0) found = many;
  } else if (variant == (many != NULL)) {
    found = general_choose(r, fallback);
  }
  if (found) *tl = *found;
  return found != NULL;
}

static bool general_write(const gpu_request *r, int32_t variant,
                          int32_t fallback, dil_cuda_code *code,
                          source_text *text) {
  general_tiles tl;
  if (!general_find_tiles(r, variant, fallback, &tl)) return false;
  const dil_table *t = &r->common.plan->table;
  int32_t rows = general_rows(&tl);
  *code = (dil_cuda_code){.family = "general",
                          .arch = r->arch,
                          .lenient = tl.lenient,
                          .passes = UINT64_MAX,
                          .threads = 32 * tl.warps,
                          .shared = (int32_t)general_shared_bytes(t, &tl),
                          .tile_rows = rows,
                          .tile_keys = tl.keys};
  code->knob[GENERAL_KNOB_WHOLE] = r->full_sequences_only;
  code->knob[GENERAL_KNOB_MANY] = !r->knobs && tl.groups > 1;
  if (knob_given(r->knobs, KNOB_PARTS))
    code->knob[GENERAL_KNOB_PARTS] = r->knobs->value[KNOB_PARTS][0];
  snprintf(code->variant, sizeof code->variant, "general %s %dx%d d%d",
           dil_dtype_name(t->dtype), rows, tl.keys, t->head_dim);
  general_put_tables(text, r->common.plan, false);
  put_expressions(text, r->common.plan);
  put_cover(text, r->common.plan);
  put_choices(text, r->common.plan, cuda_chip_fast(r->arch) != NULL);
  put(text, "#define WARPS %d\n#define ROW_GROUPS %d\n#define TILE_KEYS %d\n",
      tl.warps, tl.groups, tl.keys);
  put(text, "#define SHARDS %d\n", !r->full_sequences_only);
  put(text,
      "#define BLOCKS %d\n#define Q_IN_REGISTERS %d\n#define SCRATCH_BYTES "
      "%lld\n",
      tl.blocks, tl.q_in_registers, (long long)general_scratch(t, &tl));
  general_put_patches(text, t);
  put(text, "#define SHARED_BYTES %d\n", code->shared);
  put_template(text, "templates/general/general.cu");
  return true;
}

/* Proposes tiles with numbers of blocks for each processor, then split-K parts
 * with the default tiles. */
static bool general_propose(int32_t index, knobs *k) {
  static const int32_t keys[] = {16, 32, 64};
  enum { HEIGHTS = 3, WIDTHS = 3, HELD = 3, SHARES = 2, PARTS = 7 };
  enum { TILES = HEIGHTS * WIDTHS * HELD * SHARES };
  if (index >= TILES + PARTS) return false;
  k->given = 1u << KNOB_FAMILY;
  k->value[KNOB_FAMILY][0] = FAMILY_GENERAL;
  if (index >= TILES) {
    k->given |= 1u << KNOB_PARTS;
    k->value[KNOB_PARTS][0] = 1 << (index - TILES);
    return true;
  }
  k->given |= 1u << KNOB_TILE | 1u << KNOB_WARPS | 1u << KNOB_BLOCKS;
  k->value[KNOB_TILE][0] = 32 << index % HEIGHTS;
  k->value[KNOB_TILE][1] = keys[index / HEIGHTS % WIDTHS];
  k->value[KNOB_BLOCKS][0] = 1 + index / HEIGHTS / WIDTHS % HELD;
  k->value[KNOB_WARPS][0] = k->value[KNOB_TILE][0] / ROWS /
                            (1 + index / HEIGHTS / WIDTHS / HELD);
  return true;
}

const gpu_strategy strategy_general = {
    "general",
    1 << KNOB_TILE | 1 << KNOB_WARPS | 1 << KNOB_BLOCKS | 1 << KNOB_PARTS,
    general_can_with_knobs, general_write, general_propose};
