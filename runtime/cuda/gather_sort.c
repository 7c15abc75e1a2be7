/* gather_sort.c - see gather_sort.h. In: a checked call of a whole sequence whose rows
 * chose blocks (choose.c). Out: launches that sort the choices by blocks. */
#include "gather_sort.h"
#include "general.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"

_Static_assert(sizeof(gather_call) == GATHER_CALL_BYTES,
               "templates/hopper/gather_sort.cuh has another gather_call");

const dil_choice *gather_choice(const cuda_run *r, int32_t pass) {
  int32_t b = __builtin_ctzll(r->table->passes[pass].branches);
  for (int32_t c = 0; c < r->table->choice_count; c++)
    if (r->table->choices[c].branch == b) return &r->table->choices[c];
  return NULL;
}

gather_sizes gather_sizes_of(const cuda_run *r, int32_t pass) {
  const int64_t word = sizeof(int32_t), line = 256;
  const dil_choice *c = gather_choice(r, pass);
  gather_sizes s = {.blocks = dil_choice_blocks(r->M, c->block),
                    .lines = r->B * r->table->heads,
                    .entry_room = r->N * dil_choice_room(c, r->M)};
  s.tile_room = s.entry_room / GATHER_TILE_ROWS + s.blocks;
  s.starts = round_up(s.lines * word, line);
  s.places = s.starts + round_up(s.lines * (s.blocks + 1) * word, line);
  s.tiles = s.places + round_up(s.lines * GATHER_CHUNKS * s.blocks * word, line);
  s.items = s.tiles + round_up(s.lines * s.tile_room *
                               (int64_t)sizeof(gather_tile), line);
  s.end = s.items + round_up(s.lines * s.entry_room *
                             (int64_t)sizeof(gather_item), line);
  return s;
}

int64_t gather_lines_at_once(const gather_sizes *s, int64_t bytes) {
  const int64_t most = 512 << 20;
  int64_t lines = most / maximum(s->entry_room * bytes, 1);
  return minimum(maximum(lines, 1), s->lines);
}

void gather_fill(const cuda_run *r, int32_t pass, const gather_sizes *s, char *memory,
                 gather_call *call) {
  const dil_choice *c = gather_choice(r, pass);
  int64_t rows = (r->N + GATHER_CHUNKS - 1) / GATHER_CHUNKS;
  *call = (gather_call){.of = general_parameters(r),
                        .lists = c->rows,
                        .block = c->block,
                        .blocks = (int)s->blocks,
                        .group = r->table->heads / r->table->kv_heads,
                        .lines = (int)s->lines,
                        .tile_room = (int)s->tile_room,
                        .entry_room = (int)s->entry_room,
                        .chunk_rows = (int)round_up(rows, GATHER_STEP),
                        .counts = (int *)(void *)memory,
                        .starts = (int *)(void *)(memory + s->starts),
                        .places = (int *)(void *)(memory + s->places),
                        .tiles = (gather_tile *)(void *)(memory + s->tiles),
                        .items = (gather_item *)(void *)(memory + s->items)};
}

dil_status gather_sort(const cuda_run *r, const cuda_code *code, int32_t first,
                       gather_call *call) {
  enum { WARPS = 4, SCAN_BYTES = GATHER_PLACE_THREADS / 32 * 8 };
  int64_t blocks = (int64_t)call->lines * GATHER_CHUNKS / WARPS;
  dil_status status = cuda_launch(r, code, first + GATHER_COUNT, blocks, 32 * WARPS,
                                  0, call);
  if (!status)
    status = cuda_launch(r, code, first + GATHER_PLACE, call->lines,
                         GATHER_PLACE_THREADS, SCAN_BYTES, call);
  if (status) return status;
  return cuda_launch(r, code, first + GATHER_ITEMS, blocks, 32 * WARPS, 0, call);
}

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

const char *gather_sort_refusal(const cuda_run *r, int32_t pass) {
  const dil_call *c = r->call;
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries || pages_given(c))
    return "documents or pages where rows choose blocks";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < 64) return "fewer than 64 queries";
  if (gather_is_slow(r, pass)) return "rows that choose most of the keys";
  const gather_sizes s = gather_sizes_of(r, pass);
  if (s.blocks > GATHER_BLOCKS_MOST) return "more than 8192 blocks of keys";
  if (r->M > 1 << 29 || s.entry_room > INT32_MAX ||
      s.lines * s.tile_room > INT32_MAX)
    return "more than 2^29 rows, or than 2^31 entries";
  return NULL;
}
