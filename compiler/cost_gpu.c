/* cost_gpu.c - how long a call takes on a GPU with one kernel or another, by
 * arithmetic: tiles, how many of them are in flight at once (shared memory,
 * registers, threads), waves, and what a processor reaches of its products.
 * Shares are of kernels measured on one H200; what matters is the order. */
#include "cost.h"
#include "../runtime/cuda/hopper.h"
#include <math.h>
#include <string.h>

/* Operations a second of one processor, 16-bit and tf32 in three products. */
static const double RATE_16 = 7.0e12, RATE_32 = 1.23e12;
/* Bytes a second, of all processors together. */
static const double MEMORY_RATE = 3.5e12;
enum { SHARED = 228 * 1024, REGISTERS = 65536, THREADS = 2048 };

/* 1 / share = whole + each / mean(D, Dv) for tiles of many keys; each tile of
 * keys costs as much as this many keys more. */
static const struct {
  const char *family;
  double whole, each, keys;
} slowness[] = {
    {"hopper", 1.0, 50, 5},
    {"general", 3.9, 150, 12},
};

static bool is_hopper(const dil_cuda_code *code) {
  return !strcmp(code->family, "hopper");
}

/* Blocks that a processor holds at once. The Hopper kernel has one; the
 * general one's registers are sums of a thread and what moves them. */
static double blocks_at_once(const pattern *p, const dil_cuda_code *code) {
  enum { OTHERS = 64, MOST = 255 };
  if (is_hopper(code)) return 1;
  double registers = fmin(OTHERS + code->tile_keys / 2.0 +
                          (double)p->value_dim / 2, MOST);
  double held = fmin(SHARED / (code->shared + 1024.0),
                     REGISTERS / (registers * code->threads));
  return fmax(floor(fmin(held, (double)THREADS / code->threads)), 1);
}

/* Fewer warps than these wait for each other; of the Hopper kernel three
 * warpgroups of consumers hide each other best, and four lack registers. */
static double waiting(const dil_cuda_code *code, double blocks) {
  enum { ENOUGH = 12 };
  double warps = code->threads / 32.0 * blocks;
  if (is_hopper(code))
    return code->tile_rows < 192 ? 1.2 : code->tile_rows > 192 ? 1.15 : 1;
  return fmax(ENOUGH / warps, 1);
}

static double slow_of(const pattern *p, const char *family,
                      int32_t tile_keys) {
  double dim = (double)(p->head_dim + p->value_dim) / 2, slow = 1;
  for (size_t i = 0; i < sizeof slowness / sizeof *slowness; i++)
    if (!strcmp(slowness[i].family, family))
      slow = (slowness[i].whole + slowness[i].each / dim) *
             (1 + slowness[i].keys / tile_keys);
  return slow;
}

double cost_gpu_block_bytes(const pattern *p) {
  enum { ROWS = 192, KEYS = 128, PROCESSORS = 132 };
  return MEMORY_RATE * cost_flops(p, (double)ROWS * KEYS) *
         slow_of(p, "hopper", KEYS) / (RATE_16 * PROCESSORS);
}

/* Few rows of grouped heads share a tile of the general kernel. */
static double pack_of(const pattern *p, const cost_gpu_case *c) {
  double group = (double)p->heads / (double)p->kv_heads;
  bool few = c->N < c->code->tile_rows && group <= c->code->tile_rows;
  return few && !is_hopper(c->code) ? group : 1;
}

/* Into how many parts the keys are cut, where that is the kernel's to say. */
static double parts_of(const cost_gpu_case *c, double tiles) {
  enum { BLOCKS_WANTED = 3, MOST = 64 };
  if (c->parts > 0) return c->parts;
  if (is_hopper(c->code)) return 1;
  double wanted = floor(BLOCKS_WANTED * (double)c->facts->processors / tiles);
  return fmin(fmax(wanted, 1), MOST);
}

/* Tiles one after the other on each of `slots`: they differ in length and come
 * the longest first, so that the last ones fill gaps; never less than one. */
static double turns(double tiles, double slots) {
  double gap = 0.35;
  return tiles <= slots ? 1 : tiles / slots + gap;
}

/* The same in tiles of the code's height. Where they are few, the Hopper kernel
 * takes lower ones (hopper_tiles_choose). */
static double turns_of(const cost_gpu_case *c, double tiles, double slots) {
  const dil_cuda_code *code = c->code;
  double least = turns(tiles, slots);
  if (!is_hopper(code)) return least;
  for (int32_t height = code->tile_rows - 64; height > 0; height -= 64) {
    double lower = tiles * ceil((double)c->N / height) /
                   ceil((double)c->N / code->tile_rows);
    double share =
        hopper_block_time(height) / hopper_block_time(code->tile_rows);
    least = fmin(least, turns(lower, slots) * share);
  }
  return least;
}

double cost_gpu_seconds(const pattern *p, const cost_gpu_case *c) {
  const dil_cuda_code *code = c->code;
  const cover_count *n = c->count;
  double rows = (double)c->B * (double)c->N * (double)p->heads;
  double pack = pack_of(p, c), per_tile = code->tile_rows / pack;
  double tiles = (double)c->B * (double)p->heads / pack *
                 ceil((double)c->N / per_tile);
  double parts = parts_of(c, tiles), blocks = blocks_at_once(p, code);
  double visited =
      (n->full + n->partial) * code->tile_rows * code->tile_keys / pack;
  if (c->dedup && n->pairs > 0) visited *= n->distinct / n->pairs;
  double each = cost_flops(p, visited) / (tiles * parts);
  double rate = p->dtype == DIL_F32 ? RATE_32 : RATE_16;
  double slow =
      slow_of(p, code->family, code->tile_keys) * waiting(code, blocks);
  double computed = turns_of(c, tiles * parts, blocks * c->facts->processors) *
                    blocks * each * slow / rate;
  double moved = (double)c->B * cost_bytes(p, c->N, c->M) / MEMORY_RATE;
  double merged = parts > 1 ? rows * parts * (double)(p->value_dim + 2) * 8 : 0;
  return fmax(computed, moved) + merged / MEMORY_RATE;
}
