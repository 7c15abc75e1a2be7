/* hopper_pair.c - the strategy for Hopper (sm_90a) with masks or scores:
 * templates/hopper/hopper.cu after the plan's tables and expressions.
 *
 * In: a plan with such passes. Out: a kernel for this plan alone. Where masks
 * decide over pairs, its planner and its loop ask them. Where only scores are
 * rewritten, they are those of patterns without masks and scores. The first
 * configuration leaves the planner and the consumers enough registers for most
 * expressions; later configurations change the split or the tile. */
#include "hopper_config.h"
#include "runtime/tables/hopper_table.h"

static const hopper_config score_rows[] = {
    {64, 3, 128, 4, 2, 1, 32, 160, 0},  {64, 3, 128, 4, 2, 1, 56, 152, 0},
    {64, 2, 128, 4, 2, 1, 40, 232, 0},  {64, 2, 64, 4, 2, 1, 88, 208, 0},
    {96, 2, 128, 3, 2, 1, 40, 232, 0},  {96, 2, 64, 4, 2, 1, 88, 208, 0},
    {128, 2, 128, 2, 2, 1, 40, 232, 0}, {128, 2, 64, 4, 2, 1, 40, 232, 0},
    {128, 2, 64, 3, 2, 1, 88, 208, 0},  {192, 2, 128, 2, 1, 0, 40, 232, 0},
    {192, 2, 112, 2, 1, 0, 40, 232, 0}, {192, 2, 96, 2, 1, 0, 40, 232, 0},
    {192, 2, 64, 2, 1, 0, 40, 232, 0},  {256, 2, 80, 2, 1, 0, 40, 232, 0},
    {256, 2, 64, 2, 1, 0, 40, 232, 0},
};

static const hopper_config mask_rows[] = {
    {64, 2, 128, 4, 2, 1, 104, 200, 0}, {64, 2, 128, 4, 2, 1, 152, 176, 0},
    {64, 2, 64, 4, 2, 1, 152, 176, 0},  {128, 2, 128, 2, 2, 1, 88, 208, 0},
    {128, 2, 64, 4, 2, 1, 104, 200, 0}, {128, 2, 64, 4, 2, 1, 136, 184, 0},
    {128, 2, 64, 3, 2, 1, 104, 200, 0}, {128, 2, 64, 3, 2, 1, 136, 184, 0},
};

/* Where lists hold the kept blocks, the planner needs fewer registers. Keys come
 * in blocks of the lists, as far as these have 128 or 64 keys. */
static const hopper_config list_rows[] = {
    {64, 2, 128, 4, 2, 1, 120, 192, 0}, {64, 2, 128, 4, 2, 1, 104, 200, 0},
    {64, 2, 128, 4, 2, 1, 152, 176, 0}, {64, 2, 64, 4, 2, 1, 152, 176, 0},
    {128, 2, 128, 2, 2, 1, 88, 208, 0}, {128, 2, 64, 4, 2, 1, 104, 200, 0},
    {128, 2, 64, 4, 2, 1, 136, 184, 0}, {128, 2, 64, 3, 2, 1, 104, 200, 0},
    {128, 2, 64, 3, 2, 1, 136, 184, 0},
};

static const hopper_config short_list_rows[] = {
    {64, 3, 64, 8, 2, 1, 104, 136, 0},  {64, 2, 64, 8, 2, 1, 136, 184, 0},
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

static const hopper_configs mask_shapes = {mask_rows,
                                           sizeof mask_rows / sizeof *mask_rows,
                                           true,
                                           "masks or scores with ",
                                           hopper_pair_adapt,
                                           hopper_pair_fits};

static const hopper_configs list_shapes = {list_rows,
                                           sizeof list_rows / sizeof *list_rows,
                                           true,
                                           "masks or scores with ",
                                           hopper_pair_adapt,
                                           hopper_pair_fits};

static const hopper_configs short_list_shapes = {
    short_list_rows, sizeof short_list_rows / sizeof *short_list_rows,
    true,            "masks or scores with ",
    hopper_pair_adapt, hopper_pair_fits};

static const hopper_configs score_shapes = {score_rows,
                                            sizeof score_rows /
                                                sizeof *score_rows,
                                            true,
                                            "scores with ",
                                            hopper_pair_adapt,
                                            hopper_pair_fits};

/* Whether nothing but one score chain, which hides no pair, decides over
 * pairs. */
static bool hopper_only_scores(const plan *p) {
  const dil_table *t = &p->table;
  if (!t->scored || t->chain_count != 1 || is_hiding(p)) return false;
  for (int32_t i = 0; i < t->pass_count && i < 64; i++)
    if (hopper_asks_pairs(t, i)) return false;
  return true;
}

bool hopper_has_short_blocks(const block_lists *l) {
  for (int32_t n = 0; n < l->count; n++)
    if (l->list[n].block % 128 || l->list[n].query_block % 128) return true;
  return false;
}

static const hopper_configs *hopper_pair_shapes(const plan *p) {
  block_lists l;
  if (hopper_only_scores(p)) return &score_shapes;
  block_lists_take(p, &l);
  if (!l.count) return &mask_shapes;
  return hopper_has_short_blocks(&l) ? &short_list_shapes : &list_shapes;
}

static bool hopper_pair_can(const gpu_request *r, char *reason, size_t size) {
  return hopper_config_can(r, hopper_pair_shapes(r->common.plan), reason, size);
}

static void hopper_pair_describe(const plan *p, bool alone,
                                 dil_cuda_code *code) {
  static const int32_t forms[] = {[SCORE_ANY] = CUDA_SCORE_ANY,
                                  [SCORE_LINEAR] = CUDA_SCORE_LINEAR,
                                  [SCORE_CAPPED] = CUDA_SCORE_CAPPED};
  const dil_table *t = &p->table;
  score_kind kind = t->scored ? score_kind_of(p) : SCORE_ANY;
  code->knob[HOPPER_KNOB_SCORES] = alone;
  code->knob[HOPPER_KNOB_FORM] = forms[kind];
  snprintf(code->variant, sizeof code->variant, "hopper %s %s%s %dx%d d%d",
           alone ? "scores" : "pairs",
           code->knob[HOPPER_KNOB_DROPS] ? "dropout " : "",
           dil_dtype_name(t->dtype), code->tile_rows, code->tile_keys,
           t->head_dim);
}

void hopper_put_list_knobs(const block_lists *l, dil_cuda_code *code) {
  code->knob[HOPPER_KNOB_LISTS] = l->count;
  for (int32_t n = 0; n < l->count; n++) {
    const block_list *list = &l->list[n];
    int32_t *form = &code->knob[HOPPER_KNOB_LIST + n * HOPPER_LIST_KNOBS];
    form[HOPPER_LIST_QUERIES] = list->query_block;
    form[HOPPER_LIST_KEYS] = list->block;
    form[HOPPER_LIST_LINES] = (list->heads ? HOPPER_LIST_HEADS : 0) |
                              (list->batches ? HOPPER_LIST_BATCHES : 0);
    form[HOPPER_LIST_TABLE] = list->table + 1;
  }
}

/* Writes what decides over pairs, with conditions on blocks as lists. */
static void hopper_pair_put_masks(const plan *p, dil_cuda_code *code,
                                  source_text *text) {
  block_lists l;
  block_lists_take(p, &l);
  put_tables(text, &l.rest);
  put_expressions(text, &l.rest);
  put_cover(text, &l.rest);
  put_mask_bits(text, &l.rest);
  put_key_spans(text, &l.rest);
  put_block_lists(text, &l);
  put(text, "#define TURNS %d\n", !hopper_has_short_blocks(&l));
  hopper_put_list_knobs(&l, code);
}

static bool hopper_pair_write(const gpu_request *r, int32_t variant,
                              int32_t fallback, dil_cuda_code *code,
                              source_text *text) {
  hopper_config s;
  const plan *p = r->common.plan;
  bool alone = hopper_only_scores(p);
  if (!hopper_config_write(r, hopper_pair_shapes(p), variant, fallback, &s,
                           code, text))
    return false;
  hopper_pair_describe(p, alone, code);
  put(text, "#define EAGER 1\n#define PAIRWISE %d\n#define CHAINS %d\n", !alone,
      p->table.chain_count);
  put(text, "#define PRODUCER_REGISTERS %d\n#define CONSUMER_REGISTERS %d\n",
      s.producer, s.consumer);
  if (alone) {
    hopper_config_put_documents(r, &s, code, text);
    put(text, "#define QUERY_STAGES %d\n#define STAGED %d\n", s.queries,
        s.staged);
    put_tables(text, p);
    put_expressions(text, p);
  } else {
    hopper_pair_put_masks(p, code, text);
  }
  if (p->table.scored) put_score_form(text, p);
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
