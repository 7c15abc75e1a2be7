/* decode_tiles.cuh - tiles whose keys are split: how many splits have ended, which tiles
 * are complete, and who merges them. */
#pragma once

DIL_INLINE void meet_team(int team) {
  named_barrier_sync(1 + team, 32 * TEAM_WARPS);
}

/* A team counts the splits of its unit and goes on: whether they were the last ones of
 * their tile it learns at the end of its next unit. A complete tile waits until the next
 * one is complete, or until no team of the block has units: then all warps share the
 * rows. A team that merged at once would end its next unit late, hence as the last one of
 * another tile, which it would merge, too. */
struct decode_ended { /* in few registers: a warp keeps it while it multiplies */
  unsigned counted : 1; /* TILE(team, place) has been counted */
  unsigned waits : 1;   /* the tile before it is complete */
  unsigned place : 2;   /* of ENDED_TILES: the one behind it may still be merged */
  unsigned before; /* the tile's splits that had ended: lane 0 of the first warp */
};
#define TILE(team, place)                                                     \
  (*(decode_unit_message *)(shared + AT_TILES +                               \
                            (ENDED_TILES * (team) + (place) % ENDED_TILES) * UNIT_BYTES))

/* Lane 0 of the first warp tells its team, and the block, which tiles are complete. */
struct decode_complete {
  int counted; /* bool: the counted tile is */
  int due[2];  /* when the team has no more units: places of such tiles, or -1 */
  int unused;  /* the mbarriers behind these stand at multiples of 16 bytes */
};
DIL_INLINE decode_complete &complete_of(int team) {
  return ((decode_complete *)(shared + AT_COMPLETE))[team];
}

/* Rows that are due: those of a tile, of which the sums of both warps are there, or
 * parts. NULL: none. */
struct decode_due {
  const decode_unit_message *of;
  bool merges;
};

/* A tile's counter is a byte, which does not overflow: a tile has at most 64 splits. */
struct decode_counter {
  unsigned *word;
  int shift;
};
DIL_INLINE decode_counter counter_of(const decode_launch &l,
                                     const decode_unit_message &u) {
  return {l.arrived + u.number / 4, u.number % 4 * 8};
}

/* One thread's fence orders all that the team wrote before it met. */
DIL_INLINE void count_splits(const decode_launch &l, const decode_unit_message &u,
                             decode_ended &x) {
  decode_counter c = counter_of(l, u);
  device_fence();
  x.before = count_up(c.word, (unsigned)u.count << c.shift);
}

/* Tells the team whether the tile that it has counted is complete; by lane 0 of the
 * first warp. Then the counter becomes 0 for the next launch. */
DIL_INLINE void tell_complete(const decode_launch &l, int team, const decode_ended &x) {
  const decode_unit_message &u = TILE(team, x.place);
  decode_counter c = counter_of(l, u);
  bool complete = (int)(x.before >> c.shift & 255) + u.count == u.splits;
  if (complete) count_up(c.word, 0 - ((unsigned)u.splits << c.shift));
  if (complete) device_fence();
  complete_of(team).counted = complete;
}

/* Counts a unit whose parts the warp has left; the tile counted before is `complete`.
 * Returns the tile that has to be merged. */
DIL_INLINE decode_due end_unit(const decode_launch &l, const decode_unit_message &u,
                               bool complete, int team, int mine, decode_ended &x) {
  const bool first = mine == 0 && threadIdx.x % 32 == 0, merges = complete && x.waits;
  meet_team(team);
  if (first) count_splits(l, u, x);
  if (complete) {
    x.waits = true;
    x.place = (x.place + 1) % ENDED_TILES;
  }
  if (first) TILE(team, x.place) = u;
  x.counted = true;
  return {merges ? &TILE(team, x.place + 1) : nullptr, true};
}

/* The team has no more units. When all teams have none, their complete tiles are due. */
DIL_INLINE void end_team(const decode_launch &l, int team, int mine,
                         const decode_ended &x) {
  if (mine == 0 && threadIdx.x % 32 == 0) {
    decode_complete &c = complete_of(team);
    c.counted = false;
    if (x.counted) tell_complete(l, team, x);
    c.due[0] = x.waits ? x.place + 2 : -1;
    c.due[1] = c.counted ? x.place : -1;
  }
  named_barrier_sync(1 + TEAMS, 32 * TEAMS * TEAM_WARPS);
}

/* The due tiles of the block, a bit each: team n / 2 has number n. */
DIL_INLINE unsigned due_tiles() {
  const int n = threadIdx.x & 31;
  bool due = n < 2 * TEAMS && complete_of(n / 2).due[n % 2] >= 0;
  return __ballot_sync(0xffffffffu, due);
}
DIL_INLINE decode_due due_tile(int n) {
  return {&TILE(n / 2, complete_of(n / 2).due[n % 2]), true};
}
