/* stream_carry.c - rows between the host and the buffers of a device: at once
 * where its memory is the host's, else piece by piece through pinned memory.
 * In: tensors of the host. Out: the same rows in buffers, or back. */
#include "stream.h"
#include "runtime/base/arithmetic.h"
#include "runtime/ring/row_copy.h"
#include "runtime/rowset/walk.h"

static int64_t row_bytes(const dil_tensor *t) {
  return t->shape[2] * t->shape[3] * (int64_t)dil_dtype_size(t->dtype);
}

/* lse as rows of one number, a head a batch row. */
static dil_tensor lse_as_rows(const dil_tensor *t, int64_t b) {
  dil_tensor part = *t;
  int64_t at = b * t->stride[0];
  if (t->rank == 3) {
    part = (dil_tensor){.dtype = t->dtype, .rank = 4};
    const int64_t shape_of[] = {1, t->shape[2], 1, 1};
    const int64_t stride[] = {0, t->stride[2], 1, 1};
    for (int32_t i = 0; i < 4; i++) {
      part.shape[i] = shape_of[i];
      part.stride[i] = stride[i];
    }
    at = b / t->shape[1] * t->stride[0] + b % t->shape[1] * t->stride[1];
  }
  part.shape[0] = 1;
  part.data = (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
  return part;
}

static int64_t row_groups(const dil_tensor *t) {
  return t->rank == 3 ? t->shape[0] * t->shape[1] : t->shape[0];
}

static dil_tensor rows_of(const dil_tensor *t, int64_t first, int64_t count) {
  dil_tensor part = *t;
  part.data = (char *)t->data +
              first * t->stride[1] * (int64_t)dil_dtype_size(t->dtype);
  part.shape[1] = count;
  return part;
}

/* The rows as they lie in a piece or a buffer. */
static dil_tensor piece_rows(void *memory, const dil_tensor *like) {
  return dil_tensor_make(memory, like->dtype, 4, like->shape);
}

static int32_t next_piece(stream_carry *c, transfer_lane lane) {
  return c->turn[lane]++ % TRANSFER_PIECES;
}

/* ---- up ------------------------------------------------------------------ */

static dil_status transfer_rows(stream_carry *c, const dil_tensor *from,
                                const dil_tensor *to) {
  int32_t piece = next_piece(c, TRANSFER_UP);
  const device_transfer_calls *calls = c->transfer->calls;
  void *memory;
  dil_status status = calls->settle(c->transfer, TRANSFER_UP, piece, &memory);
  if (status) return status;
  dil_tensor pinned = piece_rows(memory, to);
  status = row_copy(c->threads, from, &pinned);
  if (status) return status;
  return calls->copy(c->transfer, TRANSFER_UP, piece, to->data,
                     to->shape[1] * row_bytes(to));
}

dil_status carry_up(stream_carry *c, const dil_tensor *from,
                    const dil_tensor *buffer) {
  dil_status status = DIL_OK;
  if (!c->transfer) return row_copy(c->threads, from, buffer);
  int64_t all = from->shape[1], each = TRANSFER_PIECE / row_bytes(buffer);
  for (int64_t b = 0; b < from->shape[0]; b++)
    for (int64_t row = 0; row < all && !status; row += each) {
      dil_tensor whole = lse_as_rows(from, b), there = lse_as_rows(buffer, b);
      int64_t count = minimum(each, all - row);
      dil_tensor source = rows_of(&whole, row, count);
      dil_tensor target = rows_of(&there, row, count);
      status = transfer_rows(c, &source, &target);
    }
  return status;
}

static dil_status transfer_message(stream_carry *c, const route *r,
                                   const ring_keys *from, dil_dtype dtype,
                                   char *message) {
  const device_transfer_calls *calls = c->transfer->calls;
  const dil_tensor *k = &from->k[0], *v = &from->v[0];
  int64_t bytes = (k->shape[3] + v->shape[3]) * (int64_t)dil_dtype_size(dtype);
  int64_t each = TRANSFER_PIECE / bytes;
  dil_status status = DIL_OK;
  for (int64_t b = 0; b < k->shape[0]; b++)
    for (int64_t row = 0; row < r->rows && !status; row += each) {
      int32_t piece = next_piece(c, TRANSFER_UP);
      int64_t end = minimum(row + each, r->rows);
      void *memory;
      status = calls->settle(c->transfer, TRANSFER_UP, piece, &memory);
      if (!status)
        status = row_copy_pack(c->threads, r, k, v, b, row, end, dtype, memory);
      if (!status)
        status = calls->copy(c->transfer, TRANSFER_UP, piece,
                             message + (b * r->rows + row) * bytes,
                             (end - row) * bytes);
    }
  return status;
}

static dil_status transfer_route(stream_carry *c, route *r,
                                 const ring_keys *from, const ring_keys *chunk,
                                 void *message) {
  int32_t piece;
  void *memory;
  dil_status status =
      transfer_message(c, r, from, chunk->k[0].dtype, message);
  if (status) return status;
  piece = next_piece(c, TRANSFER_UP);
  status = c->transfer->calls->settle(c->transfer, TRANSFER_UP, piece, &memory);
  if (status) return status;
  return c->transfer->calls->spread(c->transfer, piece, r, message, chunk);
}

dil_status carry_route(stream_carry *c, route *r, const ring_keys *from,
                       const ring_keys *chunk, int64_t first, void *message) {
  const dil_tensor *source[] = {&from->k[0], &from->v[0]};
  const dil_tensor *target[] = {&chunk->k[0], &chunk->v[0]};
  int64_t all = target[0]->shape[1] * target[0]->shape[2];
  dil_status status = DIL_OK;
  if (c->transfer && r->rows < all)
    return transfer_route(c, r, from, chunk, message);
  for (int32_t i = 0; i < 2 && !status; i++) {
    dil_tensor rows_here = rows_of(source[i], first, target[i]->shape[1]);
    status = c->transfer ? carry_up(c, &rows_here, target[i])
                     : row_copy_route(c->threads, r, source[i], target[i],
                                      first);
  }
  return status;
}

/* ---- down ---------------------------------------------------------------- */

/* Rows that are on their way in a piece. */
typedef struct landing {
  bool some;
  int32_t piece;
  dil_tensor to, like;
} landing;

static dil_status carry_land(stream_carry *c, landing *l) {
  void *memory;
  if (!l->some) return DIL_OK;
  dil_status status =
      c->transfer->calls->settle(c->transfer, TRANSFER_DOWN, l->piece, &memory);
  dil_tensor pinned = piece_rows(memory, &l->like);
  l->some = false;
  return status ? status : row_copy(c->threads, &pinned, &l->to);
}

/* One piece comes while the rows of the one before are put in their places. */
dil_status carry_down(stream_carry *c, const dil_tensor *buffer,
                      const dil_tensor *to) {
  landing last = {0};
  dil_status status = DIL_OK;
  if (!c->transfer) return row_copy(c->threads, buffer, to);
  dil_tensor one = lse_as_rows(buffer, 0);
  int64_t all = one.shape[1], each = TRANSFER_PIECE / row_bytes(&one);
  for (int64_t b = 0; b < row_groups(buffer); b++)
    for (int64_t row = 0; row < all && !status; row += each) {
      dil_tensor from = lse_as_rows(buffer, b), whole = lse_as_rows(to, b);
      int64_t count = minimum(each, all - row);
      landing next = {true, next_piece(c, TRANSFER_DOWN),
                      rows_of(&whole, row, count), rows_of(&from, row, count)};
      status =
          c->transfer->calls->copy(c->transfer, TRANSFER_DOWN, next.piece,
                                   next.like.data, count * row_bytes(&one));
      if (!status) status = carry_land(c, &last);
      last = next;
    }
  return status ? status : carry_land(c, &last);
}
