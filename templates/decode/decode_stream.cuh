/* decode_stream.cuh - what a producing warp tells its team: units, messages, and the
 * mbarriers of the three rings (stages, messages, tiles of queries). A ring has
 * places by number, counted on; a place of a team is one of the block's. */
#pragma once

/* The facts of a whole unit, which stand beside its queries. */
struct decode_unit_message {
  dil_tile tile;
  int number; /* of the tile: its counter of splits that have ended */
  int splits; /* of the tile */
  int count;  /* of them, those of the unit */
};
static_assert(sizeof(decode_unit_message) <= UNIT_BYTES, "UNIT_BYTES");

/* One visit of a unit, or the end of one of its splits (no visit), or the end of all
 * units. */
struct decode_message {
  dil_visit visit;
  unsigned unit;  /* of this team, by number */
  unsigned place; /* the visit's stage, counted on */
  int split;      /* that ends */
  bool last;      /* the unit ends with it */
  bool stops;
  /* Of parts of 16 rows and 8 keys, as in dil_scratch. */
  unsigned live[PART_ROUNDS], full[PART_ROUNDS];
};
static_assert(sizeof(decode_message) <= MESSAGE_BYTES, "MESSAGE_BYTES");

DIL_INLINE unsigned stage_of(int team, unsigned place) {
  return team * TEAM_STAGES + place % TEAM_STAGES;
}
DIL_INLINE unsigned stage_turn(unsigned place) { return place / TEAM_STAGES & 1; }
DIL_INLINE unsigned slot_of(int team, unsigned unit) {
  return team * QUERIES + unit % QUERIES;
}
DIL_INLINE unsigned slot_turn(unsigned unit) { return unit / QUERIES & 1; }
DIL_INLINE unsigned message_of(int team, unsigned n) {
  return team * MESSAGES + n % MESSAGES;
}
DIL_INLINE unsigned message_turn(unsigned n) { return n / MESSAGES & 1; }

#define UNIT(slot)                                                            \
  (*(decode_unit_message *)(shared + AT_UNIT + (slot) * UNIT_BYTES))
#define MESSAGE(n)                                                            \
  (*(decode_message *)(shared + AT_MESSAGE + (n) * MESSAGE_BYTES))
/* How often the keys of the visit count. */
#define TIMES(n) ((float *)(shared + AT_TIMES + (n) * TIMES_BYTES))

/* How many arrivals end a phase of barrier number n. */
DIL_INLINE int arrivals_of(int n) {
  const int messages = TEAMS * MESSAGES, queries = TEAMS * QUERIES;
  n -= 2 * STAGES + messages;
  bool by_team = (n >= 0 && n < messages) || n >= messages + queries;
  return by_team ? TEAM_WARPS : 1;
}

/* All warps meet once: then the barriers are there. */
DIL_INLINE void meet_block() { named_barrier_sync(0, THREADS); }

/* Sets up the barriers, a thread each, while the producing warps plan. Columns of
 * queries that no row fills become 0, since the copies do not write them. */
DIL_INLINE void open_stream() {
  const int first = threadIdx.x - 32 * TEAMS, threads = THREADS - 32 * TEAMS;
#pragma unroll 1
  for (int n = first; n < BARRIERS; n += threads)
    barrier_init(BARRIER(n), arrivals_of(n));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#pragma unroll 1
  for (int i = first; i < TEAMS * QUERIES * TILE_ROWS * PITCH_Q / 16; i += threads)
    ((uint4 *)(shared + AT_QUERY))[i] = make_uint4(0, 0, 0, 0);
  proxy_fence();
  meet_block();
}
