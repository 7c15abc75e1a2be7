/* hopper.c - the strategy for Hopper (sm_90a) without masks and scores:
 * templates/hopper/hopper.cu.
 *
 * In: a plan with passes that the kernel's tables can describe (hopper_table).
 * Out: a kernel that depends on head sizes, element type, tile shape and a few
 * properties of the passes. The launch brings the pattern itself. The general
 * strategy takes all other calls. */
#include "hopper_config.h"

/* Narrow values leave room for more keys. */
static const hopper_config rows[] = {
    {32, 3, 128, 4, 2, 1, 0, 0, 0},  {32, 2, 128, 4, 2, 1, 0, 0, 0},
    {64, 3, 128, 4, 2, 1, 0, 0, 0},  {64, 3, 112, 4, 2, 1, 0, 0, 0},
    {64, 2, 128, 4, 2, 1, 0, 0, 0},
    {96, 2, 128, 3, 2, 1, 0, 0, 0},  {128, 2, 128, 2, 2, 1, 0, 0, 0},
    {128, 2, 112, 2, 2, 1, 0, 0, 0}, {192, 2, 128, 2, 1, 0, 0, 0, 0},
    {192, 2, 112, 2, 1, 0, 0, 0, 0}, {192, 2, 96, 2, 1, 0, 0, 0, 0},
    {256, 2, 80, 2, 1, 0, 0, 0, 0},  {256, 2, 64, 2, 1, 0, 0, 0, 0},
};

static void hopper_adapt(const dil_table *t, hopper_config *s) {
  if (hopper_config_bytes(t, s) > HOPPER_SHARED_MOST) s->queries = 1;
  if (hopper_config_bytes(t, s) > HOPPER_SHARED_MOST) s->staged = 0;
}

/* The widths that hopper_mma.cuh instantiates. */
static bool hopper_has_product(int32_t keys) {
  static const int32_t widths[] = {32,  64,  80,  96,  112,
                                   128, 160, 192, 224, 256};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (widths[i] == keys) return true;
  return false;
}

static bool hopper_fits(const hopper_config *s, int32_t tall, char *reason,
                        size_t size) {
  if (tall % 64 || tall < 128 || tall > 256)
    snprintf(reason, size, "%d rows are not 64 for each of 2 to 4 warpgroups",
             tall);
  else if (!hopper_has_product(s->keys))
    snprintf(reason, size, "%d keys are no width of its products", s->keys);
  else
    return true;
  return false;
}

static const hopper_configs shapes = {
    rows, sizeof rows / sizeof *rows, false, "", hopper_adapt, hopper_fits};

static bool hopper_can(const gpu_request *r, char *reason, size_t size) {
  return hopper_config_can(r, &shapes, reason, size);
}

static bool hopper_write(const gpu_request *r, int32_t variant,
                         int32_t fallback, dil_cuda_code *code,
                         source_text *text) {
  const dil_table *t = &r->common.plan->table;
  hopper_config s;
  if (!hopper_config_write(r, &shapes, variant, fallback, &s, code, text))
    return false;
  hopper_config_put_documents(r, &s, code, text);
  put(text, "#define VALUE_DIM %d\n#define ELEMENT %d\n", t->value_dim,
      t->dtype == DIL_BF16 ? 1 : 2);
  put(text, "#define QUERY_STAGES %d\n#define STAGED %d\n", s.queries,
      s.staged);
  if (t->sinks) {
    put_tables(text, r->common.plan);
    put_expressions(text, r->common.plan);
  }
  hopper_config_put_dropout(r, &s, text);
  put_template(text, "templates/hopper/hopper.cu");
  return true;
}

/* Proposes heights by key widths by pipeline depths, the likely depth first. */
static bool hopper_propose(int32_t index, knobs *k) {
  static const int32_t depths[] = {4, 3, 2, 5};
  static const int32_t keys[] = {64, 80, 96, 112, 128, 160, 192};
  enum { HEIGHTS = 3, WIDTHS = sizeof keys / sizeof *keys };
  enum { DEPTHS = sizeof depths / sizeof *depths };
  if (index >= HEIGHTS * WIDTHS * DEPTHS) return false;
  k->given = 1u << KNOB_FAMILY | 1u << KNOB_TILE | 1u << KNOB_STAGES;
  k->value[KNOB_FAMILY][0] = FAMILY_FAST;
  k->value[KNOB_TILE][0] = 64 * (2 + index % HEIGHTS);
  k->value[KNOB_TILE][1] = keys[index / HEIGHTS % WIDTHS];
  k->value[KNOB_STAGES][0] = depths[index / HEIGHTS / WIDTHS];
  return true;
}

const gpu_strategy strategy_hopper = {"hopper",
                                      1 << KNOB_TILE | 1 << KNOB_STAGES,
                                      hopper_can, hopper_write, hopper_propose};
