/* hopper.c - the strategy for Hopper (sm_90a): templates/hopper.cu.
 *
 * In: a plan whose passes the kernel's tables can describe (hopper_table).
 * Out: a kernel that depends on head sizes, element and tile shape alone; the
 * pattern itself travels in the launch. What it does not run, the general
 * strategy takes. */
#include "gpu.h"
#include "../../runtime/cuda/hopper.h"
#include <string.h>

/* A way to cut one head size; rows of one width are a member's attempts. */
typedef struct shape {
  int32_t width;       /* head_dim and value_dim up to this */
  int32_t warpgroups, keys, stages;
  int32_t queries;     /* tiles of queries held: 2, or 1 where room is short */
  int32_t staged;      /* 1: rows leave through shared memory in boxes */
} shape;

/* Narrowest first. What does not fit shared memory is passed over: with narrow
 * values there is room for more keys. */
static const shape shapes[] = {
    {32, 3, 128, 4, 2, 1},  {64, 3, 128, 4, 2, 1},  {96, 2, 128, 3, 2, 1},
    {128, 2, 128, 2, 2, 1}, {192, 2, 128, 2, 1, 0}, {192, 2, 112, 2, 1, 0},
    {192, 2, 96, 2, 1, 0},  {256, 2, 80, 2, 1, 0},  {256, 2, 64, 2, 1, 0},
};

static int32_t rounded(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

static int32_t width_of(const dil_table *t) {
  return rounded(t->head_dim > t->value_dim ? t->head_dim : t->value_dim, 32);
}

/* The layout at the top of templates/hopper.cu, barriers and messages in the
 * last 3 KiB. */
static int32_t shared_bytes(const dil_table *t, const shape *s) {
  int32_t q = rounded(t->head_dim, 32) * 2, v = rounded(t->value_dim, 32) * 2;
  return s->warpgroups * 64 * (s->queries * q + s->staged * v) +
         s->stages * s->keys * (q + v) + 3072;
}

enum { SHARED = 227 * 1024 };

/* Attempt number `attempt` at a plan's heads; NULL: there is none. */
static const shape *shape_of(const dil_table *t, int32_t attempt) {
  int32_t width = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const shape *s = &shapes[i];
    if (s->width < width_of(t) || (width && s->width > width)) continue;
    width = s->width;
    if (shared_bytes(t, s) <= SHARED && attempt-- == 0) return s;
  }
  return NULL;
}

/* ---- knobs --------------------------------------------------------------- */

/* The first attempt with a schedule's numbers in place of its own. */
static shape turned_shape(const gpu_request *r) {
  const dil_table *t = &r->plan->table;
  shape s = *shape_of(t, 0);
  if (knob_given(r->knobs, KNOB_TILE)) {
    s.warpgroups = r->knobs->value[KNOB_TILE][0] / 64;
    s.keys = r->knobs->value[KNOB_TILE][1];
  }
  if (knob_given(r->knobs, KNOB_STAGES))
    s.stages = r->knobs->value[KNOB_STAGES][0];
  if (shared_bytes(t, &s) > SHARED) s.queries = 1;
  if (shared_bytes(t, &s) > SHARED) s.staged = 0;
  return s;
}

/* The widths that hopper_mma.cuh instantiates. */
static bool has_product(int32_t keys) {
  static const int32_t widths[] = {32,  64,  80,  96,  112,
                                   128, 160, 192, 224, 256};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (widths[i] == keys) return true;
  return false;
}

static bool knobs_fit(const gpu_request *r, char *reason, size_t size) {
  shape s = turned_shape(r);
  int32_t shared = shared_bytes(&r->plan->table, &s);
  int32_t rows = knob_given(r->knobs, KNOB_TILE) ? r->knobs->value[KNOB_TILE][0]
                                                 : 64 * s.warpgroups;
  if (rows % 64 || rows < 128 || rows > 256)
    snprintf(reason, size, "%d rows are not 64 for each of 2 to 4 warpgroups",
             rows);
  else if (!has_product(s.keys))
    snprintf(reason, size, "%d keys are no width of its products", s.keys);
  else if (shared > SHARED)
    snprintf(reason, size, "%d bytes of shared memory are more than %d", shared,
             SHARED);
  else
    return true;
  return false;
}

/* The shape of an attempt; knobs leave one. */
static bool find_shape(const gpu_request *r, int32_t attempt, shape *s) {
  const shape *found = shape_of(&r->plan->table, attempt);
  if (found) *s = r->knobs ? turned_shape(r) : *found;
  return found && (!r->knobs || attempt == 0);
}

/* ---- what it takes ------------------------------------------------------- */

uint64_t hopper_passes(const dil_table *t, int32_t keys, bool paired,
                       char *reason, size_t size) {
  hopper_table made;
  uint64_t passes = 0;
  for (int32_t p = 0; p < t->pass_count && p < 64; p++) {
    if (!hopper_table_fill(t, p, keys, &made, reason, size)) continue;
    if (made.paired == paired) passes |= 1ull << p;
    else
      snprintf(reason, size, paired ? "no masks or scores"
                                    : "masks or scores");
  }
  return passes;
}

bool hopper_nested(const dil_table *t) {
  for (int32_t p = 0; p < t->pass_count; p++)
    if (!hopper_is_nested(t, t->passes[p].branches)) return false;
  return true;
}

bool hopper_chained(const dil_table *t) {
  for (int32_t h = 0; h < t->heads; h++)
    if (cuda_passes(t, h) > 1) return true;
  return false;
}

static bool can(const gpu_request *r, char *reason, size_t size) {
  const dil_table *t = &r->plan->table;
  shape s;
  if (r->arch != 90) {
    snprintf(reason, size, "wgmma needs sm_90a");
    return false;
  }
  if (!find_shape(r, 0, &s)) {
    snprintf(reason, size, "a head_dim of %d by %d", t->head_dim,
             t->value_dim);
    return false;
  }
  if (r->knobs && !knobs_fit(r, reason, size)) return false;
  return hopper_passes(t, s.keys, false, reason, size) != 0;
}

static bool write(const gpu_request *r, int32_t member, int32_t attempt,
                  dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->plan->table;
  char reason[256];
  shape s;
  if (member || !find_shape(r, attempt, &s)) return false;
  *code = (dil_cuda_code){
      .family = "hopper",
      .arch = r->arch,
      .passes = hopper_passes(t, s.keys, false, reason, sizeof reason),
      .threads = 128 * (s.warpgroups + 1),
      .shared = shared_bytes(t, &s),
      .tile_rows = 64 * s.warpgroups,
      .tile_keys = s.keys};
  snprintf(code->variant, sizeof code->variant, "hopper %s %dx%d d%d",
           dil_dtype_name(t->dtype), code->tile_rows, s.keys, t->head_dim);
  put(text, "#define HEAD_WIDTH %d\n#define VALUE_WIDTH %d\n",
      rounded(t->head_dim, 32), rounded(t->value_dim, 32));
  put(text, "#define VALUE_DIM %d\n#define ELEMENT %d\n", t->value_dim,
      t->dtype == DIL_BF16 ? 1 : 2);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      s.warpgroups, s.keys, s.stages);
  put(text, "#define QUERY_STAGES %d\n#define STAGED %d\n", s.queries,
      s.staged);
  put(text, "#define CHAINED %d\n#define NESTED %d\n", hopper_chained(t),
      hopper_nested(t));
  put_template(text, "hopper.cu");
  return true;
}

/* Heights by widths of keys by depths, the likely depth first. */
static bool propose(int32_t index, knobs *k) {
  static const int32_t depths[] = {4, 3, 2, 5};
  static const int32_t keys[] = {64, 80, 96, 112, 128, 160, 192};
  enum { HEIGHTS = 3, WIDTHS = sizeof keys / sizeof *keys };
  enum { DEPTHS = sizeof depths / sizeof *depths };
  if (index >= HEIGHTS * WIDTHS * DEPTHS) return false;
  k->given = 1u << KNOB_HOPPER | 1u << KNOB_TILE | 1u << KNOB_STAGES;
  k->value[KNOB_HOPPER][0] = 1;
  k->value[KNOB_TILE][0] = 64 * (2 + index % HEIGHTS);
  k->value[KNOB_TILE][1] = keys[index / HEIGHTS % WIDTHS];
  k->value[KNOB_STAGES][0] = depths[index / HEIGHTS / WIDTHS];
  return true;
}

const gpu_strategy strategy_hopper = {
    "hopper", 1 << KNOB_TILE | 1 << KNOB_STAGES, can, write, propose};
