/* call_pages.c - keys and values in pages of a cache. In: --pages, arrays or
 * random numbers, lengths. Out: the pages of a call, from a file; or made for a
 * test (`random`): keys and values laid out in a pool, its pages in random
 * order, NaN in all places that no key has. */
#include "call_setup.h"
#include "runtime/base/pages.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

enum {
  PAGE_ROWS = 16,      /* where `random` does not say */
  PAGE_ROWS_MOST = 1 << 20,
  SPARE_PAGES = 3,     /* of a random pool: no batch row has them */
  PAGE_NUMBERS = 0x9A6 /* the random numbers of their order */
};

static const char random_word[] = "random";

bool call_pages_are_random(const options *o) {
  return o->pages && !strncmp(o->pages, random_word, strlen(random_word)) &&
         strchr(":", o->pages[strlen(random_word)]);
}

bool call_pages_of_file(const options *o) {
  return o->pages && !call_pages_are_random(o);
}

/* ---- what does not go with pages ----------------------------------------- */

dil_status call_pages_check(const options *o) {
  const struct {
    bool given;
    const char *option;
  } others[] = {{o->backward, "--backward"},
                {o->seen[OPTION_STREAM], "--stream"},
                {o->topology != NULL, "--topology"},
                {o->offsets != NULL, "--offsets"},
                {o->train, "--train"}};
  if (!o->pages) return DIL_OK;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (others[i].given)
      return dil_fail(DIL_USAGE, "--pages cannot be used with %s",
                      others[i].option);
  if (call_pages_are_random(o)) return DIL_OK;
  if (!o->array[1] || !o->array[2])
    return dil_fail(DIL_USAGE, "--pages %s wants the pool, [pages, rows, Hkv, "
                    "D]: say --k F.npy and --v F.npy, or --pages random",
                    o->pages);
  if (!o->lengths)
    return dil_fail(DIL_USAGE, "--pages %s wants --lengths F.npy, the keys that "
                    "each batch row has", o->pages);
  return DIL_OK;
}

/* ---- pages of a file ----------------------------------------------------- */

static dil_status read_numbers(call_setup *b, const char *path, dil_tensor *t) {
  dil_npy file;
  dil_status status = dil_npy_read(path, &file);
  if (status) return status;
  if (file.tensor.rank != 2)
    status = dil_fail(DIL_INPUT, "'%s' is %s, but pages are [B, pages of a batch "
                      "row]", path,
                      call_tensor_shape_text(b->arena, &file.tensor));
  else
    status = call_take_array(b, path, DIL_I32, &file, t);
  dil_npy_free(&file);
  return status;
}

/* Claims B and M, which k and v do not show. */
dil_status call_pages_load(call_setup *b, const dil_tensor loaded[3]) {
  const char *path = b->options->pages;
  const dil_tensor *k = &loaded[1], *v = &loaded[2];
  dil_tensor numbers;
  if (!call_pages_of_file(b->options)) return DIL_OK;
  dil_status status = read_numbers(b, path, &numbers);
  if (status) return status;
  if (k->shape[0] != v->shape[0] || k->shape[1] != v->shape[1])
    return dil_fail(DIL_INPUT, "'%s' has %lld pages of %lld rows, but '%s' has "
                    "%lld of %lld", b->options->array[1],
                    (long long)k->shape[0], (long long)k->shape[1],
                    b->options->array[2], (long long)v->shape[0],
                    (long long)v->shape[1]);
  b->call.k = *k;
  b->call.pages = (dil_call_pages){numbers.data, numbers.shape[1],
                                   numbers.stride[0]};
  status = dil_pages_check(&b->call);
  const char *who = arena_print(b->arena, "'%s'", path);
  if (!status) status = call_claim_size(b, CALL_B, numbers.shape[0], who);
  return status ? status
                : call_claim_size(b, CALL_M, dil_pages_keys(&b->call), who);
}

/* ---- random pages -------------------------------------------------------- */

static dil_status read_rows(const options *o, int64_t *rows) {
  const char *at = o->pages + strlen(random_word);
  char *end = NULL;
  *rows = *at ? strtol(at + 1, &end, 10) : PAGE_ROWS;
  bool good = !end || (end > at + 1 && !*end);
  if (good && *rows > 0 && *rows <= PAGE_ROWS_MOST && !(*rows & (*rows - 1)))
    return DIL_OK;
  return dil_fail(DIL_USAGE, "--pages random:ROWS wants a power of two up to %d, "
                  "got '%s'", PAGE_ROWS_MOST, at + 1);
}

dil_status call_pages_size(call_setup *b) {
  if (!call_pages_are_random(b->options)) return DIL_OK;
  dil_status status = read_rows(b->options, &b->page_rows);
  if (status) return status;
  b->page_keys = b->size[CALL_M];
  b->size[CALL_M] =
      (b->page_keys + b->page_rows - 1) / b->page_rows * b->page_rows;
  return DIL_OK;
}

/* All batch rows have all keys where no --lengths says otherwise. */
static dil_status default_lengths(call_setup *b) {
  const int64_t shape[] = {b->size[CALL_B]};
  dil_tensor t;
  if (b->call.lengths) return DIL_OK;
  dil_status status = call_tensor_new(b, DIL_I32, 1, shape, &t);
  for (int64_t i = 0; !status && i < shape[0]; i++)
    ((int32_t *)t.data)[i] = (int32_t)b->page_keys;
  b->call.lengths = t.data;
  return status;
}

static dil_status check_lengths(const call_setup *b) {
  for (int64_t i = 0; i < b->size[CALL_B]; i++)
    if (b->call.lengths[i] > b->page_keys)
      return dil_fail(DIL_INPUT, "'%s' has %d at batch row %lld, and there are "
                      "%lld keys", b->options->lengths, b->call.lengths[i],
                      (long long)i, (long long)b->page_keys);
  return DIL_OK;
}

/* The order of a pool: a permutation by Philox. */
static void shuffle(uint32_t seed, int32_t *order, int64_t count) {
  for (int64_t i = 0; i < count; i++) order[i] = (int32_t)i;
  for (int64_t i = count - 1; i > 0; i--) {
    const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
    const uint32_t key[2] = {seed, PAGE_NUMBERS};
    uint32_t word[4];
    dil_philox(counter, key, word);
    int64_t other = (int64_t)(word[0] % (uint64_t)(i + 1));
    int32_t kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
}

/* The first pages of the order are those of batch row 0, and so on; a batch row
 * has -1 behind its last. */
static dil_status make_numbers(call_setup *b, int64_t pool) {
  const int64_t columns = b->size[CALL_M] / b->page_rows;
  const int64_t shape[] = {b->size[CALL_B], columns};
  dil_tensor numbers, order;
  dil_status status = call_tensor_new(b, DIL_I32, 2, shape, &numbers);
  if (!status) status = call_tensor_new(b, DIL_I32, 1, &pool, &order);
  if (status) return status;
  shuffle(b->options->random, order.data, pool);
  for (int64_t row = 0; row < shape[0]; row++)
    for (int64_t i = 0; i < columns; i++)
      ((int32_t *)numbers.data)[row * columns + i] =
          i * b->page_rows < b->call.lengths[row]
              ? ((const int32_t *)order.data)[row * columns + i]
              : -1;
  b->call.pages = (dil_call_pages){numbers.data, columns, columns};
  return DIL_OK;
}

/* Moves the keys that batch rows have into a pool full of NaN. */
static dil_status lay_out(call_setup *b, int64_t pool, dil_tensor *t) {
  const dil_tensor from = *t;
  const dil_call_pages *pages = &b->call.pages;
  const int64_t shape[] = {pool, b->page_rows, from.shape[2], from.shape[3]};
  int64_t bytes =
      from.shape[2] * from.shape[3] * (int64_t)dil_dtype_size(from.dtype);
  dil_status status = call_tensor_new(b, from.dtype, 4, shape, t);
  if (status) return status;
  memset(t->data, 0xFF, (size_t)(pool * b->page_rows * bytes));
  for (int64_t row = 0; row < b->size[CALL_B]; row++)
    for (int64_t j = 0; j < b->call.lengths[row]; j++) {
      int64_t page = pages->number[row * pages->stride + j / b->page_rows];
      memcpy((char *)t->data + (page * b->page_rows + j % b->page_rows) * bytes,
             (const char *)from.data + (row * from.shape[1] + j) * bytes,
             (size_t)bytes);
    }
  return DIL_OK;
}

dil_status call_pages_make(call_setup *b) {
  if (!b->options->pages) return DIL_OK;
  if (call_pages_of_file(b->options)) return dil_pages_check_numbers(&b->call);
  dil_status status = default_lengths(b);
  if (!status) status = check_lengths(b);
  if (status) return status;
  int64_t pool =
      b->size[CALL_B] * (b->size[CALL_M] / b->page_rows) + SPARE_PAGES;
  status = make_numbers(b, pool);
  if (!status) status = lay_out(b, pool, &b->call.k);
  return status ? status : lay_out(b, pool, &b->call.v);
}
