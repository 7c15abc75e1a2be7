/* ranks_gpu.c - the tensors of a rank on its GPU; see ranks_gpu.h. In: a
 * rank's views of a call on the host. Out: contiguous copies on the device, and
 * the results back on the host. */
#include "ranks_gpu.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

/* ---- the device ---------------------------------------------------------- */

dil_status resident_open(const rank_group_gpu *shared, const dil_table *table,
                         int32_t rank, resident *r) {
  const dil_cuda_module *cuda = shared->cuda;
  *r = (resident){.shared = shared};
  dil_status status =
      cuda->open(shared->first + rank % shared->devices, &r->gpu);
  if (!status)
    status = cuda->kernel(r->gpu, table, shared->codes, shared->code_count,
                          NULL, shared->dimension, shared->context,
                          &r->kernel);
  if (!status)
    status = cuda->ring(r->gpu, r->kernel, &shared->rows, &r->device);
  return status;
}

/* Gives back what was taken behind the first `kept`. */
static void give_behind(resident *r, int32_t kept) {
  while (r->memory_count > kept)
    r->shared->cuda->give(r->gpu, r->memory[--r->memory_count]);
}

static void give_all(resident *r) {
  give_behind(r, 0);
  r->bytes = 0;
}

void resident_close(resident *r) {
  if (!r->shared) return;
  if (r->gpu) give_all(r);
  ring_device_free(r->device);
  if (r->kernel) r->shared->cuda->kernel_free(r->kernel);
  if (r->gpu) r->shared->cuda->close(r->gpu);
  *r = (resident){0};
}

/* ---- tensors ------------------------------------------------------------- */

static int64_t bytes_of(const dil_tensor *t) {
  return dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype);
}

/* A contiguous tensor of the device with the shape of `like`. */
static dil_status take_tensor(resident *r, const dil_tensor *like,
                              dil_dtype dtype, dil_tensor *made) {
  void *memory = NULL;
  *made = dil_tensor_make(NULL, dtype, like->rank, like->shape);
  dil_status status = r->shared->cuda->take(r->gpu, bytes_of(made), &memory);
  if (status) return status;
  r->memory[r->memory_count++] = memory;
  r->bytes += bytes_of(made);
  made->data = memory;
  return DIL_OK;
}

/* Allocates host memory for a contiguous copy of a device tensor. */
static dil_status take_whole(const dil_tensor *there, char **whole) {
  int64_t bytes = bytes_of(there);
  *whole = malloc((size_t)bytes + 1);
  return *whole ? DIL_OK
                : dil_fail(DIL_MEMORY, "no memory to copy %lld bytes of a rank",
                           (long long)bytes);
}

static dil_status copy_up(resident *r, const dil_tensor *host,
                          const dil_tensor *there) {
  char *whole;
  dil_status status = take_whole(there, &whole);
  if (status) return status;
  rows_pack(host, there->dtype, whole);
  if (bytes_of(there))
    status = r->shared->cuda->upload(r->gpu, there->data, whole,
                                     bytes_of(there));
  free(whole);
  return status;
}

static dil_status copy_down(resident *r, const dil_tensor *host,
                            const dil_tensor *there,
                            void (*copy)(const dil_tensor *, char **, bool)) {
  char *whole;
  dil_status status = take_whole(there, &whole);
  if (status) return status;
  if (bytes_of(there))
    status = r->shared->cuda->download(r->gpu, whole, there->data,
                                       bytes_of(there));
  char *at = whole;
  if (!status) copy(host, &at, true);
  free(whole);
  return status;
}

static void copy_lse(const dil_tensor *t, char **at, bool unpack) {
  lse_copy(*t, at, unpack);
}

/* Makes rows on the device: the host's, or the random numbers of `place`. */
static dil_status place_rows(resident *r, dil_dtype dtype,
                             const dil_normal_place *place,
                             const dil_tensor *host, dil_tensor *made) {
  dil_status status = take_tensor(r, host, dtype, made);
  if (status) return status;
  if (host->data) return copy_up(r, host, made);
  return r->shared->cuda->normal(r->device, made, place);
}

/* The same of q, k or v (tensor 0, 1, 2). */
static dil_status place_rows_of(resident *r, const resident_shard *p,
                                int32_t tensor, int32_t progression,
                                const dil_tensor *host, dil_tensor *made) {
  dil_normal_place place = shard_normals(p, tensor, progression);
  return place_rows(r, p->dtype, &place, host, made);
}

/* Fills an output with NaN, so that rows that a run leaves out show up. */
static dil_status place_output(resident *r, const dil_tensor *like,
                               dil_tensor *made) {
  dil_status status = take_tensor(r, like, like->dtype, made);
  if (status) return status;
  return r->shared->cuda->fill(r->gpu, made->data, 0xff, bytes_of(made));
}

static dil_status place_input(resident *r, const dil_tensor *host,
                              dil_tensor *made) {
  dil_status status = take_tensor(r, host, host->dtype, made);
  if (status || !bytes_of(made)) return status;
  return r->shared->cuda->upload(r->gpu, made->data, host->data,
                                 bytes_of(made));
}

/* ---- a shard of a call --------------------------------------------------- */

static dil_status place_comb(resident *r, const resident_shard *p,
                             int32_t progression) {
  const ring_rows *from = &p->rows;
  ring_rows *to = &r->rows;
  dil_status status = place_rows_of(r, p, 0, progression, &from->q[progression],
                                    &to->q[progression]);
  if (!status)
    status = place_rows_of(r, p, 1, progression, &from->keys.k[progression],
                           &to->keys.k[progression]);
  if (!status)
    status = place_rows_of(r, p, 2, progression, &from->keys.v[progression],
                           &to->keys.v[progression]);
  if (!status)
    status = place_output(r, &from->o[progression], &to->o[progression]);
  to->lse[progression] = from->lse[progression];
  if (!status && from->lse[progression].data)
    status = place_output(r, &from->lse[progression], &to->lse[progression]);
  return status;
}

dil_status resident_place(resident *r, const dil_call *call,
                          const resident_shard *shard) {
  dil_status status = DIL_OK;
  give_all(r);
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !status; i++)
    status = place_comb(r, shard, i);
  for (int32_t i = 0; i < call->input_count && !status; i++)
    status = place_input(r, &call->inputs[i], &r->inputs[i]);
  r->gradients = r->memory_count;
  return status;
}

/* lse is [B, H, N]: its numbers are copied one by one. */
static dil_status place_lse(resident *r, const dil_tensor *host,
                            dil_tensor *made) {
  char *whole;
  dil_status status = take_tensor(r, host, DIL_F32, made);
  if (!status) status = take_whole(made, &whole);
  if (status) return status;
  char *at = whole;
  lse_copy(*host, &at, false);
  if (bytes_of(made))
    status = r->shared->cuda->upload(r->gpu, made->data, whole, bytes_of(made));
  free(whole);
  return status;
}

dil_status resident_place_gradients(resident *r, const resident_shard *shard,
                                    uint32_t number, const dil_tensor *output,
                                    const dil_tensor *lse) {
  dil_status status = DIL_OK;
  give_behind(r, r->gradients);
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !status; i++) {
    dil_normal_place place = shard_normals(shard, 0, i);
    place.tensor = number;
    status = place_rows(r, shard->dtype, &place, &output[i], &r->output[i]);
    r->lse[i] = lse[i];
    if (!status && lse[i].data) status = place_lse(r, &lse[i], &r->lse[i]);
  }
  return status;
}

dil_status resident_fetch(resident *r, const ring_rows *host) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !status; i++) {
    if (host->o[i].data)
      status = copy_down(r, &host->o[i], &r->rows.o[i], rows_copy);
    if (!status && host->lse[i].data)
      status = copy_down(r, &host->lse[i], &r->rows.lse[i], copy_lse);
  }
  return status;
}

/* Byte offset of a row of o [B, N, H, D]; for lse [B, H, N] the caller passes h
 * as `row` and the row as `h`. */
static int64_t place_of(const dil_tensor *o, int64_t b, int64_t row,
                        int32_t h) {
  return (b * o->stride[0] + row * o->stride[1] + h * o->stride[2]) *
         (int64_t)dil_dtype_size(o->dtype);
}

dil_status resident_fetch_row(resident *r, const ring_rows *host,
                              int32_t progression, int64_t b, int64_t row,
                              int32_t h) {
  const dil_tensor *there = &r->rows.o[progression],
                   *here = &host->o[progression];
  dil_tensor sums = r->rows.lse[progression], out = host->lse[progression];
  dil_status status = r->shared->cuda->download(
      r->gpu, (char *)here->data + place_of(here, b, row, h),
      (char *)there->data + place_of(there, b, row, h),
      here->shape[3] * (int64_t)dil_dtype_size(here->dtype));
  if (status || !out.data) return status;
  char *to = (char *)out.data + place_of(&out, b, h, (int32_t)row);
  char *from = (char *)sums.data + place_of(&sums, b, h, (int32_t)row);
  return r->shared->cuda->download(r->gpu, to, from, sizeof(float));
}
