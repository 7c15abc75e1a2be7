/* shards.c - a call computed in shards, as the ranks of a ring would. In: a
 * call's tensors, a kernel and a ring. Out: the outputs, and what is wrong with
 * them. On a GPU keys come as a ring brings them: a buffer as large as the
 * owner's shard, in which only the rows that travel are filled, the others
 * NaN. */
#include "shards.h"
#include "gpu.h"
#include "host.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

/* The rows of a tensor [B, rows, H, D] that a progression names. */
static dil_tensor view(const dil_tensor *whole, dil_progression progression,
                       int64_t origin) {
  dil_tensor t = *whole;
  t.data = (char *)whole->data + (progression.first - origin) *
                                     whole->stride[1] *
                                     (int64_t)dil_dtype_size(whole->dtype);
  t.stride[1] = whole->stride[1] * progression.step;
  t.shape[1] = progression.count;
  return t;
}

static dil_tensor view_lse(const dil_tensor *whole, dil_progression progression,
                           int64_t origin) {
  dil_tensor t = *whole;
  if (!t.data) return t;
  t.data = (float *)whole->data + (progression.first - origin);
  t.stride[2] = progression.step;
  t.shape[2] = progression.count;
  return t;
}

/* ---- on the processor and on a GPU --------------------------------------- */

/* One progression of queries and the keys that it meets. */
typedef struct shard_work {
  data *d;
  const kernel_made *k;
  const ring_shape *ring;
  int32_t rank;   /* that asks */
  dil_call whole; /* its tensors where the kernel looks for them */
  dil_call call;  /* of the shard */
  dil_shard shard;
  dil_threads *threads;
  pool *scratch;
} shard_work;

float *shards_state_new(int64_t count) {
  size_t size = (size_t)count * sizeof(float);
  float *state = malloc(size);
  memset(state, 0xff, size);
  if (!gpu_wanted()) return state;
  float *there = gpu_memory(state, size);
  free(state);
  return there;
}

void shards_state_free(float *state) {
  if (gpu_wanted())
    gpu_module()->give(gpu_device(), state);
  else
    free(state);
}

static void shard_begin(shard_work *w) {
  if (gpu_wanted())
    host_must(gpu_module()->begin(w->k->cuda, &w->call, &w->shard, NULL));
  else
    host_must(cpu_kernel_begin(w->k->kernel, w->threads, &w->call, &w->shard));
}

static void shard_finish(shard_work *w) {
  if (w->shard.state_stride) return; /* o and lse are as they should be */
  if (!gpu_wanted()) {
    host_must(cpu_kernel_finish(w->k->kernel, w->threads, &w->call, &w->shard));
    return;
  }
  host_must(gpu_module()->finish(w->k->cuda, &w->call, &w->shard, NULL));
  host_must(gpu_module()->wait(gpu_device(), NULL));
}

/* A message: rows of the sender's progression that travel, of one K/V head, of
 * which those of progression `index` are copied. */
typedef struct shard_message {
  const shard_work *w;
  int32_t head, index;
  const dil_tensor *from; /* the whole */
  char *to;               /* [B, progression, Hkv, width] */
} shard_message;

static void copy_rows(void *context, const row_range *rows) {
  const shard_message *m = context;
  const dil_tensor *t = m->from;
  const dil_progression *progression = &m->w->shard.keys;
  int64_t size = (int64_t)dil_dtype_size(t->dtype), width = t->shape[3] * size;
  for (int64_t b = 0; rows->progression == m->index && b < t->shape[0]; b++)
    for (int64_t low = rows->low; low < rows->high; low += rows->period)
      for (int32_t i = 0; i < rows->count; i++) {
        int64_t j = low + rows->offset[i];
        if (j >= rows->high) break;
        int64_t row = (b * progression->count +
                       (j - progression->first) / progression->step) *
                          t->shape[2] +
                      m->head;
        int64_t at =
            b * t->stride[0] + j * t->stride[1] + m->head * t->stride[2];
        memcpy(m->to + row * width, (char *)t->data + at * size, (size_t)width);
      }
}

/* k or v as rank `from` sends it, on the device. */
static dil_tensor send_rows(shard_work *w, const dil_tensor *whole,
                            int32_t from, int32_t index, void **memory) {
  const int64_t shape[] = {whole->shape[0], w->shard.keys.count,
                           whole->shape[2], whole->shape[3]};
  dil_tensor t = dil_tensor_make(NULL, whole->dtype, 4, shape);
  size_t size = (size_t)dil_tensor_count(&t) * dil_dtype_size(t.dtype);
  shard_message m = {.w = w, .index = index, .from = whole, .to = malloc(size)};
  memset(m.to, 0xff, size);
  for (; m.head < whole->shape[2]; m.head++)
    host_must(partition_rows(w->ring, from, w->rank, m.head, EXCHANGE_ROTATED,
                             copy_rows, &m));
  t.data = *memory = gpu_memory(m.to, size);
  free(m.to);
  return t;
}

/* Rows that stand side by side and are enough for it go to the fast kernel,
 * where the plain call does; but the general one takes shards with sinks. */
static void check_variant(const shard_work *w) {
  char plain[512], sharded[512];
  const dil_cuda_module *gpu = gpu_module();
  const dil_progression *q = &w->shard.queries, *k = &w->shard.keys;
  host_must(gpu->variants(w->k->cuda, &w->whole, NULL, plain, sizeof plain));
  host_must(
      gpu->variants(w->k->cuda, &w->call, &w->shard, sharded, sizeof sharded));
  bool fast_one = q->step == 1 && k->step == 1 && k->count && q->count >= 64 &&
                  q->first >= 0 && strstr(plain, "hopper") &&
                  !w->k->plan->table.sinks;
  ck_assert_msg(!fast_one || !strcmp(plain, sharded),
                "a shard takes %s, the whole %s", sharded, plain);
}

/* Puts the shard on the device; with `open` only if that can be. */
static void shard_run(shard_work *w, bool open) {
  const dil_cuda_module *gpu = gpu_module();
  if (open)
    host_must(
        gpu->opens(w->k->cuda, &w->call, &w->shard, &w->shard.state_stride));
  if (open && w->shard.state_stride)
    host_must(gpu->open_shard(w->k->cuda, &w->call, &w->shard, NULL));
  else if (!open)
    host_must(gpu->advance(w->k->cuda, &w->call, &w->shard, NULL));
  host_must(gpu->wait(gpu_device(), NULL));
}

/* Progression `index` of what rank `from` owns; with `open` the rows begin with
 * it, where the device can. */
static void shard_advance(shard_work *w, int32_t from, int32_t index,
                          bool open) {
  if (!gpu_wanted()) {
    w->call.k = view(&w->whole.k, w->shard.keys, 0);
    w->call.v = view(&w->whole.v, w->shard.keys, 0);
    host_must(cpu_kernel_advance(w->k->kernel, w->threads, w->scratch, &w->call,
                                 &w->shard));
    return;
  }
  void *sent[2];
  w->call.k = send_rows(w, &w->d->call.k, from, index, &sent[0]);
  w->call.v = send_rows(w, &w->d->call.v, from, index, &sent[1]);
  check_variant(w);
  shard_run(w, open);
  for (int i = 0; i < 2; i++) gpu_module()->give(gpu_device(), sent[i]);
}

/* ---- rings --------------------------------------------------------------- */

/* The rank's own keys at the places of its queries come first, as in a ring. */
static void open_queries(shard_work *w, int32_t index) {
  positions owned = partition_keys(w->ring, w->rank);
  if (gpu_wanted() && index < owned.count) {
    w->shard.keys = owned.progression[index];
    shard_advance(w, w->rank, index, true);
  }
  w->shard.keys = (dil_progression){0, 1, 0};
  w->call.k.shape[1] = w->call.v.shape[1] = 0;
  if (!w->shard.state_stride) shard_begin(w);
}

/* Progression `index` of queries over every owner's keys. */
static void run_queries_of(shard_work *w, int32_t index,
                           dil_progression asking) {
  const pattern *p = w->d->pattern;
  const ring_shape *ring = w->ring;
  int64_t origin = ring->M - ring->N, batch = w->d->shape.batch;
  int32_t states = gpu_wanted() ? gpu_module()->states(w->k->cuda)
                                : cpu_kernel_states(w->k->kernel);
  int64_t count = batch * asking.count * p->heads * states;
  w->call = w->whole;
  w->call.q = view(&w->whole.q, asking, origin);
  w->call.o = view(&w->whole.o, asking, origin);
  w->call.lse = view_lse(&w->whole.lse, asking, origin);
  w->call.k.shape[1] = w->call.v.shape[1] = 0;
  w->shard = (dil_shard){.queries = asking,
                         .keys = {0, 1, 0},
                         .B = batch,
                         .N = ring->N,
                         .M = ring->M,
                         .o = shards_state_new(count * p->value_dim),
                         .lse = shards_state_new(count)};
  open_queries(w, index);
  for (int32_t i = 0; i < ring->ranks; i++) {
    int32_t from = (w->rank + i) % ring->ranks; /* as they come round */
    positions owned = partition_keys(ring, from);
    for (int32_t c = 0; c < owned.count; c++) {
      w->shard.keys = owned.progression[c];
      if (i == 0 && c == index && w->shard.state_stride) continue;
      shard_advance(w, from, c, false);
    }
  }
  shard_finish(w);
  shards_state_free(w->shard.o);
  shards_state_free(w->shard.lse);
}

static void run_ring(shard_work *w) {
  for (w->rank = 0; w->rank < w->ring->ranks; w->rank++) {
    positions mine = partition_queries(w->ring, w->rank);
    for (int32_t i = 0; i < mine.count; i++)
      run_queries_of(w, i, mine.progression[i]);
  }
}

const char *shards_problem(data *d, const kernel_made *k,
                           const ring_shape *ring, dil_threads *threads,
                           pool *scratch) {
  gpu_copy on;
  data_forget(d);
  shard_work w = {.d = d,
                  .k = k,
                  .ring = ring,
                  .threads = threads,
                  .scratch = scratch,
                  .whole = d->call};
  if (gpu_wanted()) {
    gpu_copy_up(d, &on);
    w.whole = on.call;
  }
  run_ring(&w);
  if (gpu_wanted()) gpu_copy_down(d, &on, true);
  return data_compare(d);
}
