/* lists.h - lists of blocks, or of keys, and the table that they stand for.
 *
 * Lists are in the form CSR: the key blocks of query block r are cols[rows[r]],
 * ..., cols[rows[r + 1] - 1], in any order and any number of times. A list of keys
 * holds those of a head, likewise; -1 is none. Where functions take rows and cols,
 * it is both. */
#ifndef DIL_RUNTIME_BASE_LISTS_H
#define DIL_RUNTIME_BASE_LISTS_H

#include "runtime/call.h"

/* The table that lists stand for, where a call has M keys: a bit for each pair of
 * blocks (dil_input_is_bits), or a byte for each key; and the bytes that it
 * takes. */
DIL_API dil_tensor dil_lists_bits(const dil_input *made, const dil_tensor *rows,
                                  int64_t M, void *data);
DIL_API int64_t dil_lists_bytes(const dil_input *made, const dil_tensor *table);
/* DIL_USAGE where an entry is no block, or key, of the table or a row is no part of
 * `cols`; the message names the inputs, of which `made` is the table. rows is i32
 * [.., nbq + 1] and cols i32 [.., *], both readable. blocks is u8 [.., nbq, nb], or
 * [.., M], of which only the shape is read. */
DIL_API dil_status dil_lists_check(const dil_input *made,
                                   const dil_input *inputs,
                                   const dil_tensor *rows,
                                   const dil_tensor *cols,
                                   const dil_tensor *blocks);
/* A list that a choice makes of `heads` heads, where a call has B batch rows and M
 * keys: its rows, or its cols. */
DIL_API dil_tensor dil_choice_list(const dil_choice *c, int64_t heads, int64_t B,
                                   int64_t M, bool cols, void *data);
/* Checks `list`, the array at `index` of those that the table's expressions read,
 * which a choice makes. DIL_UNSUPPORTED: it has more entries than can be numbered.
 * DIL_USAGE: the call's place for it has another shape. */
DIL_API dil_status dil_choice_check(const dil_table *table, const dil_call *call,
                                    int32_t index, const dil_tensor *list);
/* DIL_UNSUPPORTED: ranks, chunks and packed calls take no lists. */
DIL_API dil_status dil_lists_refuse(const dil_table *table, int32_t made);
/* Writes 1 to the blocks, or keys, that the lists hold and 0 to all others of a
 * table of dil_lists_bits. Entries outside it are left out. */
DIL_API void dil_lists_fill(const dil_input *made, const dil_tensor *rows,
                            const dil_tensor *cols, const dil_tensor *blocks);

/* The bit of a table of blocks at a place that its strides count. */
static inline bool dil_lists_bit(const dil_tensor *table, int64_t place) {
  return ((const uint32_t *)table->data)[place / 32] >> place % 32 & 1;
}

#endif
