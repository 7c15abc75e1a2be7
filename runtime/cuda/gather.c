/* gather.c - launches of the Hopper kernel that gathers rows by the blocks of keys
 * that they chose.
 *
 * In: a checked call of a whole sequence whose rows chose blocks (choose.c). Out:
 * launches that sort the choices by blocks, and then for some lines at a time run the
 * blocks and add up the entries of each row. A line is a batch row and query head. */
#include "gather.h"
#include "device.h"
#include "general.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/maps.h"
#include "templates/hopper/gather_launch.h"
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

_Static_assert(sizeof(gather_launch) == GATHER_LAUNCH_BYTES &&
                   offsetof(gather_launch, of) == GATHER_MAP_BYTES &&
                   offsetof(gather_launch, scale) ==
                       GATHER_MAP_BYTES + DIL_PARAMS_BYTES,
               "templates/hopper/gather.cu has another gather_launch");

enum { GATHER_FORWARD, GATHER_LISTS, GATHER_MERGE }; /* functions */

/* ---- sizes --------------------------------------------------------------- */

/* Entries, tiles and lines of a call, and where its arrays stand in the workspace. */
typedef struct gather_sizes {
  int64_t blocks, lines, entry_room, tile_room;
  int64_t at_once; /* lines of a launch */
  int64_t tiles, items, partial, ends, end;
} gather_sizes;

static const dil_choice *gather_choice(const cuda_run *r, int32_t pass) {
  int32_t b = __builtin_ctzll(r->table->passes[pass].branches);
  for (int32_t c = 0; c < r->table->choice_count; c++)
    if (r->table->choices[c].branch == b) return &r->table->choices[c];
  return NULL;
}

static gather_sizes gather_sizes_of(const cuda_run *r, int32_t pass,
                                    const cuda_code *code) {
  const int64_t partial_most = 512 << 20; /* bytes, where a line needs no more */
  const dil_choice *c = gather_choice(r, pass);
  int64_t value = r->table->value_dim * (int64_t)sizeof(float);
  gather_sizes s = {.blocks = dil_choice_blocks(r->M, c->block),
                    .lines = r->B * r->table->heads,
                    .entry_room = r->N * dil_choice_room(c, r->M)};
  s.tile_room = s.entry_room / code->about.tile_rows + s.blocks;
  s.at_once = partial_most / maximum(s.entry_room * value, 1);
  s.at_once = minimum(maximum(s.at_once, 1), s.lines);
  s.tiles = round_up(s.lines * (int64_t)sizeof(int), 256);
  s.items = s.tiles + round_up(s.lines * s.tile_room *
                               (int64_t)sizeof(gather_tile), 256);
  s.partial = s.items + round_up(s.lines * s.entry_room *
                                 (int64_t)sizeof(gather_item), 256);
  s.ends = s.partial + round_up(s.at_once * s.entry_room * value, 256);
  s.end = s.ends + s.at_once * s.entry_room * (int64_t)sizeof(gather_end);
  return s;
}

static int64_t gather_workspace(const cuda_run *r, int32_t pass,
                                const cuda_code *code) {
  return gather_sizes_of(r, pass, code).end;
}

/* ---- the cache between launches ------------------------------------------ */

typedef struct gather_memory {
  pthread_mutex_t lock;
  map_cache maps;
} gather_memory;

static void gather_close(cuda_code *code) {
  gather_memory *m = code->memory;
  maps_close(&m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

static dil_status gather_open(const dil_table *table, cuda_code *code) {
  (void)table;
  gather_memory *m = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  pthread_mutex_init(&m->lock, NULL);
  code->memory = m;
  dil_status status = maps_open(&m->maps, 2);
  if (status) gather_close(code);
  return status;
}

/* The map of the rows of keys or values, one after the other. */
static dil_status gather_find_map(const cuda_run *r, const cuda_code *code,
                                  const dil_tensor *t, int32_t width,
                                  hopper_map *map) {
  const int32_t stride = 1;
  gather_memory *m = code->memory;
  const map_view view = maps_view(t, width, code->about.tile_keys);
  hopper_map both[1][2]; /* the second is that of all rows, see hopper_launch.h */
  pthread_mutex_lock(&m->lock);
  dil_status status =
      maps_find(&m->maps, r->device->driver, &view, &stride, 1, both);
  pthread_mutex_unlock(&m->lock);
  if (!status) *map = both[0][1];
  return status;
}

/* ---- the launch ---------------------------------------------------------- */

static dil_status gather_prepare(const cuda_run *r, int32_t pass,
                                 const cuda_code *code, const gather_sizes *s,
                                 gather_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  const dil_choice *c = gather_choice(r, pass);
  const dil_table *t = r->table;
  char *memory = r->workspace;
  *l = (gather_launch){.of = general_parameters(r),
                       .scale = r->scale * log2_e,
                       .lists = c->rows,
                       .block = c->block,
                       .blocks = (int)s->blocks,
                       .group = t->heads / t->kv_heads,
                       .tile_room = (int)s->tile_room,
                       .entry_room = (int)s->entry_room,
                       .counts = (int *)(void *)memory,
                       .tiles = (gather_tile *)(void *)(memory + s->tiles),
                       .items = (gather_item *)(void *)(memory + s->items),
                       .partial = (float *)(void *)(memory + s->partial),
                       .ends = (gather_end *)(void *)(memory + s->ends)};
  l->slack = fminf(8 / l->scale, 1e30f);
  dil_status status =
      gather_find_map(r, code, &r->call->k, t->head_dim, &l->k);
  if (status) return status;
  return gather_find_map(r, code, &r->call->v, t->value_dim, &l->v);
}

/* Runs and adds up the entries of lines l->first_line and those behind it. */
static dil_status gather_run_lines(const cuda_run *r, const cuda_code *code,
                                   gather_launch *l) {
  enum { ROW_WARPS = 8 };
  int64_t tiles = (int64_t)l->lines * l->tile_room, rows = l->lines * r->N;
  dil_status status = cuda_launch(
      r, code, GATHER_FORWARD, minimum(tiles, r->device->facts.processors),
      code->about.threads, code->about.shared, l);
  if (status) return status;
  return cuda_launch(r, code, GATHER_MERGE, (rows + ROW_WARPS - 1) / ROW_WARPS,
                     32 * ROW_WARPS, 0, l);
}

static dil_status gather_launch_pass(const cuda_run *r, int32_t pass,
                                     const cuda_code *code) {
  const gather_sizes s = gather_sizes_of(r, pass, code);
  gather_launch l;
  dil_status status = gather_prepare(r, pass, code, &s, &l);
  if (!status)
    status = cuda_launch(r, code, GATHER_LISTS, s.lines, GATHER_LIST_THREADS,
                         GATHER_LIST_SHARED(s.blocks), &l);
  for (int64_t line = 0; line < s.lines && !status; line += s.at_once) {
    l.first_line = (int)line;
    l.lines = (int)minimum(s.at_once, s.lines - line);
    status = gather_run_lines(r, code, &l);
  }
  return status;
}

/* ---- the family ---------------------------------------------------------- */

/* Whether tiles of neighbouring rows, which visit all that one of their rows sees,
 * would be as fast. Measured in keys for each row (tests/bench/NOTES.md, "Choices of
 * blocks on an H200"): an entry moves its o to memory and back, and a masked visit
 * takes longer than a plain one. */
static bool gather_is_slow(const cuda_run *r, int32_t pass) {
  const double entry_keys = 300, masked = 1.9;
  const dil_choice *c = gather_choice(r, pass);
  double entries = (double)dil_choice_room(c, r->M);
  double keys = (double)r->M * (c->right <= 0 ? 0.5 : 1);
  return entries * ((double)c->block + entry_keys) > masked * keys;
}

static const char *gather_refusal(const cuda_run *r, int32_t pass,
                                  const cuda_code *code) {
  const dil_call *c = r->call;
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries || pages_given(c))
    return "documents or pages where rows choose blocks";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < 64) return "fewer than 64 queries";
  if (gather_is_slow(r, pass)) return "rows that choose most of the keys";
  const gather_sizes s = gather_sizes_of(r, pass, code);
  if (s.blocks > GATHER_BLOCKS_MOST) return "more than 8192 blocks of keys";
  if (r->M > 1 << 29 || s.entry_room > INT32_MAX ||
      s.lines * s.tile_room > INT32_MAX)
    return "more than 2^29 rows, or than 2^31 entries";
  bool described = maps_can(&c->q) && maps_can(&c->k) && maps_can(&c->v) &&
                   maps_can(&c->o);
  return described ? NULL : "tensors that no tensor map describes";
}

/* As if each block were chosen as often as the others; each leaves half a tile. */
static void gather_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                            dil_cuda_pass *out) {
  const dil_choice *c = gather_choice(r, pass);
  const gather_sizes s = gather_sizes_of(r, pass, code);
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
    .entry = {"gather_forward", "gather_lists", "gather_merge"},
    .open = gather_open,
    .close = gather_close,
    .refusal = gather_refusal,
    .estimate = gather_estimate,
    .workspace = gather_workspace,
    .launch = gather_launch_pass};
