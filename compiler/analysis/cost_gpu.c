/* cost_gpu.c - how long a call takes on a GPU with one kernel or another, by
 * arithmetic: tiles, how many of them are in flight at once (shared memory,
 * registers, threads), waves, and what a processor reaches of its products.
 * Shares are of kernels measured on one H200; what matters is the order. */
#include "cost.h"
#include "runtime/cuda/chips.h"
#include "runtime/cuda.h"
#include "runtime/cuda/launch/choices.h"
#include "runtime/tables/fast_classes.h"
#include <math.h>
#include <string.h>

const cuda_chip *cost_gpu_chip_of(int32_t arch) {
  const cuda_chip *chip = cuda_chip_of(arch);
  return chip && chip->model ? chip : NULL;
}

/* Where there are no figures of a chip, the order of its kernels is the
 * H200's. */
static const cuda_chip *chip_like(const dil_cuda_facts *facts) {
  const cuda_chip *chip = cost_gpu_chip_of(facts->arch);
  return chip ? chip : cuda_chip_measured();
}

static double rate_of(const pattern *p, const cuda_chip *chip) {
  return p->dtype == DIL_F32 ? chip->rate_32 : chip->rate_16;
}

double cost_gpu_peak(const pattern *p, const dil_cuda_facts *facts) {
  return rate_of(p, chip_like(facts)) * facts->processors;
}

double cost_gpu_state_bytes(const pattern *p, double rows) {
  double row = (double)p->value_dim * 4 + 4;
  return rows * (2 * row + row / 2);
}

double cost_gpu_state_seconds(const pattern *p, const dil_cuda_facts *facts,
                              double rows) {
  return cost_gpu_state_bytes(p, rows) / chip_like(facts)->memory;
}

/* Of a processor, on every chip: shared memory (bytes) and threads. */
enum { SHARED = 228 * 1024, THREADS = 2048 };

/* 1 / share = whole + each / mean(D, Dv) for tiles of many keys; each tile of
 * keys costs as much as this many keys more. Of the general family and of the
 * fast one. */
static const struct {
  double whole, each, keys;
} slowness[2] = {{3.9, 150, 12}, {1.0, 50, 5}};

static bool is_fast(const dil_cuda_code *code) {
  return cuda_is_fast(code->family);
}

/* Blocks that a processor holds at once. The fast kernel has one; the
 * general one's registers are sums of a thread and what moves them. */
static double blocks_at_once(const pattern *p, const dil_cuda_code *code) {
  enum { OTHERS = 64, MOST = 255 };
  if (is_fast(code)) return 1;
  double registers = fmin(OTHERS + code->tile_keys / 2.0 +
                          (double)p->value_dim / 2, MOST);
  double held = fmin(SHARED / (code->shared + 1024.0),
                     cuda_chip_measured()->registers /
                         (registers * code->threads));
  return fmax(floor(fmin(held, (double)THREADS / code->threads)), 1);
}

/* Fewer warps than these wait for each other; of the fast kernel three
 * warpgroups of consumers hide each other best, and four lack registers. Where each
 * has a list of its own, copies limit them. */
static double waiting(const dil_cuda_code *code, double blocks) {
  enum { ENOUGH = 12 };
  double warps = code->threads / 32.0 * blocks;
  if (!strcmp(code->family, "hopper_block_list")) return 1.55;
  if (is_fast(code))
    return code->tile_rows < 192 ? 1.2 : code->tile_rows > 192 ? 1.15 : 1;
  return fmax(ENOUGH / warps, 1);
}

static double slow_of(const pattern *p, bool fast, int32_t tile_keys) {
  double dim = (double)(p->head_dim + p->value_dim) / 2;
  return (slowness[fast].whole + slowness[fast].each / dim) *
         (1 + slowness[fast].keys / tile_keys);
}

/* How much longer a block takes the fast kernel whose scores are rewritten, by
 * their form, and with dropout: measured at heads of 64 (tests/bench/NOTES.md).
 * Wider heads hide a part of it. */
static double pair_work_of(const pattern *p, const dil_cuda_code *code) {
  enum { NARROW = 64 };
  static const double forms[] = {[CUDA_SCORE_ANY] = 2.5,
                                 [CUDA_SCORE_LINEAR] = 1.2,
                                 [CUDA_SCORE_CAPPED] = 1.9};
  double dim = (double)(p->head_dim + p->value_dim) / 2, more = 0;
  if (!is_fast(code)) return 1;
  if (code->knob[HOPPER_KNOB_SCORES])
    more += forms[code->knob[HOPPER_KNOB_FORM]] - 1;
  if (code->knob[HOPPER_KNOB_DROPS]) more += 0.55;
  return 1 + more * fmin(NARROW / dim, 1);
}

double cost_gpu_block_bytes(const pattern *p) {
  enum { ROWS = 192, KEYS = 128 };
  const cuda_chip *chip = cuda_chip_measured();
  return chip->memory * cost_flops(p, (double)ROWS * KEYS) *
         slow_of(p, true, KEYS) / (chip->rate_16 * chip->processors);
}

/* Few rows of grouped heads share a tile of the general kernel. */
static double pack_of(const pattern *p, const cost_gpu_case *c) {
  double group = (double)p->heads / (double)p->kv_heads;
  bool few = c->N < c->code->tile_rows && group <= c->code->tile_rows;
  return few && !is_fast(c->code) ? group : 1;
}

/* Into how many parts the keys are cut, where that is the kernel's to say. */
static double parts_of(const cost_gpu_case *c, double tiles) {
  enum { BLOCKS_WANTED = 3, MOST = 64 };
  if (c->parts > 0) return c->parts;
  if (is_fast(c->code)) return 1;
  double wanted = floor(BLOCKS_WANTED * (double)c->facts->processors / tiles);
  return fmin(fmax(wanted, 1), MOST);
}

/* Tiles one after the other on each of `slots`: they differ in length and come
 * the longest first, so that the last ones fill gaps; never less than one. */
static double turns(double tiles, double slots) {
  double gap = 0.35;
  return tiles <= slots ? 1 : tiles / slots + gap;
}

/* The same in tiles of the code's height. Where they are few, the fast kernel
 * takes lower ones (hopper_tiles_choose). */
static double turns_of(const cost_gpu_case *c, double tiles, double slots) {
  const dil_cuda_code *code = c->code;
  double least = turns(tiles, slots);
  if (!is_fast(code)) return least;
  for (int32_t height = code->tile_rows - 64; height > 0; height -= 64) {
    double lower = tiles * ceil((double)c->N / height) /
                   ceil((double)c->N / code->tile_rows);
    double share =
        fast_block_time(height) / fast_block_time(code->tile_rows);
    least = fmin(least, turns(lower, slots) * share);
  }
  return least;
}

/* Of the kernel for few rows: what it reads, and at what rate. A processor that has
 * work reads at most so many times its share of the memory's rate; `start` is a
 * launch, the first copies and the last merge. */
static double decode_seconds(const pattern *p, const cost_gpu_case *c) {
  const double gain = 1.18, own = 1.5, start = 14e-6;
  const cuda_chip *chip = chip_like(c->facts);
  double group = (double)p->heads / (double)p->kv_heads;
  double rows = c->code->tile_rows, processors = c->facts->processors;
  double tiles = ceil((double)c->N * group / rows);
  double units = (double)c->B * (double)p->kv_heads * tiles * c->parts;
  double keys = (c->count->full + c->count->partial) * c->code->tile_keys;
  double bytes = keys / group * (double)(p->head_dim + p->value_dim) * 2;
  double busy = fmin(units * own / processors, 1);
  double parts = c->parts > 1 ? (double)c->B * (double)c->N * (double)p->heads *
                                    c->parts * (double)(p->value_dim + 4) * 8
                              : 0;
  return start + (bytes / gain / busy + parts) / chip->memory;
}

double cost_gpu_seconds(const pattern *p, const cost_gpu_case *c) {
  const dil_cuda_code *code = c->code;
  const cover_count *n = c->count;
  if (!strcmp(code->family, "decode")) return decode_seconds(p, c);
  double rows = (double)c->B * (double)c->N * (double)p->heads;
  double pack = pack_of(p, c), per_tile = code->tile_rows / pack;
  double tiles = (double)c->B * (double)p->heads / pack *
                 ceil((double)c->N / per_tile);
  double parts = parts_of(c, tiles), blocks = blocks_at_once(p, code);
  double visited =
      (n->full + n->partial) * code->tile_rows * code->tile_keys / pack;
  if (c->dedup && n->pairs > 0) visited *= n->distinct / n->pairs;
  double each = cost_flops(p, visited) / (tiles * parts);
  const cuda_chip *chip = chip_like(c->facts);
  double slow = slow_of(p, is_fast(code), code->tile_keys) *
                waiting(code, blocks) * pair_work_of(p, code);
  double computed = turns_of(c, tiles * parts, blocks * c->facts->processors) *
                    blocks * each * slow / rate_of(p, chip);
  double moved = (double)c->B * cost_bytes(p, c->N, c->M) / chip->memory *
                 (c->touched > 0 ? c->touched : 1);
  double merged = parts > 1 ? rows * parts * (double)(p->value_dim + 2) * 8 : 0;
  return fmax(computed, moved) + merged / chip->memory;
}

/* ---- choices of blocks ------------------------------------------------------- */

/* Rows meet rounded means, and whole ones near the least that is chosen. */
static double coarse_seconds(const pattern *p, const dil_cuda_facts *facts, double rows,
                             double flops) {
  /* Of one H200: the rate of the memory that rows are read at, the share of the
   * processors' peak, and seconds of a number that meets whole means. */
  static const double read = 0.36, rate = 0.67, near = 1.1e-12;
  const cuda_chip *chip = chip_like(facts), *measured = cuda_chip_measured();
  double numbers = rows * (double)p->head_dim, size = (double)dil_dtype_size(p->dtype);
  return numbers * size / (read * chip->memory) +
         flops / (rate * chip->rate_16 * facts->processors) +
         numbers * near * measured->processors / facts->processors;
}

/* Rows are read once for means; each block of queries, or each of its rows, meets each
 * block of keys in products of bf16 parts; and the best are found. */
double cost_gpu_choice_seconds(const pattern *p, const dil_cuda_facts *facts,
                               const dil_choice *c, int64_t B, int64_t N, int64_t M) {
  enum { MEAN_PRODUCTS = 6, ROW_PRODUCTS = 3 /* of parts, for one of numbers */ };
  /* Of one H200: its processors multiply at this share of their peak; seconds of a
   * list, of an estimate without and with weights, and of launches. */
  static const double rate = 0.25, list = 0.29e-9, estimate = 5.2e-12, weight = 12e-12,
                      launches = 20e-6;
  const cuda_chip *chip = chip_like(facts), *measured = cuda_chip_measured();
  double dim = (double)p->head_dim, size = (double)dil_dtype_size(p->dtype) * dim;
  double heads = (double)p->heads, kv_heads = (double)p->kv_heads;
  double blocks = ceil((double)N / c->query_block), keys = ceil((double)M / c->block);
  double seen = c->right <= 0 ? 0.5 : 1; /* of the blocks of keys */
  double lists = (double)B * (c->shared ? kv_heads : heads) * blocks;
  double rows = (double)B * heads * blocks, read = 0, products = 0;
  if (c->estimate != DIL_ESTIMATE_INPUT) read = size * kv_heads * (double)(B * M);
  if (c->estimate == DIL_ESTIMATE_MEAN) {
    read += size * heads * (double)(B * N);
    products = MEAN_PRODUCTS;
  } else if (c->estimate == DIL_ESTIMATE_EACH) {
    rows *= c->query_block;
    products = ROW_PRODUCTS;
  }
  double best = lists * (list + keys * seen * (c->share > 0 ? weight : estimate));
  double flops = rows * keys * seen * 2 * dim;
  double met = cuda_choice_is_coarse(c, p->dtype, p->head_dim, (int64_t)keys)
                   ? coarse_seconds(p, facts, rows, flops)
                   : flops * products / (rate * chip->rate_16 * facts->processors);
  return launches + read / chip->memory + met +
         best * measured->processors / facts->processors;
}

/* ---- gradients ----------------------------------------------------------- */

/* As `slowness`, of the general kernels of gradients and of the fast ones, by
 * products that are computed: seven of a pair in all. */
static const struct {
  double whole, each;
} gradient_slowness[2] = {{3.9, 170}, {0.95, 35}};
/* Of those that walk lists: tiles of 64 rows read more of shared memory. */
static const double list_gradient_slowness = 1.2;
/* Of those over grids: likewise, and every box is masked. */
static const double grid_gradient_slowness = 1.45;

/* Operations of a pair by kernels that make these gradients (GRADIENT_...):
 * scores and dP are computed again by each. */
static double gradient_pair_flops(const pattern *p, int32_t makes) {
  bool q = makes & GRADIENT_Q, k = makes & GRADIENT_K, v = makes & GRADIENT_V;
  bool slopes = q || k || makes & GRADIENT_INPUTS;
  return 2.0 * ((double)p->head_dim * (1 + q + k) +
                (double)p->value_dim * (slopes + v));
}

double cost_gpu_gradient_flops(const pattern *p, const dil_cuda_code *code,
                               double pairs) {
  return pairs * gradient_pair_flops(p, code->knob[GRADIENT_KNOB_MAKES]);
}

double cost_gpu_gradient_seconds(const pattern *p, const cost_gpu_case *c,
                                 bool fast) {
  const dil_cuda_code *code = c->code;
  const cover_count *n = c->count;
  const cuda_chip *chip = chip_like(c->facts);
  int32_t makes = code->knob[GRADIENT_KNOB_MAKES];
  bool keys = makes & (GRADIENT_K | GRADIENT_V);
  double rows = keys ? (double)c->M * (double)p->kv_heads
                     : (double)c->N * (double)p->heads;
  double tiles = fmax((double)c->B * ceil(rows / code->tile_rows), 1);
  double visited = (n->full + n->partial) * code->tile_rows * code->tile_keys;
  if (c->dedup && n->pairs > 0) visited *= n->distinct / n->pairs;
  double blocks = fast ? 1 : blocks_at_once(p, code);
  double dim = (double)(p->head_dim + p->value_dim) / 2;
  double slow =
      gradient_slowness[fast].whole + gradient_slowness[fast].each / dim;
  if (!strcmp(code->family, "list gradient")) slow *= list_gradient_slowness;
  if (!strcmp(code->family, "grid gradient")) slow *= grid_gradient_slowness;
  double each = gradient_pair_flops(p, makes) * visited / tiles;
  return turns(tiles, blocks * c->facts->processors) * blocks * each * slow /
         rate_of(p, chip);
}

double cost_gpu_gradient_rows_seconds(const cost_gradients *g,
                                      const dil_cuda_facts *facts) {
  return (g->read + g->written) / chip_like(facts)->memory;
}
