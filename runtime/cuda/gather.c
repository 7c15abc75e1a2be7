/* gather.c - launches of the Hopper kernel that gathers rows by the blocks of keys
 * that they chose.
 *
 * In: a checked call of a whole sequence whose rows chose blocks (choose.c). Out:
 * launches that sort the choices by blocks, and then for some lines at a time run the
 * blocks and add up the entries of each row. A line is a batch row and query head. */
#include "gather.h"
#include "device.h"
#include "gather_sort.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/row_maps.h"
#include <math.h>
#include <stddef.h>

_Static_assert(sizeof(gather_launch) == GATHER_LAUNCH_BYTES &&
                   offsetof(gather_launch, scale) ==
                       GATHER_MAP_BYTES + GATHER_CALL_BYTES,
               "templates/hopper/gather.cu has another gather_launch");

enum { GATHER_FORWARD, GATHER_MERGE, GATHER_SORT }; /* functions */

/* Where a call's arrays stand in the workspace behind its sorted entries, for some
 * lines at a time. */
typedef struct gather_space {
  gather_sizes sorted;
  int64_t at_once; /* lines of a launch */
  int64_t ends, end;
} gather_space;

static gather_space gather_space_of(const cuda_run *r, int32_t pass) {
  int64_t value = r->table->value_dim * (int64_t)sizeof(float);
  gather_space s = {.sorted = gather_sizes_of(r, pass)};
  s.at_once = gather_lines_at_once(&s.sorted, value);
  int64_t entries = s.at_once * s.sorted.entry_room;
  s.ends = s.sorted.end + round_up(entries * value, 256);
  s.end = s.ends + entries * (int64_t)sizeof(gather_end);
  return s;
}

static int64_t gather_workspace(const cuda_run *r, int32_t pass,
                                const cuda_code *code) {
  (void)code;
  return gather_space_of(r, pass).end;
}

/* ---- the launch ---------------------------------------------------------- */

static dil_status gather_prepare(const cuda_run *r, int32_t pass,
                                 const cuda_code *code, const gather_space *s,
                                 gather_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  const dil_table *t = r->table;
  char *memory = r->workspace;
  l->scale = r->scale * log2_e;
  l->slack = fminf(8 / l->scale, 1e30f);
  l->partial = (float *)(void *)(memory + s->sorted.end);
  l->ends = (gather_end *)(void *)(memory + s->ends);
  gather_fill(r, pass, &s->sorted, memory, &l->call);
  int32_t box = code->about.tile_keys;
  dil_status status = row_maps_find(r, code, &r->call->k, t->head_dim, box, &l->k);
  if (status) return status;
  return row_maps_find(r, code, &r->call->v, t->value_dim, box, &l->v);
}

/* Runs and adds up the entries of the lines of a launch. */
static dil_status gather_run_lines(const cuda_run *r, const cuda_code *code,
                                   gather_launch *l) {
  enum { ROW_WARPS = 8 };
  const gather_call *c = &l->call;
  int64_t tiles = (int64_t)c->lines * c->tile_room, rows = c->lines * r->N;
  dil_status status = cuda_launch(
      r, code, GATHER_FORWARD, minimum(tiles, r->device->facts.processors),
      code->about.threads, code->about.shared, l);
  if (status) return status;
  return cuda_launch(r, code, GATHER_MERGE, (rows + ROW_WARPS - 1) / ROW_WARPS,
                     32 * ROW_WARPS, 0, l);
}

static dil_status gather_launch_pass(const cuda_run *r, int32_t pass,
                                     const cuda_code *code) {
  const gather_space s = gather_space_of(r, pass);
  gather_launch l;
  dil_status status = gather_prepare(r, pass, code, &s, &l);
  if (!status) status = gather_sort(r, code, GATHER_SORT, &l.call);
  for (int64_t line = 0; line < s.sorted.lines && !status; line += s.at_once) {
    l.call.first_line = (int)line;
    l.call.lines = (int)minimum(s.at_once, s.sorted.lines - line);
    status = gather_run_lines(r, code, &l);
  }
  return status;
}

/* ---- the family ---------------------------------------------------------- */

static const char *gather_refusal(const cuda_run *r, int32_t pass,
                                  const cuda_code *code) {
  (void)code;
  const dil_call *c = r->call;
  const char *refusal = gather_sort_refusal(r, pass);
  bool described = maps_can(&c->q) && maps_can(&c->k) && maps_can(&c->v) &&
                   maps_can(&c->o);
  if (refusal || described) return refusal;
  return "tensors that no tensor map describes";
}

/* As if each block were chosen as often as the others; each leaves half a tile. */
static void gather_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                            dil_cuda_pass *out) {
  const dil_choice *c = gather_choice(r, pass);
  const gather_sizes s = gather_sizes_of(r, pass);
  int32_t keys = code->about.tile_keys;
  int64_t visits = (c->block + keys - 1) / keys;
  double tiles = (double)s.entry_room / code->about.tile_rows + (double)s.blocks / 2;
  double all = (double)((r->N + code->about.tile_rows - 1) / code->about.tile_rows) *
               (double)((r->M + keys - 1) / keys);
  out->tile_rows = code->about.tile_rows;
  out->tiles = (int64_t)(tiles * (double)s.lines);
  out->parts = (int32_t)dil_choice_room(c, r->M); /* of a row's keys */
  out->pack = 1;
  out->visited = (double)out->tiles * (double)visits;
  out->masked = c->right <= 0 ? out->visited / (double)dil_choice_room(c, r->M) : 0;
  out->skipped = fmax((double)s.lines * all - out->visited, 0);
}

const cuda_family cuda_hopper_gather = {
    .name = "hopper_gather",
    .lists_alone = true,
    .entry = {"gather_forward", "gather_merge", "gather_count", "gather_place",
              "gather_items"},
    .open = row_maps_open,
    .close = row_maps_close,
    .refusal = gather_refusal,
    .estimate = gather_estimate,
    .workspace = gather_workspace,
    .launch = gather_launch_pass};
