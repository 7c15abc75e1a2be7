/* test_overlap.c - who shares memory: random strided tensors against a count
 * of every byte. A wrong no is a failure; so is a wrong yes where both are
 * slices of one array. */
#include "runtime/api/context.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { SPACE = 4096, ROUNDS = 20000 };

static uint32_t state = 1;

static int64_t draw(int64_t count) {
  state = state * 1664525u + 1013904223u;
  return (int64_t)(state >> 8) % count;
}

static char space[SPACE];

/* Marks the bytes of every element; the most marks that one byte has. */
static int mark(const dil_tensor *t, unsigned char *marks) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  int64_t base = (char *)t->data - space;
  int most = 0;
  for (int64_t i = 0; i < dil_tensor_count(t); i++) {
    int64_t rest = i, at = base;
    for (int32_t axis = t->rank; axis-- > 0;) {
      at += rest % t->shape[axis] * t->stride[axis] * size;
      rest /= t->shape[axis];
    }
    for (int64_t b = at; b < at + size; b++)
      if (++marks[b] > most) most = marks[b];
  }
  return most;
}

static dil_tensor draw_tensor(void) {
  dil_tensor t = {.dtype = draw(2) ? DIL_F32 : DIL_BF16,
                  .rank = (int32_t)draw(4)};
  for (int32_t axis = 0; axis < t.rank; axis++) {
    t.shape[axis] = draw(16) ? 1 + draw(4) : 0;
    t.stride[axis] = draw(41) - 20;
  }
  t.data = space + SPACE / 2 + 4 * (draw(60) - 30);
  return t;
}

START_TEST(random_tensors) {
  int shared = 0, apart = 0, needless = 0;
  for (int round = 0; round < ROUNDS; round++) {
    unsigned char a[SPACE] = {0}, b[SPACE] = {0};
    dil_tensor x = draw_tensor(), y = draw_tensor();
    bool twice = mark(&x, a) > 1;
    mark(&y, b);
    bool meet = false;
    for (int i = 0; i < SPACE; i++) meet |= a[i] && b[i];
    if (twice) ck_assert(overlap_within(&x));
    if (meet) ck_assert(overlap_between(&x, &y) && overlap_between(&y, &x));
    shared += meet;
    apart += !meet;
    needless += !meet && overlap_between(&x, &y);
  }
  ck_assert_int_gt(shared, ROUNDS / 10);
  ck_assert_int_gt(apart, ROUNDS / 10);
  ck_assert_int_lt(needless, apart / 2);
}
END_TEST

/* Slices of [A][B][C][D] along one axis: apart exactly when their ranges of
 * that axis are. */
START_TEST(slices_of_one_array) {
  static const int64_t shape[] = {3, 4, 5, 6};
  for (int round = 0; round < ROUNDS; round++) {
    dil_tensor whole = dil_tensor_make(space, DIL_F32, 4, shape), x = whole;
    dil_tensor y = whole;
    int32_t axis = (int32_t)draw(4);
    int64_t n = shape[axis], x0 = draw(n), y0 = draw(n);
    x.shape[axis] = 1 + draw(n - x0);
    y.shape[axis] = 1 + draw(n - y0);
    x.data = space + 4 * x0 * x.stride[axis];
    y.data = space + 4 * y0 * y.stride[axis];
    bool meet = x0 < y0 + y.shape[axis] && y0 < x0 + x.shape[axis];
    ck_assert_int_eq(overlap_between(&x, &y), meet);
    ck_assert(!overlap_within(&x));
  }
}
END_TEST

START_TEST(empty_ones_share_nothing) {
  int64_t none[] = {4, 0};
  dil_tensor x = dil_tensor_make(space, DIL_F32, 2, none);
  ck_assert(!overlap_within(&x));
  ck_assert(!overlap_between(&x, &x));
}
END_TEST

int main(void) {
  Suite *s = suite_create("overlap");
  TCase *t = tcase_create("overlap");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, random_tensors);
  tcase_add_test(t, slices_of_one_array);
  tcase_add_test(t, empty_ones_share_nothing);
  suite_add_tcase(s, t);
  return suite_run(s, CK_NOFORK);
}
