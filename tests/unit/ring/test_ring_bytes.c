/* test_ring_bytes.c - the bytes that ranks send for gradients, against counts
 * by enumeration of pairs: each row travels once, there and back, and each
 * branch goes the way of fewer bytes. */
#include "tests/support/ring_trial.h"
#include "tests/support/suite.h"
#include <check.h>

static const char *const patterns[] = {
    "pattern p { heads 4; head_dim 16; dtype f32; causal;"
    " segments 32, 64, 128; dilations 1, 2, 4; }",
    "pattern p { heads 4 kv 2; head_dim 8; dtype bf16; causal;"
    " segments 40, 200; dilations 1, 4; }",
    "pattern p { heads 6 kv 2; head_dim 16; dtype f32; causal; phase kv;"
    " segments 40, 200; dilations 1, 4; dropout 1.0 / 8; }",
};

/* Whether query t and key j of a head are a pair of some of these branches. */
static bool is_pair(const gradient_scene *c, uint64_t branches, int32_t head,
                    int64_t t, int64_t j, int64_t N) {
  const expr_point point = {.B = 2, .N = (int32_t)N, .M = (int32_t)N};
  const pattern *p = c->k->plan->pattern;
  for (int32_t b = 0; b < p->branch_count; b++)
    if ((branches >> b & 1) && pattern_reaches(p, b, head, t, j, &point))
      return true;
  return false;
}

static int32_t owner_of(const mesh *m, int64_t N, int64_t row) {
  for (int32_t rank = 0; rank < m->ring; rank++) {
    positions p = partition_owned(m->layout, N, 0, m->ring, rank);
    for (int32_t i = 0; i < p.count; i++) {
      int64_t past = row - p.progression[i].first;
      if (past >= 0 && past % p.progression[i].step == 0 &&
          past / p.progression[i].step < p.progression[i].count)
        return rank;
    }
  }
  return -1;
}

/* Counts by enumeration the rows of keys that queries of other ranks see, or the
 * rows of queries that see keys of other ranks: a row for each such rank. */
static int64_t rows_needed(const gradient_scene *c, const mesh *m, int64_t N,
                           uint64_t branches, bool queries) {
  const dil_table *table = &c->k->plan->table;
  int32_t group = table->heads / table->kv_heads;
  int32_t heads = queries ? 1 : group;
  int64_t rows = 0;
  for (int32_t list = 0; list < table->heads / heads; list++)
    for (int64_t own = 0; own < N; own++) {
      bool wanted[RANKS_MOST] = {false};
      for (int64_t other = 0; other < N; other++)
        for (int32_t h = list * heads; h < (list + 1) * heads; h++)
          if (is_pair(c, branches, h, queries ? own : other,
                      queries ? other : own, N))
            wanted[owner_of(m, N, other)] = true;
      wanted[owner_of(m, N, own)] = false;
      for (int32_t rank = 0; rank < m->ring; rank++) rows += wanted[rank];
    }
  return rows;
}

/* Keys come: K and V in the pattern's type there, dK and dV in f32 back. Queries
 * come: q, dO, lse and delta there, dQ in f32 back. */
static void expect_bytes(const gradient_scene *c, const ring_trial *of,
                         int64_t N, uint64_t queries) {
  const dil_table *t = &c->k->plan->table;
  int64_t width = t->head_dim + t->value_dim;
  int64_t element = (int64_t)dil_dtype_size(t->dtype);
  int64_t keys = 2 * rows_needed(c, &of->mesh, N, ~queries, false);
  int64_t asking = 2 * rows_needed(c, &of->mesh, N, queries, true);
  ring_outcome r = gradient_scene_agrees(c, of);
  ck_assert_int_eq(ring_bytes_sent(&r),
                   keys * width * (element + 4) +
                       asking * (width * element + 8 + 4 * t->head_dim));
}

START_TEST(each_row_goes_back_once) {
  const int64_t N = 97;
  gradient_scene c = gradient_scene_open(patterns[_i], N, N);
  ring_trial of = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
  for (int layout = 0; layout < DIL_LAYOUT_COUNT; layout++)
    for (int way = 0; way < COMING; way++) {
      of.mesh.layout = (dil_layout)layout;
      of.mesh.gathered = ways[(way + layout) % WAYS];
      ring_trial_come(&of, way);
      expect_bytes(&c, &of, N, coming[way]);
    }
  gradient_scene_close(&c);
}
END_TEST

/* Without a word of the caller, each branch goes the way of fewer bytes: by
 * enumeration of the branch alone. */
START_TEST(each_branch_goes_the_cheaper_way) {
  const int64_t N = 97;
  static const uint64_t queries[] = {7, 3, 0}; /* of each pattern */
  gradient_scene c = gradient_scene_open(patterns[_i], N, N);
  const dil_table *t = &c.k->plan->table;
  int64_t width = t->head_dim + t->value_dim;
  int64_t element = (int64_t)dil_dtype_size(t->dtype);
  ring_trial of = {.mesh = MESH(4, 1, 1, ZIGZAG)};
  uint64_t cheaper = 0;
  for (int32_t b = 0; b < t->branch_count; b++) {
    uint64_t alone = (uint64_t)1 << b;
    int64_t keys = rows_needed(&c, &of.mesh, N, alone, false);
    int64_t asking = rows_needed(&c, &of.mesh, N, alone, true);
    if (asking * (width * element + 8 + 4 * t->head_dim) <
        keys * width * (element + 4))
      cheaper |= alone;
  }
  ck_assert_uint_eq(cheaper, queries[_i]);
  expect_bytes(&c, &of, N, cheaper);
  gradient_scene_close(&c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring_bytes");
  TCase *tests = tcase_create("ring_bytes");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, each_row_goes_back_once, 0, 2);
  tcase_add_loop_test(tests, each_branch_goes_the_cheaper_way, 0, 3);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
