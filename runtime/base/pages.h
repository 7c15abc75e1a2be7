/* pages.h - a call whose keys and values stand in pages of a cache.
 *
 * In: a call with pages. Out: M, the page and the row of a key, or what is wrong
 * with the pages. Numbers behind a batch row's length are never looked at. */
#ifndef DIL_RUNTIME_BASE_PAGES_H
#define DIL_RUNTIME_BASE_PAGES_H

#include "runtime/call.h"
#include "runtime/dilrt.h"

#pragma GCC visibility push(default)

static inline bool pages_given(const dil_call *c) {
  return c->pages.number != NULL;
}
/* Rows of a page, and its binary logarithm. */
static inline int64_t pages_rows(const dil_call *c) { return c->k.shape[1]; }
static inline int32_t pages_shift(const dil_call *c) {
  return __builtin_ctzll((uint64_t)pages_rows(c));
}
/* The numbers of a batch row's pages, in the order of its keys. */
static inline const int32_t *pages_of(const dil_call *c, int64_t b) {
  return c->pages.number + b * c->pages.stride;
}
/* M of a call, with pages or without them. */
int64_t dil_pages_keys(const dil_call *c);
/* DIL_USAGE: rows of a page are no power of two. It needs k to have four
 * dimensions, and looks at no number. */
dil_status dil_pages_check(const dil_call *c);
/* DIL_USAGE: a number that a batch row of this length needs is outside the pool;
 * the text names its place. Lengths are checked, and none are M. */
dil_status dil_pages_check_numbers(const dil_call *c);
/* As other ways to run a call refuse pages; `what` is their name. */
dil_status dil_pages_refuse(const dil_call *c, const char *what);

#pragma GCC visibility pop
#endif
