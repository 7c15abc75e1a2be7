// backward_rows.cuh - the kernel over rows that runs before gradients: facts of
// query rows, f16's greatest numbers, the words of dropout.
//
// In: o, dO, lse, V. Out: what backward_facts.cuh and the consumers read.
#pragma once

// Lanes of a warp that share a row: sixteen bytes of each operand at a time.
#define LANES_OF(units)                                                        \
  ((units) <= 1 ? 1 : (units) <= 2 ? 2 : (units) <= 4 ? 4 : (units) <= 8 ? 8 : 16)
#define ROW_UNITS (VALUE_DIM / 8)
#define ROW_LANES LANES_OF(ROW_UNITS)

DEVICE long long offset_of(const long long (&stride)[3], int b, int n, int h) {
  return b * stride[0] + n * stride[1] + h * stride[2];
}

DEVICE float dot_units(const void *a, const void *b, long long i, long long j) {
  int4 x = *(const int4 *)((const unsigned short *)a + i);
  int4 y = *(const int4 *)((const unsigned short *)b + j);
  const u32 u[4] = {(u32)x.x, (u32)x.y, (u32)x.z, (u32)x.w};
  const u32 v[4] = {(u32)y.x, (u32)y.y, (u32)y.z, (u32)y.w};
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; k++)
    sum = fmaf(high_half(u[k]), high_half(v[k]),
               fmaf(low_half(u[k]), low_half(v[k]), sum));
  return sum;
}

// The same where the first operand is of f32.
DEVICE float dot_wide_units(const void *a, const void *b, long long i,
                            long long j) {
  const float4 *x = (const float4 *)((const float *)a + i);
  int4 y = *(const int4 *)((const unsigned short *)b + j);
  float4 low = x[0], high = x[1];
  const u32 u[4] = {(u32)y.x, (u32)y.y, (u32)y.z, (u32)y.w};
  return fmaf(low.x, low_half(u[0]), low.y * high_half(u[0])) +
         fmaf(low.z, low_half(u[1]), low.w * high_half(u[1])) +
         fmaf(high.x, low_half(u[2]), high.y * high_half(u[2])) +
         fmaf(high.z, low_half(u[3]), high.w * high_half(u[3]));
}

// The product of two rows, by the lanes that share them. `wide`: the first is of
// f32.
DEVICE float dot_rows(const void *a, const void *b, long long i, long long j,
                      bool there, bool wide = false) {
  float sum = 0;
#pragma unroll
  for (int unit = 0; unit < ROW_UNITS; unit += ROW_LANES) {
    int own = unit + thread_index() % ROW_LANES;
    if (!there || own >= ROW_UNITS) continue;
    sum += wide ? dot_wide_units(a, b, i + own * 8, j + own * 8)
                : dot_units(a, b, i + own * 8, j + own * 8);
  }
#pragma unroll
  for (int away = ROW_LANES / 2; away; away >>= 1)
    sum += __shfl_xor_sync(~0u, sum, away);
  return sum;
}

// The number of a batch row's keys.
DEVICE int keys_of(const hopper_facts_launch &run, int batch) {
  return run.lengths ? max(0, min(run.lengths[batch], run.keys)) : run.keys;
}

// A row of a head, of rows that follow one another as they do in memory: all
// heads of a position.
struct head_row {
  bool there;
  int b, n, h;
};
DEVICE head_row row_at(long long row, int rows, int heads) {
  int h, n;
  long long b = divide(divide(row, heads, &h), rows, &n);
  return {true, (int)b, n, h};
}

// Rows that thread blocks take in turn, each as many at once as it has shares of
// ROW_LANES lanes. All lanes of a block make as many turns.
struct row_turns {
  head_row at, step; // of the thread; between two turns
  int rows, heads, batches;
  long long left;    // turns
};
DEVICE void keep_inside(row_turns &t) {
  if (t.at.b >= t.batches) t.at = {false, 0, 0, 0};
}
// By block number `block` of `blocks`.
DEVICE row_turns turns_of(const hopper_facts_launch &run, int block, int blocks,
                          int rows, int heads) {
  int own = blockDim.x / ROW_LANES;
  long long all = (long long)run.batches * rows * heads;
  long long first = (long long)block * own;
  row_turns t = {row_at(first + threadIdx.x / ROW_LANES, rows, heads),
                 row_at((long long)blocks * own, rows, heads), rows, heads,
                 run.batches, 0};
  if (all > first) t.left = (all - first - 1) / ((long long)blocks * own) + 1;
  keep_inside(t);
  return t;
}
// A division of long numbers would take as long as a row.
DEVICE void next_turn(row_turns &t) {
  t.left--;
  t.at.h += t.step.h;
  int more = t.at.h >= t.heads;
  t.at.h -= more ? t.heads : 0;
  t.at.n += t.step.n + more;
  more = t.at.n >= t.rows;
  t.at.n -= more ? t.rows : 0;
  t.at.b += t.step.b + more;
  keep_inside(t);
}

// The greater of two numbers. One that is not finite does not count: it shows in
// the sums of the rows that see it.
DEVICE void take_top(float *top, float x, bool there) {
  bool finite = there && x < __int_as_float(0x7f800000);
  *top = fmaxf(*top, finite ? x : 0);
}
// Raises a number of run.tops to what a warp has found. Few warps write.
DEVICE void raise_top(float *top, float x) {
  int bits = __reduce_max_sync(~0u, __float_as_int(x));
  if (thread_index() % 32 == 0 && bits > *(volatile int *)top)
    atomicMax((int *)top, bits);
}

// The facts of a row, but for dropout's factor. Rows without keys have the lse +inf
// here, which makes weights of 0.
DEVICE float2 find_facts(const hopper_facts_launch &run, const head_row &r,
                         long long row) {
  const float log2_e = 1.44269504088896340736f;
  if (run.numbers) return ((const float2 *)run.numbers)[row];
  float state = run.state_lse ? run.state_lse[row] : 0;
  bool seen = __float_as_int(state) != HOPPER_UNSEEN &&
              state != MINUS_INFINITY; // else nobody has written its o
  float lse = run.lse[offset_of(run.lse_stride, r.b, r.n, r.h)];
  float2 facts;
  facts.x = lse == MINUS_INFINITY || !seen ? INFINITE_LSE : lse * log2_e;
  facts.y = dot_rows(run.o, run.do_, offset_of(run.o_stride, r.b, r.n, r.h),
                     offset_of(run.do_stride, r.b, r.n, r.h), r.there && seen,
                     run.o_wide);
  if (run.dlse)
    facts.y -= run.dlse[offset_of(run.dlse_stride, r.b, r.n, r.h)] / run.weight;
  return facts;
}

#if ELEMENT == 2
// Takes what the unit of gradients of scores follows from. The fused form adds all
// passes in one unit. Where each has its own delta, the unit follows from what no
// delta exceeds: |dO| |V| + |dlse|.
DEVICE void look_at_row(const hopper_facts_launch &run, const head_row &r,
                        float delta, float2 *tops) {
  bool apart = run.state_lse != 0;
  long long at = offset_of(run.do_stride, r.b, r.n, r.h);
  bool there = r.there && (!run.rows_end || r.n < *run.rows_end);
  float square = dot_rows(run.do_, run.do_, at, at, r.there);
  if (apart && run.dlse)
    delta = run.dlse[offset_of(run.dlse_stride, r.b, r.n, r.h)] / run.weight *
            run.kept;
  if (apart && !run.dlse) delta = 0;
  take_top(&tops->x, apart ? 4 * square : square, there);
  take_top(&tops->y, fabsf(delta), there);
}
#endif

DEVICE void put_facts(const hopper_facts_launch &run, const head_row &r,
                      long long row, float2 facts) {
  if (!r.there || thread_index() % ROW_LANES) return;
  if (run.general_facts) ((float2 *)run.general_facts)[row] = facts;
  facts.y *= run.kept;
  ((float2 *)run.facts)[((long long)r.b * run.heads + r.h) * run.rows + r.n] =
      facts;
}

#if ELEMENT != 2
// Facts that came with the rows, a lane each.
DEVICE void take_numbers(const hopper_facts_launch &run) {
  long long rows = (long long)run.batches * run.rows * run.heads;
  long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; row < rows; row += (long long)run.fact_blocks * blockDim.x) {
    int h, n;
    long long b = divide(divide(row, run.heads, &h), run.rows, &n);
    float2 facts = ((const float2 *)run.numbers)[row];
    facts.y *= run.kept;
    ((float2 *)run.facts)[(b * run.heads + h) * run.rows + n] = facts;
  }
}
#endif

DEVICE void make_facts(const hopper_facts_launch &run) {
#if ELEMENT != 2
  if (run.numbers) return take_numbers(run);
#endif
  float2 tops = {0, 0};
  row_turns t = turns_of(run, blockIdx.x, run.fact_blocks, run.rows, run.heads);
  for (; t.left > 0; next_turn(t)) {
    head_row r = t.at;
    long long row = ((long long)r.b * run.rows + r.n) * run.heads + r.h;
    float2 facts = find_facts(run, r, row);
#if ELEMENT == 2
    look_at_row(run, r, facts.y * run.kept, &tops);
#endif
    put_facts(run, r, row, facts);
  }
#if ELEMENT == 2
  raise_top(run.tops, tops.x);
  raise_top(run.tops + 2, tops.y);
#endif
}

#if ELEMENT == 2
DEVICE void look_at_values(const hopper_facts_launch &run) {
  float top = 0;
  row_turns t = turns_of(run, blockIdx.x - run.fact_blocks, run.value_blocks,
                         run.keys, run.key_heads);
  for (; t.left > 0; next_turn(t)) {
    head_row r = t.at;
    long long at = offset_of(run.v_stride, r.b, r.n, r.h);
    r.there &= r.n < (run.keys_end ? *run.keys_end : keys_of(run, r.b));
    take_top(&top, dot_rows(run.v, run.v, at, at, r.there), r.there);
  }
  raise_top(run.tops + 1, top);
}
#endif

#if DROPS
DEVICE void draw_word(const hopper_facts_launch &run) {
  int block = blockIdx.x - run.fact_blocks - run.value_blocks;
  long long i = (long long)block * blockDim.x + threadIdx.x;
  long long rows = (long long)run.batches * run.heads * run.rows;
  bool key = i >= rows;
  if (key) i -= rows;
  int count = key ? run.keys : run.rows;
  long long head = i / count;
  if (head >= (long long)run.batches * run.heads) return;
  int batch = (int)(head / run.heads), n = (int)(i % count);
  int away = key ? run.key_first : keys_of(run, batch) - run.keys + run.first;
  dil_seed seed = seed_of(run);
  (key ? run.key_words : run.row_words)[i] =
      dil_drop_word(key ? DIL_DROP_KEY : DIL_DROP_ROW, batch + run.batch,
                    (int)(head % run.heads) + run.head, n + away, seed.low,
                    seed.high);
}
#endif

extern "C" __global__ void
__launch_bounds__(256, HOPPER_FACT_BLOCKS(ELEMENT == 2, VALUE_DIM))
hopper_facts(const __grid_constant__ hopper_facts_launch run) {
  if ((int)blockIdx.x < run.fact_blocks) make_facts(run);
#if ELEMENT == 2
  else if ((int)blockIdx.x < run.fact_blocks + run.value_blocks)
    look_at_values(run);
#endif
#if DROPS
  else draw_word(run);
#endif
}
