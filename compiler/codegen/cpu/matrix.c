/* matrix.c - the products of tile.c by tiles: registers of 16 rows of 16 cells, whose
 * products are 16 x 16 sums of pairs of bf16 (Intel's AMX).
 *
 * Four tiles of sums are a block: the lanes of a row, and some keys or dimensions. Packed
 * keys are rows of pairs along the sum, and queries and weights pairs by lanes, as
 * the tiles want them. Packed values are pairs by dimensions; a block of them is turned
 * round first. */
#include "cpu.h"
#include <math.h>

/* Tiles by their use. */
enum { SUM, SUMS = 4, ROWS = SUMS, LANES = 6 };
enum { SIDE = 16, TILE_ROW = SIDE * CELL, TILE_BYTES = SIDE * TILE_ROW };

bool matrix_fits(const plan *p, const isa *set) {
  const dil_table *t = &p->table;
  return set->tiles && t->dtype == DIL_BF16 && !t->grid.axes &&
         dil_code_fits_tiles(t->head_dim, t->value_dim);
}

/* Tiles of lanes, a register each, and tiles of rows beside four sums. */
static int groups(const build *b) { return b->isa->registers; }
static int blocks(const build *b) { return SUMS / groups(b); }
static int64_t block_rows(const build *b) { return blocks(b) * SIDE; }

static void clear_sums(build *b) {
  for (int i = 0; i < SUMS; i++) host_arch.tile_clear(&b->emit, SUM + i);
}

/* The tiles of rows meet those of the lanes of 16 rows at `place`. */
static void multiply_lanes(build *b, ref place) {
  emit *e = &b->emit;
  for (int g = 0; g < groups(b); g++) {
    int lanes = LANES + g % 2;
    host_arch.tile_load(e, lanes, emit_offset(e, place, g * TILE_ROW),
                        tile_row_bytes(b));
    for (int i = 0; i < blocks(b); i++)
      host_arch.tile_multiply(e, SUM + i * groups(b) + g, ROWS + i, lanes);
  }
}

/* Stores sums as rows of lanes. */
static void store_sums(build *b, ref rows) {
  emit *e = &b->emit;
  for (int i = 0; i < SUMS; i++)
    host_arch.tile_store(e, SUM + i,
                         emit_offset(e, rows, i / groups(b) * SIDE * tile_row_bytes(b) +
                                                  i % groups(b) * TILE_ROW),
                         tile_row_bytes(b));
}

static ref room_of(const build *b, int64_t bytes) {
  return emit_room(&b->emit, b->emit.i8, bytes, 64);
}

static ref_type floats(const build *b) {
  return emit_vector(b->emit.f32, b->emit.width);
}

/* ---- qk ------------------------------------------------------------------ */

/* mx after a block of keys whose scores have just been stored. */
static void block_maximum(build *b, ref scores, ref *mx) {
  enum { CHAINS = 2 };
  emit *e = &b->emit;
  int registers = b->isa->registers, count = CHAINS * registers;
  ref best[LOOP_CARRIED_MAX], next[LOOP_CARRIED_MAX], row[REGISTERS_MAX];
  for (int i = 0; i < count; i++)
    best[i] = i < registers ? mx[i] : emit_splat(e, emit_real(e, -INFINITY), e->width);
  loop key;
  loop_begin(e, &key, "maximum", emit_long(e, 0), emit_long(e, block_rows(b)), CHAINS,
             best, count);
  ref place = tile_row_at(b, scores, key.index);
  for (int i = 0; i < CHAINS; i++) {
    tile_load_row(b, floats(b), emit_offset(e, place, i * tile_row_bytes(b)), row);
    for (int reg = 0; reg < registers; reg++)
      next[i * registers + reg] =
          emit_greater(e, row[reg], key.carried[i * registers + reg]);
  }
  loop_end(e, &key, next);
  for (int reg = 0; reg < registers; reg++)
    mx[reg] = emit_greater(e, key.carried[registers + reg], key.carried[reg]);
}

/* Scores of a block of keys. */
static void qk_tiles(build *b, ref rows, ref qt, ref scores, int64_t depth) {
  emit *e = &b->emit;
  int64_t row_bytes = depth * CELL;
  clear_sums(b);
  for (int64_t cell = 0; cell < depth; cell += SIDE) {
    for (int i = 0; i < blocks(b); i++)
      host_arch.tile_load(
          e, ROWS + i, emit_offset(e, rows, cell * CELL + i * SIDE * row_bytes), row_bytes);
    multiply_lanes(b, emit_offset(e, qt, cell * tile_row_bytes(b)));
  }
  store_sums(b, scores);
}

void matrix_qk(build *b, const char *name, int64_t width) {
  emit *e = &b->emit;
  int64_t depth = dil_code_cells(width, b->pack);
  int registers = b->isa->registers;
  emit_function(e, name, 'v', "ppppl");
  for (int i = 0; i < 4; i++) emit_noalias(e, i);
  ref k = emit_parameter(e, 0), s = emit_parameter(e, 2), n = emit_parameter(e, 4);
  ref mx[REGISTERS_MAX], full[REGISTERS_MAX], rest[REGISTERS_MAX];
  for (int reg = 0; reg < registers; reg++)
    mx[reg] = emit_splat(e, emit_real(e, -INFINITY), e->width);
  host_arch.tiles_open(e, room_of(b, TILE_ROW));
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), n, block_rows(b), mx, registers);
  ref scores = tile_row_at(b, s, key.index);
  qk_tiles(b, emit_at(e, k, emit_mul(e, key.index, emit_long(e, depth * CELL))),
           emit_parameter(e, 1), scores, depth);
  for (int reg = 0; reg < registers; reg++) full[reg] = rest[reg] = key.carried[reg];
  branch_block whole;
  branch_begin(e, &whole, "whole",
               emit_compare(e, IS_LESS_EQUAL,
                            emit_add(e, key.index, emit_long(e, block_rows(b))), n));
  block_maximum(b, scores, full);
  branch_else(e, &whole);
  tile_tail_maximum(b, s, key.index, n, rest);
  branch_end(e, &whole);
  for (int reg = 0; reg < registers; reg++)
    mx[reg] = branch_merge(e, &whole, full[reg], rest[reg]);
  loop_end(e, &key, mx);
  host_arch.tiles_close(e);
  tile_store_row(b, key.carried, emit_parameter(e, 3));
  emit_return(e, NULL);
}

/* ---- pv ------------------------------------------------------------------ */

/* Memory of a pv: turned values, the last values and weights with zeros behind them,
 * sums, and zeros. */
typedef struct pv_rooms {
  ref turned, values, weights, sums, zeros;
} pv_rooms;

/* Turns 16 vectors of 16 cells round. */
static void turn_square(build *b, ref *row) {
  for (int step = 1; step < SIDE; step *= 2)
    for (int i = 0; i < SIDE; i++) {
      int low[SIDE], high[SIDE];
      if (i & step) continue;
      for (int lane = 0; lane < SIDE; lane++) {
        low[lane] = lane & step ? SIDE + lane - step : lane;
        high[lane] = lane & step ? SIDE + lane : lane + step;
      }
      ref first = row[i], second = row[i + step];
      row[i] = emit_shuffle(&b->emit, first, second, low, SIDE);
      row[i + step] = emit_shuffle(&b->emit, first, second, high, SIDE);
    }
}

/* Copies `count` of 16 rows, with zeros behind them. */
static void pad_rows(build *b, ref from, int64_t row_bytes, ref count, ref zeros, ref to) {
  emit *e = &b->emit;
  loop row, at;
  loop_begin(e, &row, "rows", emit_long(e, 0), emit_long(e, SIDE), 1, NULL, 0);
  ref there = emit_compare(e, IS_LESS, row.index, count);
  ref offset = emit_mul(e, row.index, emit_long(e, row_bytes));
  loop_begin(e, &at, "pad", emit_long(e, 0), emit_long(e, row_bytes), TILE_ROW, NULL, 0);
  ref place = emit_add(e, offset, at.index);
  ref cells = emit_load(e, emit_vector(e->i32, SIDE),
                        emit_select(e, there, emit_at(e, from, place), zeros), CELL);
  emit_store(e, cells, emit_at(e, to, place), TILE_ROW);
  loop_end(e, &at, NULL);
  loop_end(e, &row, NULL);
}

/* Values of 16 pairs of keys in a block's dimensions become rows of dimensions. */
static void turn_values(build *b, ref values, int64_t stride, ref to) {
  emit *e = &b->emit;
  ref row[SIDE];
  for (int i = 0; i < blocks(b); i++) {
    for (int n = 0; n < SIDE; n++)
      row[n] = emit_load(e, emit_vector(e->i32, SIDE),
                         emit_offset(e, values, i * TILE_ROW + n * stride), CELL);
    turn_square(b, row);
    for (int n = 0; n < SIDE; n++)
      emit_store(e, row[n], emit_offset(e, to, i * TILE_BYTES + n * TILE_ROW), TILE_ROW);
  }
}

/* Where the turned values of the pairs from number `pair` on stand. */
static ref turned_at(const build *b, const pv_rooms *r, ref pair) {
  const emit *e = &b->emit;
  return emit_at(e, r->turned, emit_mul(e, pair, emit_long(e, blocks(b) * TILE_ROW)));
}

/* The sums grow by turned values times weights. */
static void multiply_turned(build *b, ref turned, ref weights) {
  for (int i = 0; i < blocks(b); i++)
    host_arch.tile_load(&b->emit, ROWS + i, emit_offset(&b->emit, turned, i * TILE_BYTES),
                        TILE_ROW);
  multiply_lanes(b, weights);
}

/* o = alpha o + the sums of a block's dimensions. */
static void join_sums(build *b, const pv_rooms *r, ref o, ref const *alpha) {
  emit *e = &b->emit;
  ref before[REGISTERS_MAX], sum[REGISTERS_MAX];
  store_sums(b, r->sums);
  loop dim;
  loop_begin(e, &dim, "join", emit_long(e, 0), emit_long(e, block_rows(b)), 1, NULL, 0);
  ref place = tile_row_at(b, o, dim.index);
  tile_load_row(b, floats(b), place, before);
  tile_load_row(b, floats(b), tile_row_at(b, r->sums, dim.index), sum);
  for (int reg = 0; reg < b->isa->registers; reg++)
    sum[reg] = emit_fma(e, alpha[reg], before[reg], sum[reg]);
  tile_store_row(b, sum, place);
  loop_end(e, &dim, NULL);
}

/* The block of dimensions from number `dim` on, over `pairs` of keys, of which those from
 * `whole` on are padded. A tile that is loaded right behind the stores of its rows would
 * wait for them: all values are turned first. */
static void pv_tiles(build *b, const pv_rooms *r, ref dim, int64_t stride, ref pairs,
                     ref whole) {
  emit *e = &b->emit;
  loop pair;
  ref column = emit_mul(e, dim, emit_long(e, CELL));
  ref values = emit_at(e, emit_parameter(e, 0), column);
  ref last = emit_at(e, r->values, column);
  loop_begin(e, &pair, "turn", emit_long(e, 0), pairs, SIDE, NULL, 0);
  ref from = emit_at(e, values, emit_mul(e, pair.index, emit_long(e, stride)));
  ref inside = emit_compare(e, IS_LESS, pair.index, whole);
  turn_values(b, emit_select(e, inside, from, last), stride,
              turned_at(b, r, pair.index));
  loop_end(e, &pair, NULL);
  clear_sums(b);
  loop_begin(e, &pair, "keys", emit_long(e, 0), pairs, SIDE, NULL, 0);
  ref weights = tile_row_at(b, emit_parameter(e, 1), pair.index);
  inside = emit_compare(e, IS_LESS, pair.index, whole);
  multiply_turned(b, turned_at(b, r, pair.index),
                  emit_select(e, inside, weights, r->weights));
  loop_end(e, &pair, NULL);
}

void matrix_pv(build *b, const char *name, int64_t width) {
  emit *e = &b->emit;
  int64_t stride = width * CELL, pairs_most = b->plan->table.tile_keys / 2;
  emit_function(e, name, 'v', "ppppl");
  for (int i = 0; i < 4; i++) emit_noalias(e, i);
  pv_rooms r = {.turned = room_of(b, (pairs_most / SIDE + 1) * blocks(b) * TILE_BYTES),
                .values = room_of(b, SIDE * stride),
                .weights = room_of(b, groups(b) * TILE_BYTES),
                .sums = room_of(b, SUMS * TILE_BYTES),
                .zeros = room_of(b, TILE_ROW)};
  ref config = room_of(b, TILE_ROW), alpha[REGISTERS_MAX];
  emit_store(e, emit_zero(emit_vector(e->i32, SIDE)), r.zeros, TILE_ROW);
  host_arch.tiles_open(e, config);
  tile_load_row(b, floats(b), emit_parameter(e, 3), alpha);
  ref pairs = emit_shift_right(
      e, emit_add(e, emit_parameter(e, 4), emit_long(e, 1)), 1);
  ref whole = emit_and(e, pairs, emit_long(e, -SIDE));
  ref rest = emit_sub(e, pairs, whole);
  branch_block some;
  branch_begin(e, &some, "pad", emit_compare(e, IS_GREATER, rest, emit_long(e, 0)));
  pad_rows(b, tile_row_at(b, emit_parameter(e, 1), whole), tile_row_bytes(b), rest,
           r.zeros, r.weights);
  pad_rows(b, emit_at(e, emit_parameter(e, 0), emit_mul(e, whole, emit_long(e, stride))),
           stride, rest, r.zeros, r.values);
  branch_end(e, &some);
  loop dim;
  loop_begin(e, &dim, "values", emit_long(e, 0), emit_long(e, width), block_rows(b), NULL,
             0);
  pv_tiles(b, &r, dim.index, stride, pairs, whole);
  join_sums(b, &r, tile_row_at(b, emit_parameter(e, 2), dim.index), alpha);
  loop_end(e, &dim, NULL);
  host_arch.tiles_close(e);
  emit_return(e, NULL);
}

/* ---- products over the queries ------------------------------------------- */

/* Sixteen keys by sixteen dimensions at a time: the lanes are one tile deep. */
void matrix_outer(build *b, const char *name, int64_t width) {
  emit *e = &b->emit;
  int64_t row_bytes = dil_code_outer(width) * CELL;
  int64_t weight_bytes = tile_row_bytes(b) / b->pack;
  emit_function(e, name, 'v', "pppl");
  for (int i = 0; i < 3; i++) emit_noalias(e, i);
  ref n = emit_parameter(e, 3), whole = emit_and(e, n, emit_long(e, -SIDE));
  host_arch.tiles_open(e, room_of(b, TILE_ROW));
  loop key, at;
  loop_begin(e, &key, "keys", emit_long(e, 0), whole, SIDE, NULL, 0);
  int depth = groups(b) / 2; /* tiles of pairs of lanes */
  ref weights = emit_at(e, emit_parameter(e, 0),
                        emit_mul(e, key.index, emit_long(e, weight_bytes)));
  for (int i = 0; i < depth; i++)
    host_arch.tile_load(e, ROWS + i, emit_offset(e, weights, i * TILE_ROW), weight_bytes);
  ref out = emit_at(e, emit_parameter(e, 2),
                    emit_mul(e, key.index, emit_long(e, row_bytes)));
  loop_begin(e, &at, "dims", emit_long(e, 0), emit_long(e, row_bytes), TILE_ROW, NULL, 0);
  host_arch.tile_load(e, SUM, emit_at(e, out, at.index), row_bytes);
  for (int i = 0; i < depth; i++) {
    host_arch.tile_load(e, LANES + i,
                        emit_at(e, emit_offset(e, emit_parameter(e, 1),
                                               i * SIDE * row_bytes), at.index),
                        row_bytes);
    host_arch.tile_multiply(e, SUM, ROWS + i, LANES + i);
  }
  host_arch.tile_store(e, SUM, emit_at(e, out, at.index), row_bytes);
  loop_end(e, &at, NULL);
  loop_end(e, &key, NULL);
  host_arch.tiles_close(e);
  tile_outer_keys(b, row_bytes, whole, n, 1);
  emit_return(e, NULL);
}
