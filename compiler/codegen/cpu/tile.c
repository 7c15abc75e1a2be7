/* tile.c - the matrix products of a tile: s = K Q^T with its maximum, and
 * o = alpha o + V^T P. The queries stand in the lanes, so both are the same
 * step: a broadcast element (or bf16 pair) times a row of lanes. Every operand
 * of a step has 4 bytes a lane, whether it is an f32 or a pair of bf16. The
 * gradients have the same products: dP = V dO^T and dQ = K^T dS; and a third,
 * whose sum runs over the queries: dK = dS Q and dV = P dO. */
#include "cpu.h"
#include <math.h>

int64_t tile_row_bytes(const build *b) {
  return (int64_t)b->lanes * CELL;
}

/* Bytes of one vector register. */
static int64_t register_bytes(const build *b) {
  return b->isa->width * CELL;
}

static ref_type operand_type(const build *b) {
  const emit *e = &b->emit;
  if (b->pack == DIL_PACK_F32) return emit_vector(e->f32, e->width);
  return emit_vector(LLVMBFloatTypeInContext(e->context), 2 * e->width);
}

ref tile_row_at(const build *b, ref rows, ref index) {
  const emit *e = &b->emit;
  return emit_at(e, rows, emit_mul(e, index, emit_long(e, tile_row_bytes(b))));
}

void tile_load_row(const build *b, ref_type type, ref place, ref *row) {
  for (int reg = 0; reg < b->isa->registers; reg++)
    row[reg] = emit_load(&b->emit, type,
                          emit_offset(&b->emit, place, reg * register_bytes(b)),
                          (unsigned)register_bytes(b));
}

void tile_store_row(const build *b, ref const *row, ref place) {
  for (int reg = 0; reg < b->isa->registers; reg++)
    emit_store(&b->emit, row[reg],
               emit_offset(&b->emit, place, reg * register_bytes(b)),
               (unsigned)register_bytes(b));
}

/* One 4-byte cell in all lanes. */
static ref broadcast(const build *b, ref place) {
  const emit *e = &b->emit;
  if (b->pack == DIL_PACK_F32)
    return emit_splat(e, emit_load(e, e->f32, place, CELL), e->width);
  ref pairs = emit_splat(e, emit_load(e, e->i32, place, CELL), e->width);
  return LLVMBuildBitCast(e->builder, pairs, operand_type(b), "");
}

static ref multiply_add(build *b, ref sum, ref cell, ref row) {
  if (b->pack == DIL_PACK_F32) return emit_fma(&b->emit, cell, row, sum);
  return host_arch.dot_pairs(&b->emit, sum, row, cell); /* folds the broadcast */
}

/* sum[line][reg] += cell(line) * row[reg] for `lines` cells that stand
 * `stride` bytes apart. */
static void step(build *b, ref cells, int64_t stride, int lines, ref row_place,
                 ref const *sum, ref *next) {
  ref row[REGISTERS_MAX];
  int registers = b->isa->registers;
  tile_load_row(b, operand_type(b), row_place, row);
  for (int line = 0; line < lines; line++) {
    ref cell = broadcast(b, emit_offset(&b->emit, cells, line * stride));
    for (int reg = 0; reg < registers; reg++)
      next[line * registers + reg] =
          multiply_add(b, sum[line * registers + reg], cell, row[reg]);
  }
}

/* ---- qk ------------------------------------------------------------------ */

/* Scores of key_block keys, in registers; `depth` cells a row. */
static void qk_block(build *b, int64_t depth, ref rows, ref qt, ref *sum) {
  emit *e = &b->emit;
  int count = b->isa->key_block * b->isa->registers;
  ref next[LOOP_CARRIED_MAX];
  loop d;
  for (int i = 0; i < count; i++)
    sum[i] = emit_zero(emit_vector(e->f32, e->width));
  loop_begin(e, &d, "depth", emit_long(e, 0), emit_long(e, depth), 1, sum,
             count);
  step(b, emit_at(e, rows, emit_mul(e, d.index, emit_long(e, CELL))),
       depth * CELL, b->isa->key_block, tile_row_at(b, qt, d.index), d.carried,
       next);
  loop_end(e, &d, next);
  for (int i = 0; i < count; i++) sum[i] = d.carried[i];
}

/* The maximum over the keys from `first` on that really exist; their scores
 * have just been stored. */
void tile_tail_maximum(build *b, ref s, ref first, ref n, ref *mx) {
  emit *e = &b->emit;
  ref score[REGISTERS_MAX], next[REGISTERS_MAX];
  loop key;
  loop_begin(e, &key, "tail", first, n, 1, mx, b->isa->registers);
  tile_load_row(b, emit_vector(e->f32, e->width), tile_row_at(b, s, key.index),
                score);
  for (int reg = 0; reg < b->isa->registers; reg++)
    next[reg] = emit_greater(e, score[reg], key.carried[reg]);
  loop_end(e, &key, next);
  for (int reg = 0; reg < b->isa->registers; reg++) mx[reg] = key.carried[reg];
}

/* mx after this block: of all its keys, or of those before n. */
static void qk_maximum(build *b, ref s, ref first, ref n, ref const *sum,
                       ref *mx) {
  emit *e = &b->emit;
  int registers = b->isa->registers, block = b->isa->key_block;
  ref full[REGISTERS_MAX], rest[REGISTERS_MAX];
  ref end = emit_add(e, first, emit_long(e, block));
  branch_block whole;
  branch_begin(e, &whole, "whole", emit_compare(e, IS_LESS_EQUAL, end, n));
  for (int reg = 0; reg < registers; reg++) {
    full[reg] = mx[reg];
    for (int key = 0; key < block; key++)
      full[reg] = emit_greater(e, sum[key * registers + reg], full[reg]);
    rest[reg] = mx[reg];
  }
  branch_else(e, &whole);
  tile_tail_maximum(b, s, first, n, rest);
  branch_end(e, &whole);
  for (int reg = 0; reg < registers; reg++)
    mx[reg] = branch_merge(e, &whole, full[reg], rest[reg]);
}

void tile_qk(build *b, const char *name, int64_t width) {
  if (b->tiles) {
    matrix_qk(b, name, width);
    return;
  }
  emit *e = &b->emit;
  int64_t depth = dil_code_cells(width, b->pack);
  int registers = b->isa->registers, block = b->isa->key_block;
  emit_function(e, name, 'v', "ppppl");
  for (int i = 0; i < 4; i++) emit_noalias(e, i);
  ref k = emit_parameter(e, 0), qt = emit_parameter(e, 1);
  ref s = emit_parameter(e, 2), n = emit_parameter(e, 4);
  ref sum[LOOP_CARRIED_MAX], mx[REGISTERS_MAX];
  for (int reg = 0; reg < registers; reg++)
    mx[reg] = emit_splat(e, emit_real(e, -INFINITY), e->width);
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), n, block, mx, registers);
  qk_block(b, depth,
           emit_at(e, k, emit_mul(e, key.index, emit_long(e, depth * CELL))),
           qt, sum);
  ref scores = tile_row_at(b, s, key.index);
  for (int line = 0; line < block; line++)
    tile_store_row(b, sum + line * registers,
                   emit_offset(e, scores, line * tile_row_bytes(b)));
  for (int reg = 0; reg < registers; reg++) mx[reg] = key.carried[reg];
  qk_maximum(b, s, key.index, n, sum, mx);
  loop_end(e, &key, mx);
  tile_store_row(b, key.carried, emit_parameter(e, 3));
  emit_return(e, NULL);
}

/* ---- pv ------------------------------------------------------------------ */

/* `dims` rows of o at once. The tile is summed from 0 and joins what was there
 * at the end: over many tiles that keeps far more digits than one long chain.
 */
static void pv_block(build *b, int64_t width, ref values, ref p, ref o,
                     ref const *alpha, ref turns, int dims) {
  emit *e = &b->emit;
  int registers = b->isa->registers, count = dims * registers;
  int64_t value_bytes = width * CELL;
  ref sum[LOOP_CARRIED_MAX], next[LOOP_CARRIED_MAX];
  for (int i = 0; i < count; i++)
    sum[i] = emit_zero(emit_vector(e->f32, e->width));
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), turns, 1, sum, count);
  step(b, emit_at(e, values, emit_mul(e, key.index, emit_long(e, value_bytes))),
       CELL, dims,
       emit_at(e, p, emit_mul(e, key.index, emit_long(e, tile_row_bytes(b)))),
       key.carried, next);
  loop_end(e, &key, next);
  for (int dim = 0; dim < dims; dim++) {
    ref row[REGISTERS_MAX], place = emit_offset(e, o, dim * tile_row_bytes(b));
    tile_load_row(b, emit_vector(e->f32, e->width), place, row);
    for (int reg = 0; reg < registers; reg++)
      row[reg] =
          emit_fma(e, alpha[reg], row[reg], key.carried[dim * registers + reg]);
    tile_store_row(b, row, place);
  }
}

void tile_pv(build *b, const char *name, int64_t width) {
  if (b->tiles) {
    matrix_pv(b, name, width);
    return;
  }
  emit *e = &b->emit;
  int block = b->isa->value_block, rest = (int)(width % block);
  int64_t whole = width - rest;
  emit_function(e, name, 'v', "ppppl");
  for (int i = 0; i < 4; i++) emit_noalias(e, i);
  ref v = emit_parameter(e, 0), p = emit_parameter(e, 1);
  ref o = emit_parameter(e, 2), turns = emit_parameter(e, 4);
  ref alpha[REGISTERS_MAX];
  tile_load_row(b, emit_vector(e->f32, e->width), emit_parameter(e, 3), alpha);
  if (b->pack == DIL_PACK_BF16_PAIRS)
    turns = emit_shift_right(e, emit_add(e, turns, emit_long(e, 1)), 1);
  if (whole > 0) {
    loop dim;
    loop_begin(e, &dim, "values", emit_long(e, 0), emit_long(e, whole), block,
               NULL, 0);
    pv_block(b, width,
             emit_at(e, v, emit_mul(e, dim.index, emit_long(e, CELL))), p,
             tile_row_at(b, o, dim.index), alpha, turns, block);
    loop_end(e, &dim, NULL);
  }
  if (rest > 0)
    pv_block(b, width, emit_offset(e, v, whole * CELL), p,
             emit_offset(e, o, whole * tile_row_bytes(b)), alpha, turns, rest);
  emit_return(e, NULL);
}

/* ---- products over the queries ------------------------------------------- */

/* `vectors` registers of some row of x or of sums. */
static void load_vectors(const build *b, ref_type type, ref place, int vectors,
                         ref *row) {
  for (int i = 0; i < vectors; i++)
    row[i] = emit_load(&b->emit, type,
                       emit_offset(&b->emit, place, i * register_bytes(b)),
                       (unsigned)register_bytes(b));
}

/* sums[key][vector] of `keys` rows of weights over all lanes, from zero. */
static void outer_sums(build *b, ref weights, ref x, int64_t row_bytes,
                       int keys, int vectors, ref *sum) {
  emit *e = &b->emit;
  int count = keys * vectors;
  int64_t weight_bytes = tile_row_bytes(b) / b->pack;
  ref row[REGISTERS_MAX], next[LOOP_CARRIED_MAX];
  loop lane;
  for (int i = 0; i < count; i++)
    sum[i] = emit_zero(emit_vector(e->f32, e->width));
  loop_begin(e, &lane, "queries", emit_long(e, 0),
             emit_long(e, b->lanes / b->pack), 1, sum, count);
  ref cells = emit_at(e, weights, emit_mul(e, lane.index, emit_long(e, CELL)));
  load_vectors(b, operand_type(b),
               emit_at(e, x, emit_mul(e, lane.index, emit_long(e, row_bytes))),
               vectors, row);
  for (int key = 0; key < keys; key++) {
    ref cell = broadcast(b, emit_offset(e, cells, key * weight_bytes));
    for (int i = 0; i < vectors; i++)
      next[key * vectors + i] =
          multiply_add(b, lane.carried[key * vectors + i], cell, row[i]);
  }
  loop_end(e, &lane, next);
  for (int i = 0; i < count; i++) sum[i] = lane.carried[i];
}

/* The sums of `keys` keys for some vectors of a row join those in memory. */
static void outer_block(build *b, ref weights, ref x, ref out,
                        int64_t row_bytes, int keys, int vectors) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref sum[LOOP_CARRIED_MAX], row[REGISTERS_MAX];
  outer_sums(b, weights, x, row_bytes, keys, vectors, sum);
  for (int key = 0; key < keys; key++) {
    ref place = emit_offset(e, out, key * row_bytes);
    load_vectors(b, type, place, vectors, row);
    for (int i = 0; i < vectors; i++)
      emit_store(e, emit_add(e, row[i], sum[key * vectors + i]),
                 emit_offset(e, place, i * register_bytes(b)),
                 (unsigned)register_bytes(b));
  }
}

/* Keys first..end-1 in blocks of `keys`: all vectors of their rows. */
void tile_outer_keys(build *b, int64_t row_bytes, ref first, ref end,
                     int keys) {
  emit *e = &b->emit;
  int64_t step = 2 * register_bytes(b), whole = row_bytes - row_bytes % step;
  int64_t weight_bytes = tile_row_bytes(b) / b->pack;
  ref weights = emit_parameter(e, 0), x = emit_parameter(e, 1);
  loop key, at;
  loop_begin(e, &key, "keys", first, end, keys, NULL, 0);
  ref from =
      emit_at(e, weights, emit_mul(e, key.index, emit_long(e, weight_bytes)));
  ref out = emit_at(e, emit_parameter(e, 2),
                    emit_mul(e, key.index, emit_long(e, row_bytes)));
  if (whole > 0) {
    loop_begin(e, &at, "dims", emit_long(e, 0), emit_long(e, whole), step, NULL,
               0);
    outer_block(b, from, emit_at(e, x, at.index), emit_at(e, out, at.index),
                row_bytes, keys, 2);
    loop_end(e, &at, NULL);
  }
  if (row_bytes > whole)
    outer_block(b, from, emit_offset(e, x, whole), emit_offset(e, out, whole),
                row_bytes, keys, 1);
  loop_end(e, &key, NULL);
}

void tile_outer(build *b, const char *name, int64_t width) {
  if (b->tiles) {
    matrix_outer(b, name, width);
    return;
  }
  emit *e = &b->emit;
  int block = b->isa->key_block * b->isa->registers / 2; /* two vectors each */
  emit_function(e, name, 'v', "pppl");
  for (int i = 0; i < 3; i++) emit_noalias(e, i);
  ref n = emit_parameter(e, 3);
  ref rest = LLVMBuildURem(e->builder, n, emit_long(e, block), "");
  ref whole = emit_sub(e, n, rest);
  tile_outer_keys(b, dil_code_outer(width) * CELL, emit_long(e, 0), whole, block);
  tile_outer_keys(b, dil_code_outer(width) * CELL, whole, n, 1);
  emit_return(e, NULL);
}
