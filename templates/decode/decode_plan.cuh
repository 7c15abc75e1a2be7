/* decode_plan.cuh - the producing warp of a team: which units the team takes, the
 * visits of their keys, and the copies. All lanes go through it together. */
#pragma once

/* The rest of a team's work, and how far its rings have come. */
struct decode_cursor {
  int team;
  int group;       /* 32 batch rows from here on are looked at, a lane each */
  bool counted;    /* the lane knows of its batch row: */
  int bits;        /* keys of a split, as a power of two */
  int splits;      /* of its keys */
  unsigned upto;   /* units of all rows of the group up to this one */
  unsigned before; /* units of the batch rows before the group */
  unsigned next;   /* of the units to count, the team takes this one next: lane 0 */
  bool claimed;    /* it is asked for */
  unsigned unit, message, place; /* the next ones, counted on */
};

/* A unit: its batch row, tile, first split, how many, and how many its tile has; the
 * keys of a split, as a power of two. */
struct decode_unit {
  bool some;
  int b, tile, split, count, splits, bits;
};

/* Finds the splits of a batch row. */
DIL_INLINE void count_row(const decode_launch &l, decode_cursor &c, int b) {
  const dil_params &p = l.of;
  long long reach = few_reach(p, batch_keys(p, b)), tiles = few_tiles(p);
  c.bits = few_bits(reach, tiles);
  c.splits = few_splits(reach, tiles);
}

/* The units of a batch row whose tiles have so many splits. */
DIL_INLINE unsigned row_units(const decode_launch &l, int splits) {
  return (unsigned)(((splits - 1 >> l.unit_bits) + 1) * l.tiles);
}

/* Counts the units of the 32 batch rows of a group. */
DIL_INLINE void count_group(const decode_launch &l, decode_cursor &c) {
  const int lane = threadIdx.x & 31, b = c.group + lane;
  c.splits = 0;
  if (b < l.of.batches) count_row(l, c, b);
  c.upto = row_units(l, c.splits);
#pragma unroll
  for (int away = 1; away < 32; away *= 2) {
    unsigned other = __shfl_sync(0xffffffffu, c.upto, lane - away & 31);
    if (lane >= away) c.upto += other;
  }
  c.counted = true;
}

/* Unit number `inside` of a batch row: all tiles of its first splits, then all of the
 * next ones, so that blocks that run side by side read heads whose keys lie side by
 * side. */
DIL_INLINE decode_unit unit_inside(const decode_launch &l, int b, unsigned inside,
                                   int splits, int bits) {
  int tile = take_digit(inside, l.tiles), first = (int)inside << l.unit_bits;
  int count = least(1 << l.unit_bits, splits - first);
  return {true, b, tile, first, count, splits, bits};
}

/* Unit number `item` of the launch, where all batch rows have as many keys. */
DIL_INLINE decode_unit find_even_unit(const decode_launch &l, decode_cursor &c,
                                      unsigned item) {
  if (!c.counted) count_row(l, c, 0);
  c.counted = true;
  unsigned units = row_units(l, c.splits), b = item / units;
  if (b >= (unsigned)l.of.batches) return {};
  return unit_inside(l, (int)b, item - b * units, c.splits, c.bits);
}

/* Unit number `item` of the launch; numbers only rise. */
DIL_INLINE decode_unit find_unit(const decode_launch &l, decode_cursor &c,
                                 unsigned item) {
  if (!l.of.lengths) return find_even_unit(l, c, item);
#pragma unroll 1
  while (c.group < l.of.batches) {
    if (!c.counted) count_group(l, c);
    unsigned holds = __ballot_sync(0xffffffffu, item < c.before + c.upto);
    if (!holds) {
      c.before += __shfl_sync(0xffffffffu, c.upto, 31);
      c.group += 32;
      c.counted = false;
      continue;
    }
    int owner = __ffs((int)holds) - 1;
    int splits = __shfl_sync(0xffffffffu, c.splits, owner);
    int bits = __shfl_sync(0xffffffffu, c.bits, owner);
    unsigned upto = __shfl_sync(0xffffffffu, c.upto, owner);
    unsigned inside = item - c.before - upto + row_units(l, splits);
    return unit_inside(l, c.group + owner, inside, splits, bits);
  }
  return {};
}

/* ---- copies -------------------------------------------------------------- */

/* Tells of a unit, and copies its queries: rows, which lie apart, a copy each. */
DIL_INLINE void load_queries(const decode_launch &l, const decode_unit &u,
                             const dil_tile &t, const decode_cursor &c) {
  const dil_params &p = l.of;
  const unsigned slot = slot_of(c.team, c.unit);
  const int lane = threadIdx.x & 31;
  if (lane == 0) {
    barrier_wait(QUERY_EMPTY(slot), slot_turn(c.unit) ^ 1);
    UNIT(slot) = {t, u.b * l.tiles + u.tile, u.splits, u.count};
    barrier_expect(QUERY_FULL(slot), t.count * p.pack * HEAD_DIM * 2);
  }
  __syncwarp();
  u32 to = shared_address(shared + AT_QUERY) + slot * TILE_ROWS * PITCH_Q;
#pragma unroll 1
  for (int row = lane; row < t.count * p.pack; row += 32) {
    int position, head;
    find_row(p, t, row, &position, &head);
    const element *from = (const element *)p.q + t.b * p.q_stride[0] +
                          row_at(p, t, position) * p.q_stride[1] +
                          (head - p.head) * p.q_stride[2];
    load_bytes(to + row * PITCH_Q, from, HEAD_DIM * 2, QUERY_FULL(slot));
  }
}

/* The maps of the dilation of some keys. */
DIL_INLINE int map_of(const decode_launch &l, int dilation) {
  int at = 0;
#pragma unroll 1
  while (BRANCHES > 1 && at < HOPPER_STRIDES - 1 && l.dilation[at] != dilation) at++;
  return at;
}

/* Keys and values of a visit come in boxes, a lane each: one, or in pages of fewer
 * keys one for each page. Returns where the lane's box stands in the maps: in a
 * batch row, or in a page; -1: in no page, so that zeros come. */
DIL_INLINE int place_box(const decode_launch &l, const dil_tile &t,
                         const dil_visit &v) {
  if (!is_paged(l.of)) return t.b;
  int first = (threadIdx.x & 31) * l.box, n = v.n + first;
  if (!v.some || first >= TILE_KEYS || n + l.box <= v.keys.first || n >= v.keys.end)
    return -1;
  return page_of(l.of, t.b, v.keys.start + n * v.keys.step);
}

#if PAGED
/* Tells which keys of a visit do not count: those in no page, and those before its
 * range, with whose page its first tile begins. All lanes. */
DIL_INLINE void mark_absent(const decode_launch &l, int place, dil_visit &v) {
  v.absent[0] = v.absent[1] = 0;
  if (!is_paged(l.of) || !v.some) return;
#pragma unroll
  for (int half = 0; half < (TILE_KEYS + 31) / 32; half++) {
    int column = (threadIdx.x & 31) + 32 * half, n = v.n + column;
    int page = __shfl_sync(0xffffffffu, place, column >> __ffs(l.box) - 1 & 31);
    bool gone = column < TILE_KEYS && n < v.keys.end && (page < 0 || n < v.keys.first);
    v.absent[half] = __ballot_sync(0xffffffffu, gone);
  }
  ask_of_absent(v);
}
#endif

/* Copies a visit's boxes; all lanes. */
DIL_INLINE void load_visit(const decode_launch &l, const dil_tile &t,
                           const dil_visit &v, int place, const decode_cursor &c) {
  const unsigned stage = stage_of(c.team, c.place);
  const int step = v.keys.step, at = map_of(l, step), first = (threadIdx.x & 31) * l.box;
  if (first == 0) {
    barrier_wait(STAGE_EMPTY(stage), stage_turn(c.place) ^ 1);
    barrier_expect(STAGE_FULL(stage), STAGE_BYTES);
  }
  __syncwarp();
  if (first >= TILE_KEYS) return;
  int position = v.keys.start + (v.n + first) * step, row = position, phase = 0,
      more = 1;
  if (step > 1) {
    row = position / step;
    phase = position - row * step;
    more = phase >= l.of.M % step; /* phases with a row more have a map */
  }
  if (is_paged(l.of)) row &= (1 << l.of.page_shift) / step - 1;
  const u64 keep = l.again ? KEEP_LAST : KEEP_FIRST;
  u32 to = shared_address(shared) + stage * STAGE_BYTES;
#pragma unroll
  for (int i = 0; i < BOXES_K; i++)
    load_box(to + (i * TILE_KEYS + first) * CHUNK_K * 2, &l.k[at][more],
             STAGE_FULL(stage), i * CHUNK_K, row, phase, t.kv, place, keep);
#pragma unroll
  for (int i = 0; i < BOXES_V; i++)
    load_box(to + KEY_BYTES + (i * TILE_KEYS + first) * CHUNK_V * 2, &l.v[at][more],
             STAGE_FULL(stage), i * CHUNK_V, row, phase, t.kv, place, keep);
}

/* ---- messages ------------------------------------------------------------ */

#if MULTIPLICITY
/* How often the keys of a visit count, a lane each. */
DIL_INLINE void write_times(const dil_visit &v, float *times) {
#pragma unroll 1
  for (int i = threadIdx.x & 31; i < TILE_KEYS; i += 32)
    times[i] = (float)key_count(v, i);
}
#endif

/* Waits until a message may be written. */
DIL_INLINE decode_message &next_message(const decode_cursor &c) {
  const unsigned n = message_of(c.team, c.message);
  barrier_wait(MESSAGE_EMPTY(n), message_turn(c.message) ^ 1);
  return MESSAGE(n);
}
/* What all lanes wrote of it is there. */
DIL_INLINE void send_message(decode_cursor &c) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0)
    barrier_arrive(MESSAGE_FULL(message_of(c.team, c.message)));
  c.message++;
}

/* Tells of a visit, and starts its copies. */
DIL_INLINE void send_visit(const decode_launch &l, const dil_tile &t,
                           const dil_visit &v, int place, decode_cursor &c) {
  decode_message &m = next_message(c);
#if MULTIPLICITY
  if (v.merged)
    write_times(v, TIMES(message_of(c.team, c.message)));
#endif
  load_visit(l, t, v, place, c);
  if ((threadIdx.x & 31) == 0) {
    m.visit = v;
    m.unit = c.unit;
    m.place = c.place;
    m.stops = false;
#pragma unroll
    for (int i = 0; i < PART_ROUNDS && !v.full; i++) {
      m.live[i] = SCRATCH.part_live[0][i];
      m.full[i] = SCRATCH.part_full[0][i];
    }
  }
  c.place++;
  send_message(c);
}

/* Tells that a split has no more visits, nor has its unit where it is its `last`. */
DIL_INLINE void send_end(int split, bool last, decode_cursor &c) {
  decode_message &m = next_message(c);
  if ((threadIdx.x & 31) == 0) {
    m.visit.some = false;
    m.unit = c.unit;
    m.split = split;
    m.last = last;
    m.stops = false;
  }
  send_message(c);
}

DIL_INLINE void send_stop(decode_cursor &c) {
  decode_message &m = next_message(c);
  if ((threadIdx.x & 31) == 0) m.stops = true;
  send_message(c);
}

/* ---- units --------------------------------------------------------------- */

/* A unit takes its tiles of keys; the last one of a tile takes all that are left.
 * `bits`: how many a split has, as a power of two. */
DIL_INLINE dil_cursor begin_keys(const decode_launch &l, const decode_unit &u,
                                 const dil_tile &t, int bits) {
  dil_cursor keys = first_cursor(l.of, t);
  keys.skip = u.split << bits;
  if (u.split + u.count < u.splits) keys.take = u.count << bits;
#if ALIGNED_KEYS
  keys.align = is_paged(l.of) ? l.box : 1;
#endif
  return keys;
}

/* The tiles from a visit's on that the unit's splits have. */
DIL_INLINE int tiles_left(const dil_cursor &keys, const dil_visit &v) {
  return keys.take + (keys.stop - v.n) / TILE_KEYS;
}

/* Asks for the next unit's number, when the visits of a unit are nearly planned: a unit
 * that waits behind a long one could run elsewhere. Nothing touches the answer before it
 * is needed. */
DIL_INLINE void claim_unit(const decode_launch &l, decode_cursor &c) {
  if (c.claimed) return;
  if ((threadIdx.x & 31) == 0) c.next = count_up(l.counters);
  c.claimed = true;
}
DIL_INLINE unsigned claimed_unit(const decode_cursor &c) {
  return TEAMS * gridDim.x + __shfl_sync(0xffffffffu, c.next, 0);
}

DIL_INLINE void send_unit(const decode_launch &l, const decode_unit &u,
                          decode_cursor &c) {
  const dil_params &p = l.of;
  dil_tile t = find_tile(p, (unsigned)(u.b * l.tiles + u.tile), TILE_ROWS);
  if (!t.count) return;
  /* A plan of several branches looks at the tile in many places. */
  if (BRANCHES > 1 && (threadIdx.x & 31) == 0) SCRATCH.tile = t;
  __syncwarp();
  const dil_tile &planned = BRANCHES > 1 ? SCRATCH.tile : t;
  load_queries(l, u, t, c);
  const int bits = u.bits - (__ffs(TILE_KEYS) - 1), last = u.split + u.count - 1;
  int split = u.split, due = u.count << bits;
  dil_cursor keys = begin_keys(l, u, t, bits);
  const int all = keys.take;
  dil_visit v;
  if (MULTIPLICITY && (threadIdx.x & 31) == 0) SCRATCH.visit[1].table = 0;
#pragma unroll 1
  for (;;) {
    find_visit(p, planned, keys, v, 0);
    __syncwarp();
    if (!v.some) break;
    int now = u.split + (all - tiles_left(keys, v) >> bits);
#pragma unroll 1
    while (split < now && split < last) send_end(split++, false, c);
    if (MULTIPLICITY && (threadIdx.x & 31) == 0) SCRATCH.visit[1].table = v.table;
    if (HIDING && v.full) { /* a weight of 0 must not meet NaN */
      v.full = false;
      v.window = true;
    }
    int place = place_box(l, t, v);
#if PAGED
    mark_absent(l, place, v);
#endif
    send_visit(l, t, v, place, c);
    if (--due <= 1) claim_unit(l, c);
  }
#pragma unroll 1
  for (; split <= last; split++) send_end(split, split == last, c);
  c.unit++;
}

/* The last team to end leaves the counters at 0. */
DIL_INLINE void close_counters(const decode_launch &l) {
  if ((threadIdx.x & 31) != 0) return;
  if (count_up(l.counters + 1) != TEAMS * gridDim.x - 1) return;
  l.counters[0] = 0;
  l.counters[1] = 0;
}

DIL_INLINE void produce(const decode_launch &l, int team) {
  decode_cursor c = {};
  c.team = team;
  decode_unit u = find_unit(l, c, blockIdx.x + team * gridDim.x);
  meet_block();
#pragma unroll 1
  while (u.some) {
    c.claimed = false;
    send_unit(l, u, c);
    claim_unit(l, c);
    u = find_unit(l, c, claimed_unit(c));
  }
  send_stop(c);
  close_counters(l);
}
