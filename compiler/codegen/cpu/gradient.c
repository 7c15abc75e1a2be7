/* gradient.c - from scores and dP to what the products of the gradients take.
 *
 * With the row's lse, each pair's weight is P = m 2^min(0, c2 s - lse2), and
 * dS = P (W dP - delta) slope: W is dropout's factor, slope the derivative of
 * the score chain, m how often the pair counts. It is the backward of
 * FlashAttention-2 (Dao 2023, arXiv 2307.08691). A pair of weight 0 has
 * dS = 0, whatever its dP, delta and slope are.
 *
 * The weights go out as V's gradient wants them (a row of lanes a key), dS that
 * way too and once more as tile_pv wants its weights. */
#include "cpu.h"
#include <math.h>

/* Parameters of ds and ds_drop, in order. */
typedef enum ds_parameter {
  DS_S, DS_DP, DS_P, DS_ROWS, DS_PAIRS, DS_PLAIN, DS_SLOPE, DS_N, DS_C2,
  DS_BIAS, DS_LSE, DS_DELTA, DS_ROW_WORDS, DS_KEY_WORDS
} ds_parameter;

/* The values that the loop over keys needs. */
typedef struct ds_tile {
  ref lse[REGISTERS_MAX], delta[REGISTERS_MAX];
  ref c2, bias;
  ref plain, slope; /* i1: the pointer is given */
  bool drop;
  ref words[REGISTERS_MAX]; /* of dropout, the rows' */
} ds_tile;

/* Registers of one key. */
typedef struct ds_key {
  ref p[REGISTERS_MAX], ds[REGISTERS_MAX];
} ds_key;

static ref_type floats(const build *b) {
  return emit_vector(b->emit.f32, b->emit.width);
}

static ref parameter_row(const build *b, ds_parameter which, ref key) {
  return tile_row_at(b, emit_parameter(&b->emit, which), key);
}

static ref is_given(const build *b, ds_parameter which) {
  const emit *e = &b->emit;
  return emit_not(e, LLVMBuildIsNull(e->builder, emit_parameter(e, which), ""));
}

static ref weight_of(build *b, const ds_tile *t, ref score, int reg) {
  emit *e = &b->emit;
  ref below = emit_fma(e, score, t->c2,
                       LLVMBuildFNeg(e->builder, t->lse[reg], ""));
  ref held = emit_select(e, emit_compare(e, IS_GREATER, below, emit_real(e, 0)),
                         emit_real(e, 0), below);
  ref weight = math_power(b, emit_add(e, held, t->bias), b->exp_degree);
  ref hidden = emit_compare(e, IS_EQUAL, score, emit_real(e, -INFINITY));
  return emit_select(e, hidden, emit_real(e, 0), weight);
}

/* share[reg] = dropout's factor: 0 or 1 / (1 - p). */
static void dropout_factors(build *b, const ds_tile *t, ref key, ref *share) {
  const emit *e = &b->emit;
  ref place = emit_at(e, emit_parameter(e, DS_KEY_WORDS),
                      emit_mul(e, key, emit_long(e, CELL)));
  ref word = emit_load(e, e->i32, place, CELL);
  for (int reg = 0; reg < b->isa->registers; reg++)
    share[reg] =
        dropout_weight(b, t->words[reg], word,
                       emit_splat(e, emit_real(e, 1), e->width));
}

ref slope_product(const emit *e, ref a, ref b) {
  ref zero = emit_real(e, 0);
  ref none = emit_or(e, emit_compare(e, IS_EQUAL, a, zero),
                     emit_compare(e, IS_EQUAL, b, zero));
  return emit_select(e, none, zero, emit_mul(e, a, b));
}

/* ds[reg] = plain[reg] times the key's slope, where there are slopes. */
static void apply_slopes(build *b, const ds_tile *t, ref key, ref const *plain,
                         ref *ds) {
  emit *e = &b->emit;
  ref row[REGISTERS_MAX];
  branch_block some;
  branch_begin(e, &some, "slope", t->slope);
  tile_load_row(b, floats(b), parameter_row(b, DS_SLOPE, key), row);
  for (int reg = 0; reg < b->isa->registers; reg++)
    row[reg] = slope_product(e, plain[reg], row[reg]);
  branch_end(e, &some);
  for (int reg = 0; reg < b->isa->registers; reg++)
    ds[reg] = branch_merge(e, &some, row[reg], plain[reg]);
}

/* dS before the slope goes where the sums of inputs read it. */
static void store_plain(build *b, const ds_tile *t, ref key, ref const *plain) {
  emit *e = &b->emit;
  branch_block some;
  branch_begin(e, &some, "plain", t->plain);
  tile_store_row(b, plain, parameter_row(b, DS_PLAIN, key));
  branch_end(e, &some);
}

static ds_key ds_of_key(build *b, const ds_tile *t, ref key) {
  emit *e = &b->emit;
  ds_key k;
  ref zero = emit_real(e, 0), dp[REGISTERS_MAX], share[REGISTERS_MAX];
  ref plain[REGISTERS_MAX], score[REGISTERS_MAX];
  tile_load_row(b, floats(b), parameter_row(b, DS_S, key), score);
  tile_load_row(b, floats(b), parameter_row(b, DS_DP, key), dp);
  if (t->drop) dropout_factors(b, t, key, share);
  for (int reg = 0; reg < b->isa->registers; reg++) {
    ref p = weight_of(b, t, score[reg], reg);
    ref empty = emit_compare(e, IS_EQUAL, p, zero);
    k.p[reg] = p;
    if (t->drop) {
      ref dropped = emit_compare(e, IS_EQUAL, share[reg], zero);
      k.p[reg] = emit_select(e, dropped, zero, emit_mul(e, p, share[reg]));
      dp[reg] = emit_select(e, dropped, zero, emit_mul(e, dp[reg], share[reg]));
    }
    plain[reg] = emit_select(
        e, empty, zero,
        emit_mul(e, p, emit_sub(e, dp[reg], t->delta[reg])));
  }
  store_plain(b, t, key, plain);
  apply_slopes(b, t, key, plain, k.ds);
  return k;
}

static ref first_half(const emit *e, ref both) {
  int lane[64];
  for (int i = 0; i < e->width; i++) lane[i] = i;
  return emit_shuffle(e, both, both, lane, e->width);
}

/* A key's row of lanes, in bf16 where the products take pairs. */
static void store_lanes(build *b, ref const *row, ds_parameter which,
                        ref key) {
  emit *e = &b->emit;
  if (b->pack == DIL_PACK_F32) {
    tile_store_row(b, row, parameter_row(b, which, key));
    return;
  }
  ref place = emit_at(e, emit_parameter(e, which),
                      emit_mul(e, key, emit_long(e, tile_row_bytes(b) / 2)));
  if (b->isa->registers == 1) {
    ref both = host_arch.round_rows(e, row[0], row[0]);
    emit_store(e, first_half(e, both), place, (unsigned)e->width * CELL / 2);
    return;
  }
  for (int reg = 0; reg < b->isa->registers; reg += 2)
    emit_store(e, host_arch.round_rows(e, row[reg], row[reg + 1]),
               emit_offset(e, place, reg * e->width * 2),
               (unsigned)e->width * CELL);
}

/* Two keys' dS as tile_pv takes pairs of weights; `second` NULL: zeros. */
static void store_pairs(build *b, ref key, ref const *first,
                        ref const *second) {
  emit *e = &b->emit;
  ref packed[REGISTERS_MAX], zero = emit_zero(floats(b));
  if (b->pack == DIL_PACK_F32) return;
  for (int reg = 0; reg < b->isa->registers; reg++)
    packed[reg] = host_arch.round_pairs(e, first[reg],
                                        second != NULL ? second[reg] : zero);
  ref half = emit_long(e, tile_row_bytes(b) / 2);
  tile_store_row(b, packed, emit_at(e, emit_parameter(e, DS_PAIRS),
                                    emit_mul(e, key, half)));
}

/* `count` (1 or 2) keys from `index` on. */
static void ds_keys(build *b, const ds_tile *t, ref index, int count) {
  emit *e = &b->emit;
  ds_key k[2];
  for (int i = 0; i < count; i++) {
    ref key = emit_add(e, index, emit_long(e, i));
    k[i] = ds_of_key(b, t, key);
    store_lanes(b, k[i].p, DS_P, key);
    store_lanes(b, k[i].ds, DS_ROWS, key);
  }
  store_pairs(b, index, k[0].ds, count == 2 ? k[1].ds : NULL);
}

static void ds_all(build *b, const ds_tile *t, ref n) {
  emit *e = &b->emit;
  ref even = emit_and(e, n, emit_long(e, -2));
  loop key;
  branch_block odd;
  loop_begin(e, &key, "keys", emit_long(e, 0), even, 2, NULL, 0);
  ds_keys(b, t, key.index, 2);
  loop_end(e, &key, NULL);
  branch_begin(e, &odd, "odd", emit_compare(e, IS_LESS, even, n));
  ds_keys(b, t, even, 1);
  branch_end(e, &odd);
}

void tile_ds(build *b, bool drop) {
  emit *e = &b->emit;
  ds_tile t;
  emit_function(e, drop ? "ds_drop" : "ds", 'v',
                drop ? "ppppppplffpppp" : "ppppppplffpp");
  t = (ds_tile){.drop = drop,
                .c2 = emit_parameter(e, DS_C2),
                .bias = emit_parameter(e, DS_BIAS),
                .plain = is_given(b, DS_PLAIN),
                .slope = is_given(b, DS_SLOPE)};
  if (drop)
    tile_load_row(b, emit_vector(e->i32, e->width),
                  emit_parameter(e, DS_ROW_WORDS), t.words);
  tile_load_row(b, floats(b), emit_parameter(e, DS_LSE), t.lse);
  tile_load_row(b, floats(b), emit_parameter(e, DS_DELTA), t.delta);
  ds_all(b, &t, emit_parameter(e, DS_N));
  emit_return(e, NULL);
}
