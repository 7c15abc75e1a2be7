/* ring_state.c - the running state of one rank's queries, in memory and as a
 * checkpoint file (checkpoint.h): a header that identifies plan, shape, rank and
 * the data that the run reads, then o and lse in f32. Of a run backward the sums of
 * gradients, in a file of their own. */
#include "ring_state.h"
#include "checkpoint.h"
#include "input_sums.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dil_status take_floats(ring_device *d, int64_t count, float **floats) {
  void *memory = NULL;
  dil_status status =
      d->calls->take(d, count * (int64_t)sizeof(float), RING_ANY, &memory);
  *floats = memory;
  return status;
}

dil_status state_new(ring_state *s, const dil_ring *r) {
  const dil_table *t = r->shape.table;
  positions mine = partition_queries(&r->shape, r->link->rank);
  ring_device *d = r->device;
  int64_t states = s->by_pass ? t->pass_count : d->calls->states(d);
  int64_t B = r->rows->q[0].shape[0];
  dil_status status = DIL_OK;
  s->step = -1;
  for (int32_t i = 0; i < mine.count && !status; i++) {
    int64_t state_stride = maximum(s->state_stride[i], 1);
    int64_t kept =
        (mine.progression[i].count + state_stride - 1) / state_stride;
    s->rows[i] = states * B * kept * t->heads;
    status = take_floats(d, s->rows[i], &s->lse[i]);
    if (!status)
      status = take_floats(d, s->rows[i] * t->value_dim, &s->o[i]);
  }
  if (status) state_free(s, d);
  return status;
}

void state_free(ring_state *s, ring_device *d) {
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    if (s->o[i]) d->calls->give(d, s->o[i]);
    if (s->lse[i]) d->calls->give(d, s->lse[i]);
    s->o[i] = s->lse[i] = NULL;
  }
}

/* ---- as the host sees it ------------------------------------------------- */

/* A copy of the state in host memory; if the device is the host, the state
 * itself. */
static dil_status mirror_new(const ring_state *s, const dil_ring *r,
                             ring_state *host) {
  size_t width = (size_t)r->shape.table->value_dim * sizeof(float);
  bool good = true;
  *host = *s;
  if (r->device->calls->on_host) return DIL_OK;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    host->o[i] = calloc((size_t)s->rows[i] + 1, width);
    host->lse[i] = calloc((size_t)s->rows[i] + 1, sizeof(float));
    good = good && host->o[i] && host->lse[i];
  }
  return good ? DIL_OK
              : dil_fail(DIL_MEMORY, "no memory to keep the state of a rank");
}

static void mirror_free(ring_state *host, const dil_ring *r) {
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !r->device->calls->on_host;
       i++) {
    free(host->o[i]);
    free(host->lse[i]);
  }
}

/* Copies all floats of the state from the mirror to the device (up) or back. */
static dil_status mirror_move(const ring_state *s, const dil_ring *r,
                              const ring_state *host, bool up) {
  const ring_device_calls *calls = r->device->calls;
  int64_t width = r->shape.table->value_dim;
  dil_status status = DIL_OK;
  if (calls->on_host) return DIL_OK;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    float *const there[] = {s->o[i], s->lse[i]};
    float *const here[] = {host->o[i], host->lse[i]};
    const int64_t floats[] = {s->rows[i] * width, s->rows[i]};
    for (int32_t n = 0; n < 2 && !status; n++) {
      int64_t bytes = floats[n] * (int64_t)sizeof(float);
      if (!bytes) continue;
      status = up ? calls->write(r->device, there[n], here[n], bytes)
                  : calls->read(r->device, here[n], there[n], bytes);
    }
  }
  return status;
}

/* ---- the file ------------------------------------------------------------ */

typedef struct ring_state_header {
  char magic[8];
  uint64_t plan_hash;
  int64_t B, N, M, batch, head, seed, train;
  double scale;
  int64_t rows[PROGRESSIONS_MOST];
  int32_t rank, ranks;
  int16_t layout;
  int16_t second;          /* what the blocks are: 0, o and lse, or SUMS, dQ, dK
                              and dV of a run backward. Older files have 0 here:
                              their layout had 32 bits. */
  int32_t step;
} ring_state_header;

static const char magic[8] = "dilring3"; /* 2: a state had no digest */

enum { SUMS = 1 };
enum { BLOCKS = 1 + 2 * PROGRESSIONS_MOST };

static ring_state_header describe(const ring_state *s, const dil_ring *r) {
  ring_state_header h = {.plan_hash = r->plan_hash,
                         .B = r->B,
                         .N = r->shape.N,
                         .M = r->shape.M,
                         .batch = r->batch,
                         .head = r->head,
                         .seed = (int64_t)r->call->seed,
                         .train = r->call->train,
                         .scale = r->call->scale,
                         .rank = r->link->rank,
                         .ranks = r->link->ranks,
                         .layout = (int16_t)r->shape.layout,
                         .step = s->step};
  memcpy(h.magic, magic, sizeof magic);
  memcpy(h.rows, s->rows, sizeof h.rows);
  return h;
}

/* The first block of a file. */
typedef struct kept_header {
  ring_state_header state;
  ring_digest digest;
} kept_header;

/* The file is of this rank, plan and shape; is it also of what the run reads? */
static dil_status compare_digests(const ring_digest *file,
                                  const ring_digest *mine, const char *name) {
  if (file->gradients != mine->gradients)
    return dil_fail(DIL_INPUT, "'%s' has another set of gradients: resume with "
                    "those that the run began with", name);
  for (int32_t i = 0; i < DIGEST_COUNT; i++)
    if (file->sum[i] != mine->sum[i])
      return dil_fail(DIL_INPUT, "'%s' is of a run with another %s: resume with "
                      "the data that the run began with", name,
                      ring_digest_words[i]);
  return DIL_OK;
}

/* Fills in the blocks of o and lse; block 0 is the header. */
static void list_floats(const ring_state *s, const dil_ring *r,
                        checkpoint_block blocks[BLOCKS]) {
  int64_t width = r->shape.table->value_dim, size = sizeof(float);
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    blocks[1 + 2 * i] = (checkpoint_block){s->o[i], s->rows[i] * width * size};
    blocks[2 + 2 * i] = (checkpoint_block){s->lse[i], s->rows[i] * size};
  }
}

static dil_status file_name(const dil_ring *r, const char *end,
                            char name[DIL_PATH_MAX]) {
  int length = snprintf(name, DIL_PATH_MAX, "%s.%d%s", r->checkpoint.prefix,
                        r->checkpoint.name, end);
  return length < DIL_PATH_MAX
             ? DIL_OK
             : dil_fail(DIL_USAGE, "--state '%s' is too long",
                        r->checkpoint.prefix);
}

static dil_status write_file(const ring_state *s, const dil_ring *r,
                             const ring_digest *digest) {
  char name[DIL_PATH_MAX];
  kept_header h = {describe(s, r), *digest};
  checkpoint_block blocks[BLOCKS] = {{&h, sizeof h}};
  list_floats(s, r, blocks);
  dil_status status = file_name(r, "", name);
  return status ? status : checkpoint_write(name, blocks, BLOCKS);
}

dil_status state_write(const ring_state *s, const dil_ring *r,
                       const ring_digest *digest) {
  ring_state host;
  dil_status status = mirror_new(s, r, &host);
  if (!status) status = mirror_move(s, r, &host, false);
  if (!status) status = write_file(&host, r, digest);
  mirror_free(&host, r);
  return status;
}

/* Returns whether the header is that of this rank, plan and shape, which are in
 * `mine`; its step is free. */
static bool is_ours(const ring_state_header *file, ring_state_header mine,
                    const dil_ring *r) {
  mine.step = file->step;
  return !memcmp(&mine, file, sizeof mine) && file->step >= 0 &&
         file->step < r->link->ranks;
}

static dil_status read_blocks(checkpoint_file *file, ring_state *s,
                              const dil_ring *r, const ring_digest *digest,
                              const char *name) {
  checkpoint_block blocks[BLOCKS];
  kept_header h;
  dil_status status = checkpoint_read(file, &h, sizeof h);
  if (!status && !memcmp(h.state.magic, magic, sizeof magic) && h.state.second)
    return dil_fail(DIL_UNSUPPORTED, "'%s' has a second state, of kind %d, and "
                    "no first", name, h.state.second);
  if (status || !is_ours(&h.state, describe(s, r), r))
    return dil_fail(DIL_INPUT, "'%s' is not the state of this rank, plan and "
                    "shape", name);
  status = compare_digests(&h.digest, digest, name);
  list_floats(s, r, blocks);
  for (int32_t i = 1; i < BLOCKS && !status; i++)
    status = checkpoint_read(file, (void *)(uintptr_t)blocks[i].bytes,
                             blocks[i].count);
  if (!status) s->step = h.state.step;
  return status;
}

static dil_status read_file(ring_state *s, const dil_ring *r,
                            const ring_digest *digest) {
  char name[DIL_PATH_MAX];
  checkpoint_file *file = NULL;
  dil_status status = file_name(r, "", name);
  if (!status) status = checkpoint_open(name, &file);
  if (!status) status = read_blocks(file, s, r, digest, name);
  checkpoint_close(file);
  return status;
}

dil_status state_read(ring_state *s, const dil_ring *r,
                      const ring_digest *digest) {
  ring_state host;
  dil_status status = mirror_new(s, r, &host);
  if (!status) status = read_file(&host, r, digest);
  if (!status) status = mirror_move(s, r, &host, true);
  if (!status) s->step = host.step;
  mirror_free(&host, r);
  return status;
}

/* ---- of a run backward --------------------------------------------------- */

static const char suffix[] = ".back";
/* The header, the branches whose queries come, and the sums. */
enum { SUM_BLOCKS = 3 + 3 * PROGRESSIONS_MOST };

static kept_header describe_sums(const dil_ring *r, const ring_digest *digest,
                                 int32_t step) {
  ring_state s = {.step = step};
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++)
    s.rows[i] = dil_tensor_count(&r->gradients->dq[i]);
  kept_header h = {describe(&s, r), *digest};
  h.state.second = SUMS;
  return h;
}

static checkpoint_block sums_block(const dil_tensor *t) {
  return (checkpoint_block){t->data,
                            dil_tensor_count(t) * (int64_t)sizeof(float)};
}

static void list_sums(const dil_ring *r, const ring_gradients *g,
                      const uint64_t *queries,
                      checkpoint_block blocks[SUM_BLOCKS]) {
  checkpoint_block *next = blocks + 1; /* behind the header */
  *next++ = (checkpoint_block){queries, sizeof *queries};
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    *next++ = sums_block(&g->dq[i]);
    *next++ = sums_block(&g->keys.k[i]);
    *next++ = sums_block(&g->keys.v[i]);
  }
  int64_t inputs = input_sums_elements(r->call, g->wanted);
  *next = (checkpoint_block){g->inputs, inputs * (int64_t)sizeof(double)};
}

/* A copy of the sums in `memory` of the host; if the device is the host, the sums
 * themselves. */
static dil_status sums_mirror_new(const dil_ring *r, ring_gradients *host,
                                  void **memory) {
  const int64_t size = sizeof(float);
  int64_t inputs = input_sums_elements(r->call, r->gradients->wanted);
  int64_t floats = 0;
  *host = *r->gradients;
  *memory = NULL;
  if (r->device->calls->on_host) return DIL_OK;
  dil_tensor *sums[3 * PROGRESSIONS_MOST];
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    sums[3 * i] = &host->dq[i];
    sums[3 * i + 1] = &host->keys.k[i];
    sums[3 * i + 2] = &host->keys.v[i];
  }
  for (int32_t i = 0; i < 3 * PROGRESSIONS_MOST; i++)
    floats += dil_tensor_count(sums[i]);
  *memory = malloc((size_t)(inputs * (int64_t)sizeof(double) + floats * size) + 1);
  if (!*memory)
    return dil_fail(DIL_MEMORY, "no memory to keep the gradients of a rank");
  float *at = (float *)((double *)*memory + inputs);
  for (int32_t i = 0; i < 3 * PROGRESSIONS_MOST; i++) {
    sums[i]->data = at;
    at += dil_tensor_count(sums[i]);
  }
  if (host->inputs) host->inputs = *memory;
  return DIL_OK;
}

/* Copies all sums from the mirror to the device (up) or back. */
static dil_status sums_mirror_move(const dil_ring *r, const ring_gradients *host,
                                   bool up) {
  const ring_device_calls *calls = r->device->calls;
  checkpoint_block here[SUM_BLOCKS], there[SUM_BLOCKS];
  dil_status status = DIL_OK;
  if (calls->on_host) return DIL_OK;
  list_sums(r, host, &r->queries, here);
  list_sums(r, r->gradients, &r->queries, there);
  for (int32_t i = 2; i < SUM_BLOCKS && !status; i++) {
    const void *from = up ? here[i].bytes : there[i].bytes;
    void *to = (void *)(uintptr_t)(up ? there[i].bytes : here[i].bytes);
    status = (up ? calls->write : calls->read)(r->device, to, from,
                                               here[i].count);
  }
  return status;
}

static dil_status write_sums(const dil_ring *r, const ring_gradients *host,
                             const ring_digest *digest, int32_t step) {
  char name[DIL_PATH_MAX];
  kept_header h = describe_sums(r, digest, step);
  checkpoint_block blocks[SUM_BLOCKS] = {{&h, sizeof h}};
  list_sums(r, host, &r->queries, blocks);
  dil_status status = file_name(r, suffix, name);
  return status ? status : checkpoint_write(name, blocks, SUM_BLOCKS);
}

dil_status state_write_gradients(const dil_ring *r, const ring_digest *digest,
                                 int32_t step) {
  ring_gradients host;
  void *memory;
  dil_status status = sums_mirror_new(r, &host, &memory);
  if (!status) status = sums_mirror_move(r, &host, false);
  if (!status) status = write_sums(r, &host, digest, step);
  free(memory);
  return status;
}

static dil_status read_sums(checkpoint_file *file, const dil_ring *r,
                            const ring_gradients *host,
                            const ring_digest *digest, const char *name,
                            int32_t *step) {
  checkpoint_block blocks[SUM_BLOCKS];
  kept_header h;
  uint64_t queries = 0;
  dil_status status = checkpoint_read(file, &h, sizeof h);
  if (status || !is_ours(&h.state, describe_sums(r, digest, 0).state, r))
    return dil_fail(DIL_INPUT, "'%s' has no gradients of this rank, plan and "
                    "shape", name);
  status = compare_digests(&h.digest, digest, name);
  list_sums(r, host, &queries, blocks);
  for (int32_t i = 1; i < SUM_BLOCKS && !status; i++)
    status = checkpoint_read(file, (void *)(uintptr_t)blocks[i].bytes,
                             blocks[i].count);
  if (!status && queries != r->queries)
    return dil_fail(DIL_INPUT, "the gradients in '%s' are of a run in which the "
                    "queries of other branches came", name);
  if (!status) *step = h.state.step;
  return status;
}

dil_status state_read_gradients(const dil_ring *r, const ring_digest *digest,
                                int32_t *step) {
  char name[DIL_PATH_MAX];
  checkpoint_file *file = NULL;
  ring_gradients host;
  void *memory;
  dil_status status = file_name(r, suffix, name);
  *step = -1;
  if (status || (access(name, F_OK) && errno == ENOENT)) return status;
  status = sums_mirror_new(r, &host, &memory);
  if (!status) status = checkpoint_open(name, &file);
  if (!status) status = read_sums(file, r, &host, digest, name, step);
  if (!status) status = sums_mirror_move(r, &host, true);
  checkpoint_close(file);
  free(memory);
  return status;
}

dil_status state_forget_gradients(const dil_ring *r) {
  char name[DIL_PATH_MAX];
  dil_status status = file_name(r, suffix, name);
  if (status || !unlink(name) || errno == ENOENT) return status;
  return dil_fail(DIL_ENVIRONMENT, "cannot remove the state '%s': %s", name,
                  strerror(errno));
}
