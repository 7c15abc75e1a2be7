/* list_gradient.c - see list_gradient.h. In: a checked call of a whole sequence, with the
 * facts of its rows. Out: launches that make lists of kept blocks, where no table of the
 * call has their bits, that turn them, and that walk them. */
#include "list_gradient.h"
#include "device.h"
#include "general.h"
#include "special_gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/hopper_blocks.h"
#include "runtime/cuda/launch/counters.h"
#include "templates/hopper/block_list_backward_launch.h"
#include <stddef.h>

_Static_assert(sizeof(block_list_backward_launch) ==
                       sizeof(hopper_backward_launch) + BLOCK_LIST_BACKWARD_BYTES &&
                   sizeof(block_list_backward_launch) <=
                       sizeof(hopper_backward_launch) + SPECIAL_REST_MOST &&
                   offsetof(block_list_backward_launch, list) ==
                       sizeof(hopper_backward_launch) + DIL_PARAMS_BYTES,
               "templates/hopper/block_list_backward.cu has another launch");

/* Functions; the first three are those of hopper_gradient.h. */
enum { LIST_MAKE = HOPPER_ENTRY_FACTS + 1, LIST_TURN };

/* ---- space --------------------------------------------------------------- */

/* Describes the turned list of a list, of which `heads` and `batches` are set anew: a
 * table of the call does not tell them. Returns its bytes. */
static int64_t list_turn(const cuda_run *r, const cuda_code *code,
                         const hopper_block_list *list, char *memory,
                         hopper_block_list *to) {
  enum { WORD_BITS = 32 };
  const int32_t *form = &code->about.knob[HOPPER_KNOB_LIST];
  int64_t rows = (r->M + form[HOPPER_LIST_KEYS] - 1) / form[HOPPER_LIST_KEYS];
  int64_t words = (list->rows + WORD_BITS - 1) / WORD_BITS;
  int32_t heads = list->head ? r->table->heads : 1;
  int32_t batches = list->batch ? (int32_t)r->B : 1;
  *to = (hopper_block_list){.bits = (unsigned *)(void *)memory,
                            .head = heads > 1 ? rows * words : 0,
                            .batch = batches > 1 ? rows * words * heads : 0,
                            .rows = (int)rows,
                            .words = (int)words,
                            .heads = heads,
                            .batches = batches};
  return round_up(rows * words * heads * batches * (int64_t)sizeof(unsigned), 256);
}

/* Fills the lists of a launch whose inputs are set; NULL: there is none yet. Returns the
 * bytes of those that are made, and says where the turned one begins. */
static int64_t list_fill(const cuda_run *r, const cuda_code *code, char *memory,
                         block_list_backward_launch *l, int64_t *made) {
  hopper_block_list list, turned;
  dil_device_input inputs[HOPPER_INPUTS];
  cuda_inputs_fill(r, inputs);
  *made = hopper_list_fill(r, code, 0, r->M, inputs, memory, &list);
  int64_t all =
      *made + list_turn(r, code, &list, memory ? memory + *made : NULL, &turned);
  if (l) {
    l->list = list;
    l->turned = turned;
  }
  return all;
}

int64_t list_gradient_bytes(const cuda_run *r, const cuda_code *code) {
  int64_t made;
  return list_fill(r, code, NULL, NULL, &made);
}

/* ---- the launch ---------------------------------------------------------- */

/* The maps of all rows, which are held or streamed, in boxes of a tile's rows. */
static dil_status list_fill_maps(const cuda_run *r, const cuda_code *code,
                                 hopper_launch *l) {
  const int32_t box = BLOCK_LIST_ROWS;
  const dil_call *c = r->call;
  bool keys = special_holds_keys(code);
  const map_view views[4] = {maps_view(&c->q, r->table->head_dim, box),
                             maps_view(&c->o, r->table->value_dim, box),
                             maps_view(&c->k, r->table->head_dim, box),
                             maps_view(&c->v, r->table->value_dim, box)};
  hopper_maps *const maps[4] = {keys ? &l->k : &l->q, keys ? &l->v : &l->o,
                                keys ? &l->q : &l->k, keys ? &l->o : &l->v};
  return special_find_maps(r, code, 4, views, maps);
}

static dil_status list_prepare(const gradient_run *g, const hopper_gradient_space *space,
                               const cuda_code *code, block_list_backward_launch *l,
                               bool *makes) {
  const cuda_run *r = g->of;
  bool keys = special_holds_keys(code);
  int64_t made;
  special_fill(g, space, code, &l->back, sizeof *l);
  l->params = general_parameters(r);
  l->line_tiles = (l->back.held_rows + BLOCK_LIST_ROWS - 1) / BLOCK_LIST_ROWS;
  l->lines = (int)r->B * l->back.of.heads;
  *(keys ? &l->streamed_first : &l->held_first) = (int)(r->M - r->N);
  l->group = r->table->heads / r->table->kv_heads;
  list_fill(r, code, space->lists, l, &made);
  *makes = made > 0;
  return list_fill_maps(r, code, &l->back.of);
}

static dil_status list_start(const cuda_run *r, const cuda_code *code, int32_t entry,
                             int64_t blocks, int32_t threads, int32_t shared,
                             const block_list_backward_launch *l) {
  return special_start(r, code, entry, blocks, threads, shared, &l->back, sizeof *l);
}

/* A warp for each of `count` parts of the work. */
static dil_status list_start_warps(const cuda_run *r, const cuda_code *code,
                                   int32_t entry, int64_t count,
                                   const block_list_backward_launch *l) {
  enum { WARPS = 8 };
  return list_start(r, code, entry, (count + WARPS - 1) / WARPS, 32 * WARPS, 0, l);
}

dil_status list_gradient_begin(const gradient_run *g, const hopper_gradient_space *space,
                               const cuda_code *code) {
  const cuda_run *r = g->of;
  block_list_backward_launch l;
  bool makes;
  dil_status status = list_prepare(g, space, code, &l, &makes);
  const hopper_block_list *list = &l.list, *turned = &l.turned;
  if (!status && makes)
    status = list_start_warps(
        r, code, LIST_MAKE, (int64_t)list->rows * list->heads * list->batches, &l);
  int64_t parts = (turned->rows + 31) / 32 * (int64_t)turned->words;
  return status ? status
                : list_start_warps(r, code, LIST_TURN,
                                   parts * turned->heads * turned->batches, &l);
}

/* Tiles are claimed by counting. */
dil_status list_gradient_pass(const gradient_run *g, const hopper_gradient_space *space,
                              const cuda_code *code) {
  const cuda_run *r = g->of;
  cuda_counters *counters = r->device->counters;
  cuda_counter counter;
  block_list_backward_launch l;
  bool makes;
  dil_status status = list_prepare(g, space, code, &l, &makes);
  if (status || (!l.back.scored.data && !l.back.weighted.data)) return status;
  status = counters_take(counters, r->stream, &counter);
  if (status) return status;
  l.back.of.counters = (unsigned *)(uintptr_t)counter.memory;
  int64_t tiles = (int64_t)l.lines * l.line_tiles, groups = code->about.threads / 128 - 1;
  status = list_start(r, code, HOPPER_ENTRY_PASS,
                      minimum((tiles + groups - 1) / groups,
                              r->device->facts.processors),
                      code->about.threads, code->about.shared, &l);
  return counters_give(counters, r->stream, &counter, status);
}

/* ---- the family ---------------------------------------------------------- */

const char *list_gradient_refusal(const gradient_run *g, const cuda_code *code) {
  (void)code;
  const cuda_run *r = g->of;
  const dil_call *c = r->call;
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries || c->lengths) return "documents, or lengths";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < BLOCK_LIST_ROWS || r->M == 0) return "fewer than 64 queries, or no keys";
  if ((r->M - r->N) % BLOCK_LIST_ROWS) return "queries that begin inside a tile";
  if (r->M > 1 << 29 || r->N > 1 << 29 ||
      r->B * r->table->heads * (maximum(r->N, r->M) / BLOCK_LIST_ROWS + 1) >
          INT32_MAX / 2)
    return "more than 2^29 rows, or than 2^30 tiles";
  return special_tensor_refusal(g);
}

const cuda_family cuda_list_gradient = {
    .name = "list gradient",
    .entry = {"block_list_backward", "hopper_clear", "hopper_facts", "block_list_make",
              "block_list_turn"},
    .open = special_open,
    .close = special_close,
    .refusal = special_refuses_forward};
