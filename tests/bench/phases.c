/* phases.c - how near the generated phases of a tile come to the machine's
 * multiply-add peak, measured by a loop in the same seconds. Prints a table:
 * share of the peak for qk, pv and a whole tile over 2048 keys, cycles of the
 * peak clock a softmax row takes, and the time to compile. Not a test. */
#include "tests/support/cpu_code.h"
#include "runtime/cpu/isa.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEYS = 2048, TILES = 24, ROUNDS = 9 };

typedef struct phase_bench {
  code_loaded loaded;
  int lanes, pack, depth, tile_keys;
  char *k, *v;
  void *qt, *p;
  float *s, *o, *mx, *m, *l, *alpha;
  bool qk, softmax, pv;
} phase_bench;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Enough sums to hide six cycles of latency on two pipes. */
#define ALL(x)                                                                 \
  x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13)
#define FMA512(i) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define DOT512(i) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define CLOBBERED                                                              \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",      \
      "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"

/* Multiply-adds a second, in floats. */
static double peak(const char *isa, int pack) {
  enum { TURNS = 200000 };
  int width = strcmp(isa, "avx2") == 0 ? 8 : 16;
  double start = now();
  for (int i = 0; i < TURNS; i++) {
    if (pack == DIL_PACK_BF16_PAIRS)
      __asm__ volatile(ALL(DOT512)::: CLOBBERED);
    else if (width == 16)
      __asm__ volatile(ALL(FMA512)::: CLOBBERED);
    else
      __asm__ volatile(ALL(FMA256)::: CLOBBERED);
  }
  return 14.0 * TURNS * width * pack / (now() - start);
}

static void open_case(code_case *c, int dim, dil_dtype dtype) {
  code_case_open(c, dim, dim, dtype);
}

static void bench_open(phase_bench *b, const code_case *c, const char *isa) {
  size_t dim = (size_t)c->plan.table.head_dim;
  b->loaded = code_make(c, isa, DIL_TILES, false);
  b->lanes = b->loaded.code.lanes;
  b->pack = b->loaded.code.pack;
  b->tile_keys = b->loaded.code.tile_keys;
  size_t lanes = (size_t)b->lanes;
  b->k = room_of((KEYS + 8) * dim, 4);
  b->v = room_of(KEYS * dim, 4);
  b->qt = room_of(dim * lanes, 4);
  b->p = room_of(160 * lanes, 4);
  b->s = room_of(160 * lanes, 4);
  b->o = room_of(dim * lanes, 4);
  b->mx = room_of(lanes, 4);
  b->m = room_of(lanes, 4);
  b->l = room_of(lanes, 4);
  b->alpha = room_of(lanes, 4);
  for (size_t i = 0; i < KEYS * dim / (size_t)b->pack; i++) {
    uint32_t bits = (uint32_t)(i * 2654435761u);
    float x = (float)(int32_t)bits * 0x1p-31f;
    uint32_t two = (uint32_t)dil_f32_to_bf16(x) * 0x10001u;
    memcpy(b->k + 4 * i,
           b->pack == DIL_PACK_BF16_PAIRS ? (void *)&two : (void *)&x, 4);
    memcpy(b->v + 4 * i,
           b->pack == DIL_PACK_BF16_PAIRS ? (void *)&two : (void *)&x, 4);
    if (i < dim * lanes / (size_t)b->pack)
      memcpy((char *)b->qt + 4 * i, b->k + 4 * i, 4);
  }
  if (b->pack == DIL_PACK_F32) {
    free(b->p);
    b->p = b->s;
  }
  memset(b->s, 0, 160 * lanes * 4);
  memset(b->p, 0, 160 * lanes * 4);
}

static void tile(phase_bench *b, size_t dim) {
  const dil_code *code = &b->loaded.code;
  size_t key_bytes = dim * 4 / (size_t)b->pack;
  for (int i = 0; i < b->lanes; i++) {
    b->m[i] = b->mx[i] = -INFINITY;
    b->l[i] = b->alpha[i] = 0;
  }
  memset(b->o, 0, dim * (size_t)b->lanes * 4);
  for (size_t key = 0; key < KEYS; key += (size_t)b->tile_keys) {
    int64_t left = (int64_t)(KEYS - key), n = b->tile_keys;
    if (left < n) n = left;
    if (b->qk) code->qk(b->k + key * key_bytes, b->qt, b->s, b->mx, n);
    if (b->softmax)
      code->softmax(b->s, b->p, n, 0.18f, 0, b->mx, b->m, b->l, b->alpha);
    if (b->pv) code->pv(b->v + key * key_bytes, b->p, b->o, b->alpha, n);
  }
}

static double seconds(phase_bench *b, size_t dim, int phases) {
  b->qk = phases & 1;
  b->softmax = phases & 2;
  b->pv = phases & 4;
  double start = now();
  for (int i = 0; i < TILES; i++) tile(b, dim);
  return now() - start;
}

static double compile_seconds(const code_case *c, const char *isa) {
  cpu_request request = {
      .common = {&c->plan}, .isa = isa, .variant = DIL_TILES};
  double best = 1;
  for (int i = 0; i < 5; i++) {
    cpu_code made;
    double start = now();
    if (linked_backend()->common.compile(&request.common, &made) != DIL_OK)
      return NAN;
    best = fmin(best, now() - start);
    free(made.bytes);
  }
  return best;
}

static void measure(const char *isa, dil_dtype dtype, int dim) {
  code_case c;
  phase_bench b = {0};
  double best[8], top = 0, d = dim;
  open_case(&c, dim, dtype);
  bench_open(&b, &c, isa);
  for (int i = 0; i < 8; i++) best[i] = INFINITY;
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < 4; i++) {
      int phases = (int[]){7, 1, 2, 4}[i];
      best[phases] = fmin(best[phases], seconds(&b, (size_t)dim, phases));
    }
    top = fmax(top, peak(isa, b.pack));
  }
  double half = (double)TILES * b.lanes * KEYS * d;
  double width = strcmp(isa, "avx2") == 0 ? 8 : 16;
  double cycle = 2 * width * b.pack / top; /* two multiply-adds each */
  printf("%-10s %-4s D %-3d  tile %4.1f%%  qk %4.1f%%  pv %4.1f%%  softmax "
         "%.2f cycles a register  %.0f GFLOP/s  compile %.1f ms\n",
         isa, dil_dtype_name(dtype), dim, 200 * half / best[7] / top,
         100 * half / best[1] / top, 100 * half / best[4] / top,
         best[2] / cycle / ((double)TILES * KEYS * b.lanes / width),
         4e-9 * half / best[7], 1e3 * compile_seconds(&c, isa));
  code_drop(&b.loaded);
}

int main(void) {
  static const char *const sets[] = {CPU_ISAS(CPU_ISA_NAME)};
  for (int i = 0; i < 3; i++) {
    if (linked_backend()->runs(sets[i]) != DIL_OK) continue;
    for (int dim = 32; dim <= 256; dim *= 2)
      measure(sets[i], i == 2 ? DIL_BF16 : DIL_F32, dim);
  }
  return 0;
}
