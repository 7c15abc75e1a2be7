/* crew_gpu.c - a rank on a GPU: what of a call lies there; see crew_gpu.h. In:
 * a rank's views of a call on the host. Out: the same as contiguous tensors of
 * the device, and its results back. */
#include "crew_gpu.h"
#include <stdlib.h>
#include <string.h>

/* ---- the device ---------------------------------------------------------- */

dil_status resident_open(const crew_gpu *shared, const dil_table *table,
                         int32_t rank, resident *r) {
  const dil_cuda_module *cuda = shared->cuda;
  *r = (resident){.shared = shared};
  dil_status status =
      cuda->open(shared->first + rank % shared->devices, &r->gpu);
  if (!status)
    status = cuda->kernel(r->gpu, table, shared->codes, shared->code_count,
                          shared->dimension, shared->context, &r->kernel);
  if (!status)
    status = cuda->ring(r->gpu, r->kernel, &shared->rows, &r->device);
  return status;
}

static void give_all(resident *r) {
  while (r->memory_count > 0)
    r->shared->cuda->give(r->gpu, r->memory[--r->memory_count]);
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
                              dil_tensor *made) {
  void *memory = NULL;
  *made = dil_tensor_make(NULL, like->dtype, like->rank, like->shape);
  dil_status status = r->shared->cuda->take(r->gpu, bytes_of(made), &memory);
  if (status) return status;
  r->memory[r->memory_count++] = memory;
  r->bytes += bytes_of(made);
  made->data = memory;
  return DIL_OK;
}

/* Through memory of the host, which is in one piece. */
static dil_status copy_tensor(resident *r, const dil_tensor *host,
                              const dil_tensor *there, bool up,
                              void (*copy)(const dil_tensor *, char **, bool)) {
  const dil_cuda_module *cuda = r->shared->cuda;
  int64_t bytes = bytes_of(there);
  char *whole = malloc((size_t)bytes + 1), *at = whole;
  if (!whole)
    return dil_fail(DIL_MEMORY, "no memory to copy %lld bytes of a rank",
                    (long long)bytes);
  dil_status status = DIL_OK;
  if (up) copy(host, &at, false);
  if (bytes)
    status = up ? cuda->upload(r->gpu, there->data, whole, bytes)
                : cuda->download(r->gpu, whole, there->data, bytes);
  if (!up && !status) copy(host, &at, true);
  free(whole);
  return status;
}

static void copy_lse(const dil_tensor *t, char **at, bool unpack) {
  lse_copy(*t, at, unpack);
}

/* q, k or v: the host's rows, or random ones. */
static dil_status place_rows_of(resident *r, const dil_tensor *host,
                                const dil_normal_place *place,
                                dil_tensor *made) {
  dil_status status = take_tensor(r, host, made);
  if (status) return status;
  if (host->data) return copy_tensor(r, host, made, true, rows_copy);
  return r->shared->cuda->normal(r->device, made, place);
}

/* What a run leaves out is seen. */
static dil_status place_output(resident *r, const dil_tensor *like,
                               dil_tensor *made) {
  dil_status status = take_tensor(r, like, made);
  if (status) return status;
  return r->shared->cuda->fill(r->gpu, made->data, 0xff, bytes_of(made));
}

static dil_status place_input(resident *r, const dil_tensor *host,
                              dil_tensor *made) {
  dil_status status = take_tensor(r, host, made);
  if (status || !bytes_of(made)) return status;
  return r->shared->cuda->upload(r->gpu, made->data, host->data,
                                 bytes_of(made));
}

/* ---- a part of a call ---------------------------------------------------- */

static dil_comb comb_of(const shard *s, int32_t index) {
  return index < s->count ? s->comb[index] : (dil_comb){0, 1, 0};
}

static dil_status place_keys_of(resident *r, const resident_part *p,
                                int32_t comb) {
  dil_normal_place place = {.seed = p->seed, .tensor = 1,
                            .rows = comb_of(&p->keys, comb),
                            .whole_rows = p->M, .batch = p->batch,
                            .head = p->kv_head, .whole_heads = p->kv_heads};
  dil_status status = place_rows_of(r, &p->rows.keys.k[comb], &place,
                                    &r->rows.keys.k[comb]);
  place.tensor = 2;
  if (!status)
    status = place_rows_of(r, &p->rows.keys.v[comb], &place,
                           &r->rows.keys.v[comb]);
  return status;
}

static dil_status place_queries_of(resident *r, const resident_part *p,
                                   int32_t comb) {
  dil_normal_place place = {.seed = p->seed, .tensor = 0,
                            .rows = comb_of(&p->queries, comb),
                            .whole_rows = p->N, .batch = p->batch,
                            .head = p->head, .whole_heads = p->heads};
  place.rows.first -= p->M - p->N;
  dil_status status =
      place_rows_of(r, &p->rows.q[comb], &place, &r->rows.q[comb]);
  if (!status) status = place_output(r, &p->rows.o[comb], &r->rows.o[comb]);
  r->rows.lse[comb] = p->rows.lse[comb];
  if (!status && p->rows.lse[comb].data)
    status = place_output(r, &p->rows.lse[comb], &r->rows.lse[comb]);
  return status;
}

dil_status resident_place(resident *r, const dil_call *call,
                          const resident_part *part) {
  dil_status status = DIL_OK;
  give_all(r);
  for (int32_t i = 0; i < SHARD_COMBS && !status; i++) {
    status = place_queries_of(r, part, i);
    if (!status) status = place_keys_of(r, part, i);
  }
  for (int32_t i = 0; i < call->input_count && !status; i++)
    status = place_input(r, &call->inputs[i], &r->inputs[i]);
  return status;
}

dil_status resident_fetch(resident *r, const ring_rows *host) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < SHARD_COMBS && !status; i++) {
    if (host->o[i].data)
      status = copy_tensor(r, &host->o[i], &r->rows.o[i], false, rows_copy);
    if (!status && host->lse[i].data)
      status = copy_tensor(r, &host->lse[i], &r->rows.lse[i], false, copy_lse);
  }
  return status;
}

/* Where a row of o stands, and its number of lse [B, H, N], in bytes. */
static int64_t place_of(const dil_tensor *o, int64_t b, int64_t row,
                        int32_t h) {
  return (b * o->stride[0] + row * o->stride[1] + h * o->stride[2]) *
         (int64_t)dil_dtype_size(o->dtype);
}

dil_status resident_fetch_row(resident *r, const ring_rows *host, int32_t comb,
                              int64_t b, int64_t row, int32_t h) {
  const dil_tensor *there = &r->rows.o[comb], *here = &host->o[comb];
  dil_tensor sums = r->rows.lse[comb], out = host->lse[comb];
  dil_status status = r->shared->cuda->download(
      r->gpu, (char *)here->data + place_of(here, b, row, h),
      (char *)there->data + place_of(there, b, row, h),
      here->shape[3] * (int64_t)dil_dtype_size(here->dtype));
  if (status || !out.data) return status;
  return r->shared->cuda->download(r->gpu,
                                   (char *)out.data + place_of(&out, b, h, (int32_t)row),
                                   (char *)sums.data + place_of(&sums, b, h, (int32_t)row),
                                   sizeof(float));
}
