/* general.c - launches templates/general/general.cu. In: a call and a pass.
 * Out: the numbers of its tile space (templates/shared/launch.h), by arithmetic
 * on the plan's tables; splits of the keys where there are too few tiles for
 * the device. */
#include "device.h"
#include "general.h"
#include "patches.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include "templates/shared/splits.h"
#include <stddef.h>

_Static_assert(sizeof(dil_params) == DIL_PARAMS_BYTES &&
                   offsetof(dil_params, q_stride) == 40 &&
                   offsetof(dil_params, state_o) == 160 &&
                   offsetof(dil_params, B) == 232 &&
                   offsetof(dil_params, items) == 352 &&
                   offsetof(dil_params, scale) == 360 &&
                   offsetof(dil_params, input) == 376 &&
                   offsetof(dil_params, patch_axes) == 1656,
               "templates/general/general.cu has another dil_params");

enum {
  FAR_APART = 1 << 30, /* rows that have a tile each */
  SPLITS_MOST = 64,
  SPLIT_TILES = 4,     /* tiles of keys a split, at least */
  BLOCKS_A_PROCESSOR = 3,
  MANY_WAVES = 3,      /* tiles a processor, at least, where they are large */
  SPREAD_WAVES = 48,   /* fewer than that: long tiles of all heads first */
  ROW_WARPS = 8        /* of a block of dil_merge and the like */
};

/* ---- tile space ---------------------------------------------------------- */

static int64_t general_shortest_segment(const dil_table *t, int32_t pass) {
  int64_t least = 0;
  for (int32_t b = 0; b < t->branch_count; b++) {
    int64_t s = t->branches[b].segment;
    if ((t->passes[pass].branches >> b & 1) && s && (!least || s < least))
      least = s;
  }
  return least;
}

/* A grid cell of the shortest segment is cut at most once by each segment that
 * is no multiple of it. */
static int32_t general_parts(const dil_table *t, int32_t pass,
                             int64_t segment) {
  int32_t parts = 1;
  for (int32_t b = 0; b < t->branch_count; b++)
    if ((t->passes[pass].branches >> b & 1) && segment)
      parts += t->branches[b].segment % segment != 0;
  return parts;
}

/* Returns whether all heads of a K/V head have the same branches and phases. */
static bool general_heads_agree(const dil_table *t, int32_t pass) {
  int32_t group = t->heads / t->kv_heads;
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *branch = &t->branches[b];
    if (!(t->passes[pass].branches >> b & 1)) continue;
    if (branch->head_first % group || (branch->head_last + 1) % group)
      return false;
    for (int32_t h = 0; h < t->heads; h++)
      if (branch->phase[h] != branch->phase[h / group * group]) return false;
  }
  return true;
}

/* Positions between the rows of a tile, which have the same residue. */
static int64_t general_stride(const cuda_run *r, int32_t pass) {
  int64_t period = r->table->passes[pass].period;
  return minimum(least_multiple(period, cuda_queries(r).step), FAR_APART);
}

/* Positions from the first query row to the last. */
static int64_t general_span(const cuda_run *r) {
  return (r->N - 1) * cuda_queries(r).step + 1;
}

/* The most positions that a cell has. */
static int64_t general_length(const cuda_run *r, int64_t segment) {
  return segment ? minimum(segment, general_span(r)) : general_span(r);
}

static int64_t quotient_up(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

/* The most rows of one residue that a cell has. */
static int64_t general_class_rows(const cuda_run *r, int32_t pass,
                                  int64_t segment) {
  return quotient_up(general_length(r, segment), general_stride(r, pass));
}

/* Few rows of grouped-query heads share a tile: they read the same keys. */
static int32_t general_pack(const cuda_run *r, int32_t pass, int32_t tile_rows,
                            int64_t segment) {
  int32_t group = r->table->heads / r->table->kv_heads;
  bool few = general_class_rows(r, pass, segment) < tile_rows;
  int32_t list = dil_pass_list(r->table, &r->table->passes[pass]);
  if (list >= 0 && r->table->inputs[list].rank > 1) return 1; /* a head's own */
  return few && group <= tile_rows && general_heads_agree(r->table, pass)
             ? group
             : 1;
}

/* The most keys that a row sees. */
static int64_t general_row_keys(const cuda_run *r, int32_t pass) {
  const dil_table *t = r->table;
  dil_progression there = cuda_keys(r);
  int64_t keys = 0, span = r->M * there.step;
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *branch = &t->branches[b];
    if (!(t->passes[pass].branches >> b & 1)) continue;
    int64_t reach = branch->segment ? minimum(branch->segment, span) : span;
    const dil_predicate *p =
        branch->predicate < 0 ? NULL : &t->predicates[branch->predicate];
    if (p && p->left < span && p->right < span)
      reach = minimum(reach, p->left + p->right + 1);
    if (p) reach = minimum(reach, dil_predicate_end(p) - p->key_first);
    keys += reach / least_multiple(branch->dilation, there.step) + 1;
  }
  return keys;
}

int64_t general_reach(const cuda_run *r, int32_t pass) {
  const dil_table *t = r->table;
  int64_t sum = 0, span = (r->N - 1) * cuda_queries(r).step;
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *branch = &t->branches[b];
    if (!(t->passes[pass].branches >> b & 1)) continue;
    int64_t reach =
        branch->segment ? minimum(branch->segment, r->M) : r->M;
    const dil_predicate *p =
        branch->predicate < 0 ? NULL : &t->predicates[branch->predicate];
    if (p && p->left < FAR_APART && p->right < FAR_APART)
      reach = minimum(reach, p->left + p->right + 1 + span);
    if (p)
      reach = minimum(reach, minimum(dil_predicate_end(p), r->M) - p->key_first);
    if (reach > 0) sum += (reach - 1) / branch->dilation + 1;
  }
  return sum;
}

/* Whether a call has few rows: its splits then follow from each batch row alone
 * (templates/shared/splits.h). */
static bool general_is_few(const cuda_run *r, const cuda_code *code) {
  return r->N < DIL_FEW_ROWS && !r->shard && code->family == &cuda_general &&
         !code->about.knob[GENERAL_KNOB_PARTS];
}

/* Splits of the keys of tiles whose rows see so many. */
static int32_t general_splits(const cuda_run *r, int32_t pass, int64_t tiles,
                              int64_t keys, const cuda_code *code) {
  const dil_cuda_code *about = &code->about;
  if (about->knob[GENERAL_KNOB_PARTS]) return about->knob[GENERAL_KNOB_PARTS];
  if (general_is_few(r, code))
    return few_most(general_reach(r, pass),
                    tiles / maximum(r->B, 1) / r->table->kv_heads);
  int64_t wanted = (int64_t)r->device->facts.processors * BLOCKS_A_PROCESSOR;
  int64_t most = keys / (SPLIT_TILES * (int64_t)about->tile_keys);
  int64_t splits = minimum(minimum(wanted / maximum(tiles, 1), most),
                           SPLITS_MOST);
  return (int32_t)maximum(splits, 1);
}

/* The most rows of a K/V head that share a tile. */
static int32_t general_pack_few(const cuda_run *r, int32_t pass,
                                int32_t tile_rows) {
  int32_t group = r->table->heads / r->table->kv_heads, pack = group;
  if (!general_heads_agree(r->table, pass)) return 1;
  while (pack > tile_rows || group % pack) pack--;
  return pack;
}

/* The space of the tiles of so many rows that hold query rows, or keys (for
 * gradients). Returns the tiles of a batch row. */
static int64_t general_fill_tiles(const cuda_run *r, int32_t pass, bool keys,
                                  int32_t tile_rows, int32_t pack,
                                  dil_params *p) {
  const dil_table *t = r->table;
  int64_t segment = general_shortest_segment(t, pass);
  if (segment > INT32_MAX / 2) segment = INT32_MAX / 2 + 1;
  int64_t step = cuda_queries(r).step, stride = general_stride(r, pass);
  p->pass = pass;
  p->stride = (int)stride;
  p->segment = (int)segment;
  p->cells = (int)(segment ? (general_span(r) + segment - 2) / segment + 1 : 1);
  p->parts = general_parts(t, pass, segment);
  p->residues = (int)minimum(quotient_up(stride, step),
                             quotient_up(general_length(r, segment), step));
  p->pack = pack;
  int64_t block = tile_rows / pack;
  p->blocks = (int)quotient_up(general_class_rows(r, pass, segment), block);
  int64_t heads = keys ? t->kv_heads : t->heads / p->pack;
  return (int64_t)p->cells * p->parts * p->residues * p->blocks * heads;
}

/* The run whose rows are the keys of `call`. */
static cuda_run general_turn(const cuda_run *call, dil_shard *turned) {
  cuda_run run = *call;
  run.N = call->M;
  if (!call->shard) return run;
  *turned = *call->shard;
  turned->queries = call->shard->keys;
  turned->keys = call->shard->queries;
  run.M = call->N;
  run.shard = turned;
  return run;
}

static void general_fill_space(const cuda_run *call, int32_t pass, bool keys,
                               const cuda_code *code, dil_params *p) {
  dil_shard turned;
  const cuda_run run = keys ? general_turn(call, &turned) : *call, *r = &run;
  int32_t tile_rows = code->about.tile_rows;
  int64_t segment = general_shortest_segment(r->table, pass);
  int32_t pack = keys ? 1 : general_pack(r, pass, tile_rows, segment);
  patch_plan patches;
  bool patched = cuda_patches_plan(call, pass, code, &patches);
  int64_t heads = keys ? r->table->kv_heads : r->table->heads;
  int64_t tiles =
      r->B * (patched ? cuda_patches_fill(r, pass, &patches, p) * heads
                      : general_fill_tiles(r, pass, keys, tile_rows, pack, p));
  if (keys && cuda_list_space(call, pass, tile_rows, p))
    tiles = r->B * heads * p->blocks;
  p->splits = general_splits(r, pass, tiles,
                             patched ? patch_plan_keys(&patches)
                                     : general_row_keys(r, pass),
                             code);
  if (!keys && general_is_few(r, code)) p->flags |= DIL_FEW;
  p->spread = tiles < SPREAD_WAVES * (int64_t)r->device->facts.processors;
  p->items = tiles * p->splits;
}

/* ---- parameters ---------------------------------------------------------- */

static void general_fill_strides(const dil_tensor *t, long long out[3]) {
  for (int axis = 0; axis < 3; axis++) out[axis] = t->stride[axis];
}

/* Sets the positions of rows and keys, and the sizes of the whole sequence. */
static void general_fill_place(const cuda_run *r, dil_params *p) {
  const dil_shard *shard = r->shard;
  dil_progression asking = cuda_queries(r), keys = cuda_keys(r);
  p->B = (int)(shard ? shard->B : r->B);
  p->N = (int)(shard ? shard->N : r->N);
  p->M = (int)(shard ? shard->M : r->M);
  p->batches = (int)r->B;
  p->rows = (int)r->N;
  p->first = (int)asking.first;
  p->step = (int)asking.step;
  p->key_first = (int)keys.first;
  p->key_step = (int)keys.step;
  p->key_rows = (int)keys.count;
  p->batch = shard ? shard->batch : 0;
  p->head = shard ? shard->head : 0;
  p->left_out = shard ? shard->left_out : 0;
  p->heads = r->table->heads;
}

/* Returns whether the address and the size of every row are multiples of
 * `bytes`. */
static bool general_is_whole(const dil_tensor *t, int64_t bytes) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  bool whole = (uintptr_t)t->data % (uint64_t)bytes == 0 &&
               t->shape[3] * size % bytes == 0;
  for (int axis = 0; axis < 3; axis++)
    whole = whole && (t->shape[axis] < 2 || t->stride[axis] * size % bytes == 0);
  return whole;
}

dil_params general_parameters(const cuda_run *r) {
  const dil_call *c = r->call;
  dil_params p = {.q = c->q.data,
                  .k = c->k.data,
                  .v = c->v.data,
                  .o = c->o.data,
                  .lse = c->lse.data,
                  .state_o = r->state_o,
                  .state_lse = r->state_lse,
                  .partial = (float *)r->workspace,
                  .lengths = c->lengths,
                  .offsets_q = c->packed.queries,
                  .offsets_k = c->packed.keys,
                  .packed_rows = (int)c->q.shape[1],
                  .packed_keys = (int)c->k.shape[1],
                  .states = 1,
                  .pages = c->pages.number,
                  .pages_stride = c->pages.stride,
                  .page_shift = pages_given(c) ? pages_shift(c) : 0,
                  .page_count = pages_given(c) ? (int)c->k.shape[0] : 0,
                  .seed_at = c->seed_at,
                  .splits = 1,
                  .pack = 1,
                  .scale = r->scale,
                  .weight = r->weight,
                  .seed_low = (unsigned)c->seed,
                  .seed_high = (unsigned)(c->seed >> 32)};
  general_fill_strides(&c->q, p.q_stride);
  general_fill_strides(&c->k, p.k_stride);
  general_fill_strides(&c->v, p.v_stride);
  general_fill_strides(&c->o, p.o_stride);
  p.lse_stride[0] = c->lse.stride[0]; /* lse is [B, H, N] */
  p.lse_stride[1] = c->lse.stride[2];
  p.lse_stride[2] = c->lse.stride[1];
  p.flags = (general_is_whole(&c->q, 16) ? DIL_WHOLE_Q : 0) |
            (general_is_whole(&c->k, 16) ? DIL_WHOLE_K : 0) |
            (general_is_whole(&c->v, 16) ? DIL_WHOLE_V : 0) |
            (general_is_whole(&c->o, 16) ? DIL_WHOLE_O : 0) |
            (r->drop ? DIL_DROP : 0) | (r->shard ? DIL_SHARD : 0) |
            (r->turns ? DIL_GROUP_LISTS : 0);
  general_fill_place(r, &p);
  cuda_inputs_fill(r, p.input);
  return p;
}

void general_fill_few(const cuda_run *r, int32_t pass, int32_t tile_rows,
                      dil_params *p) {
  *p = general_parameters(r);
  p->items = general_fill_tiles(r, pass, false, tile_rows,
                                general_pack_few(r, pass, tile_rows), p);
  p->spread = true;
}

/* ---- the family ---------------------------------------------------------- */

/* Returns whether large tiles are nearly full, and are enough for the device.
 */
static bool general_has_many(const cuda_run *r, int32_t pass,
                             const cuda_code *code) {
  dil_params p = {0};
  general_fill_space(r, pass, false, code, &p);
  int64_t filled = general_class_rows(r, pass, p.segment);
  int64_t places = (int64_t)p.blocks * code->about.tile_rows;
  return p.pack == 1 && places - filled <= filled / 8 &&
         p.items / p.splits >= MANY_WAVES * r->device->facts.processors;
}

static const char *general_refusal(const cuda_run *r, int32_t pass,
                                   const cuda_code *code) {
  if (code->about.shared > r->device->facts.shared_block)
    return "more shared memory than a block has here";
  if (r->shard && code->about.knob[GENERAL_KNOB_WHOLE])
    return "a shard of a sequence";
  bool few = r->N < DIL_FEW_ROWS && !r->shard;
  if (code->about.knob[GENERAL_KNOB_MANY] &&
      (few || !general_has_many(r, pass, code)))
    return "too few rows for large tiles";
  return NULL;
}

static void general_estimate(const cuda_run *r, int32_t pass,
                             const cuda_code *code, dil_cuda_pass *out) {
  dil_params p = {0};
  patch_plan patches;
  general_fill_space(r, pass, false, code, &p);
  out->tile_rows = code->about.tile_rows;
  out->tiles = p.items / p.splits;
  out->parts = p.splits;
  out->pack = p.pack;
  out->visited = out->masked = out->skipped = out->saved = -1;
  if (cuda_patches_plan(r, pass, code, &patches))
    cuda_patches_estimate(r, pass, code, &patches, out);
  cuda_list_estimate(r, pass, code, out);
}

static int64_t general_workspace(const cuda_run *r, int32_t pass,
                                 const cuda_code *code) {
  dil_params p = {0};
  general_fill_space(r, pass, false, code, &p);
  if (p.splits == 1) return 0;
  return (int64_t)p.splits * cuda_rows(r) * r->table->heads *
         (2 + r->table->value_dim) * (int64_t)sizeof(float);
}

/* Blocks of ROW_WARPS warps, a warp a row of the call and head. */
static dil_status general_launch_rows(const cuda_run *r, const cuda_code *code,
                                      int32_t entry, dil_params *p) {
  int64_t count = cuda_rows(r) * r->table->heads;
  return cuda_launch(r, code, entry, (count + ROW_WARPS - 1) / ROW_WARPS,
                     32 * ROW_WARPS, 0, p);
}

dil_status general_fill(const cuda_run *r, int32_t pass, bool keys,
                        const cuda_code *code, dil_params *p) {
  *p = general_parameters(r);
  general_fill_space(r, pass, keys, code, p);
  if (p->items <= INT32_MAX) return DIL_OK;
  return dil_fail(DIL_USAGE, "more than 2^31 tiles in one call");
}

static dil_status general_launch(const cuda_run *r, int32_t pass,
                                 const cuda_code *code) {
  dil_params p;
  dil_status status = general_fill(r, pass, false, code, &p);
  if (status) return status;
  status = cuda_launch(r, code, GENERAL_PASS, p.items, code->about.threads,
                       code->about.shared, &p);
  if (!status && p.splits > 1)
    status = general_launch_rows(r, code, GENERAL_MERGE, &p);
  return status;
}

/* Launches a kernel with a warp for each of `count` pieces of work. */
static dil_status general_launch_warps(const cuda_run *r, const cuda_code *code,
                                       int32_t entry, int64_t count,
                                       dil_params *p) {
  if (!count) return DIL_OK;
  return cuda_launch(r, code, entry, (count + ROW_WARPS - 1) / ROW_WARPS,
                     32 * ROW_WARPS, 0, p);
}

dil_status general_choose(const cuda_run *r, const cuda_code *code) {
  dil_params p = general_parameters(r);
  dil_status status = DIL_OK;
  if (r->table->choice_count) { /* other keeps may read tables of the call's lists */
    p.flags |= DIL_OWN_LISTS;
    status = general_launch_warps(r, code, GENERAL_LISTS,
                                  cuda_table_rows(r, true), &p);
    p.flags &= ~DIL_OWN_LISTS;
  }
  return status ? status : cuda_choose_run(r, &p, code);
}

dil_status general_tables(const cuda_run *r, const unsigned *only_if,
                          const cuda_code *code) {
  dil_params p = general_parameters(r);
  dil_status status = DIL_OK;
  p.only_if = only_if;
  if (!r->lists_alone)
    status = general_launch_warps(r, code, GENERAL_LISTS,
                                  cuda_table_rows(r, false), &p);
  if (!status)
    status = general_launch_warps(r, code, GENERAL_BOUNDS,
                                  cuda_bounds_blocks(r, false), &p);
  if (!status)
    status = general_launch_warps(r, code, GENERAL_TURN, cuda_turned_squares(r),
                                  &p);
  if (status) return status;
  return general_launch_warps(r, code, GENERAL_INTERVALS,
                              cuda_bounds_blocks(r, true), &p);
}

dil_status general_bounds(const cuda_run *r, const cuda_code *code) {
  dil_status status = general_choose(r, code);
  return status ? status : general_tables(r, r->only_if, code);
}

/* A warp begins 32 rows. */
static dil_status general_launch_begin(const cuda_run *r, const cuda_code *code,
                                       dil_params *p) {
  int64_t count = cuda_rows(r) * r->table->heads;
  return general_launch_warps(r, code, GENERAL_BEGIN, (count + 31) / 32, p);
}

dil_status general_begin(const cuda_run *r, const cuda_code *code) {
  dil_params p = general_parameters(r);
  if (r->call->packed.queries) p.states = r->shard ? run_states(r->table) : 1;
  else if (r->shard) p.batches *= run_states(r->table);
  return general_launch_begin(r, code, &p);
}

dil_status general_begin_alone(const cuda_run *r, int32_t pass,
                               const cuda_code *code) {
  dil_params p = general_parameters(r);
  p.flags |= DIL_ALONE;
  p.pass = pass;
  return general_launch_begin(r, code, &p);
}

dil_status general_clear(const cuda_run *r, const cuda_code *code) {
  dil_params p = general_parameters(r);
  int64_t rows = r->call->q.shape[1] * r->table->heads;
  int64_t blocks = (rows + ROW_WARPS - 1) / ROW_WARPS;
  return cuda_launch(
      r, code, GENERAL_CLEAR,
      minimum(blocks, BLOCKS_A_PROCESSOR * r->device->facts.processors),
      32 * ROW_WARPS, 0, &p);
}

dil_status general_end(const cuda_run *r, const cuda_code *code) {
  dil_params p = general_parameters(r);
  if (r->shard && r->shard->by_pass && !combine_is_additive(r->table))
    p.flags |= DIL_JOINS;
  return general_launch_rows(r, code, GENERAL_END, &p);
}

const cuda_family cuda_general = {
    .name = "general",
    .entry = {"dil_pass", "dil_merge", "dil_begin", "dil_end", "dil_bounds", "dil_lists",
              "dil_clear", "dil_intervals", "dil_choose_means", "dil_choose_coarse",
              "dil_choose", "dil_choose_join", "dil_turn"},
    .beside = DIL_COARSE_BYTES + DIL_COARSE_MORE + DIL_CHOOSE_SHARED,
    .refusal = general_refusal, .estimate = general_estimate,
    .workspace = general_workspace,
    .launch = general_launch};
