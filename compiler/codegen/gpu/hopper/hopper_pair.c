/* hopper_pair.c - the strategy for Hopper (sm_90a) with masks or scores:
 * templates/hopper/hopper.cu after the plan's tables and expressions.
 *
 * In: a plan with such passes. Out: a kernel for this plan alone. The first
 * configuration leaves the planner and the consumers enough registers for most
 * expressions; later configurations change the split or the tile. */
#include "hopper_config.h"

static const hopper_config rows[] = {
    {64, 2, 128, 4, 2, 1, 104, 200, 0}, {64, 2, 128, 4, 2, 1, 152, 176, 0},
    {64, 2, 64, 4, 2, 1, 152, 176, 0},  {128, 2, 128, 2, 2, 1, 88, 208, 0},
    {128, 2, 64, 4, 2, 1, 104, 200, 0}, {128, 2, 64, 4, 2, 1, 136, 184, 0},
    {128, 2, 64, 3, 2, 1, 104, 200, 0}, {128, 2, 64, 3, 2, 1, 136, 184, 0},
};

/* With three consumer warpgroups, each thread has fewer registers. */
static void hopper_pair_adapt(const dil_table *t, hopper_config *s) {
  (void)t;
  if (s->warpgroups != 3) return;
  s->producer = s->keys > 96 ? 56 : 80;
  s->consumer = s->keys > 96 ? 152 : 144;
}

static bool hopper_pair_fits(const hopper_config *s, int32_t tall, char *reason,
                             size_t size) {
  if (tall != 128 && tall != 192)
    snprintf(reason, size, "%d rows are not 64 for each of 2 or 3 warpgroups",
             tall);
  else if (s->keys % 32 || s->keys > 128)
    snprintf(reason, size, "%d keys are none of 32, 64, 96 and 128", s->keys);
  else
    return true;
  return false;
}

static const hopper_configs shapes = {rows,
                                      sizeof rows / sizeof *rows,
                                      true,
                                      "masks or scores with ",
                                      hopper_pair_adapt,
                                      hopper_pair_fits};

static bool hopper_pair_can(const gpu_request *r, char *reason, size_t size) {
  return hopper_config_can(r, &shapes, reason, size);
}

static bool hopper_pair_write(const gpu_request *r, int32_t variant,
                              int32_t fallback, dil_cuda_code *code,
                              source_text *text) {
  hopper_config s;
  if (!hopper_config_write(r, &shapes, variant, fallback, &s, code, text))
    return false;
  put(text, "#define PAIRWISE 1\n#define CHAINS %d\n",
      r->common.plan->table.chain_count);
  put(text, "#define PRODUCER_REGISTERS %d\n#define CONSUMER_REGISTERS %d\n",
      s.producer, s.consumer);
  put_tables(text, r->common.plan);
  put_expressions(text, r->common.plan);
  put_cover(text, r->common.plan);
  put_mask_bits(text, r->common.plan);
  hopper_config_put_dropout(r, &s, text);
  put_template(text, "templates/hopper/hopper.cu");
  return true;
}

static bool hopper_pair_propose(int32_t index, knobs *k) {
  static const int32_t keys[] = {64, 96, 128};
  enum { HEIGHTS = 2, WIDTHS = sizeof keys / sizeof *keys, DEPTHS = 3 };
  if (index >= HEIGHTS * WIDTHS * DEPTHS) return false;
  k->given = 1u << KNOB_FAMILY | 1u << KNOB_TILE | 1u << KNOB_STAGES;
  k->value[KNOB_FAMILY][0] = FAMILY_FAST;
  k->value[KNOB_TILE][0] = 64 * (2 + index % HEIGHTS);
  k->value[KNOB_TILE][1] = keys[index / HEIGHTS % WIDTHS];
  k->value[KNOB_STAGES][0] = 2 + index / HEIGHTS / WIDTHS;
  return true;
}

const gpu_strategy strategy_hopper_pair = {
    "hopper pairs", 1 << KNOB_TILE | 1 << KNOB_STAGES, hopper_pair_can,
    hopper_pair_write, hopper_pair_propose};
