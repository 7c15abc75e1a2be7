/* pages.c - what can be wrong with the pages of a call. See pages.h. */
#include "pages.h"
#include "status.h"

int64_t dil_pages_keys(const dil_call *c) {
  int64_t keys;
  if (!pages_given(c)) return c->k.shape[1];
  if (__builtin_mul_overflow(c->pages.columns, pages_rows(c), &keys))
    return INT64_MAX;
  return keys;
}

dil_status dil_pages_check(const dil_call *c) {
  int64_t rows = pages_rows(c);
  if (!pages_given(c) || (rows > 0 && (rows & (rows - 1)) == 0)) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "a page of k has %lld rows, which is no power of two: with "
                  "pages, k and v are [pages, rows, heads, elements]",
                  (long long)rows);
}

static dil_status check_row(const dil_call *c, int64_t b) {
  int64_t pool = c->k.shape[0];
  int64_t keys = c->lengths ? c->lengths[b] : dil_pages_keys(c);
  int64_t used = (keys + pages_rows(c) - 1) >> pages_shift(c);
  const int32_t *numbers = pages_of(c, b);
  for (int64_t column = 0; column < used; column++)
    if (numbers[column] < 0 || numbers[column] >= pool)
      return dil_fail(DIL_USAGE,
                      "pages[%lld, %lld] is %d, and k and v have %lld pages",
                      (long long)b, (long long)column, numbers[column],
                      (long long)pool);
  return DIL_OK;
}

dil_status dil_pages_check_numbers(const dil_call *c) {
  dil_status status = DIL_OK;
  if (!pages_given(c)) return DIL_OK;
  for (int64_t b = 0; b < c->q.shape[0] && !status; b++)
    status = check_row(c, b);
  return status;
}

dil_status dil_pages_refuse(const dil_call *c, const char *what) {
  if (!pages_given(c)) return DIL_OK;
  return dil_fail(DIL_UNSUPPORTED, "pages of a cache cannot be used with %s",
                  what);
}
