/* stream_state.c - what a streamed run keeps of itself: where it is, the f32
 * state of the queries in work, and a sum of the rows that are finished. In: a
 * run after a pair of chunks. Out: PREFIX.state (checkpoint.h); or the run that
 * has left it, as far as it was. */
#include "stream_work.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include "runtime/ring/checkpoint.h"
#include "runtime/rowset/walk.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The values that two runs must have alike, each a number or a sum. */
enum {
  PLAN, BATCH, QUERIES_ALL, KEYS_ALL, SEED, TRAIN, SCALE, RANDOM, LENGTHS,
  INPUTS, MEMORY, OUTPUT, CUT_BATCH, CUT_QUERIES, CUT_KEYS, FIELDS
};

static const char *const words[FIELDS] = {
    "plan", "number of batch rows", "number of queries", "number of keys",
    "seed of dropout", "word on training", "scale", "seed of random numbers",
    "set of lengths", "declared input", "kind of device", "type of output",
    "chunk of batch rows", "chunk of queries", "chunk of keys"};

typedef struct stream_state_header {
  char magic[8];
  uint64_t is[FIELDS];
  stream_place next;       /* the pair to go on with */
  int64_t states;          /* floats of lse in the state */
  uint64_t sum;            /* of the finished rows */
} stream_state_header;

static const char magic[8] = "dilflow1";

/* ---- what a run is ------------------------------------------------------- */

static uint64_t sum_tensor(uint64_t sum, const dil_tensor *t) {
  return checkpoint_sum(
      sum, t->data, dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype));
}

static uint64_t sum_inputs(const dil_call *c) {
  uint64_t sum = CHECKPOINT_SUM;
  for (int32_t i = 0; i < c->input_count; i++)
    sum = sum_tensor(sum, &c->inputs[i]);
  return sum;
}

static stream_state_header stream_state_describe(const stream_work *w) {
  const dil_stream *s = w->stream;
  const stream_shape *of = &s->shape;
  const dil_call *c = s->call;
  int64_t lengths = c->lengths ? of->B * (int64_t)sizeof(int32_t) : 0;
  stream_state_header h = {.states = w->states, .sum = w->sum};
  memcpy(h.magic, magic, sizeof magic);
  h.is[PLAN] = s->checkpoint.plan_hash;
  h.is[BATCH] = (uint64_t)of->B;
  h.is[QUERIES_ALL] = (uint64_t)of->N;
  h.is[KEYS_ALL] = (uint64_t)of->M;
  h.is[SEED] = c->seed;
  h.is[TRAIN] = c->train;
  memcpy(&h.is[SCALE], &c->scale, sizeof c->scale);
  h.is[RANDOM] = c->random;
  h.is[LENGTHS] = checkpoint_sum(CHECKPOINT_SUM, c->lengths, lengths);
  h.is[INPUTS] = sum_inputs(c);
  h.is[MEMORY] = s->transfer != NULL;
  h.is[OUTPUT] = (uint64_t)c->o.dtype;
  h.is[CUT_BATCH] = (uint64_t)of->chunks.batch;
  h.is[CUT_QUERIES] = (uint64_t)of->chunks.queries;
  h.is[CUT_KEYS] = (uint64_t)of->chunks.keys;
  return h;
}

static dil_status stream_state_name(const char *prefix,
                                    char name[DIL_PATH_MAX]) {
  if (snprintf(name, DIL_PATH_MAX, "%s.state", prefix) < DIL_PATH_MAX)
    return DIL_OK;
  return dil_fail(DIL_USAGE, "--state '%s' is too long", prefix);
}

/* ---- finished rows ------------------------------------------------------- */

/* Sums bytes up; with `sync` they are in their file when it returns. */
static dil_status take_bytes(uint64_t *sum, const char *bytes, int64_t count,
                             bool sync) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)bytes;
  *sum = checkpoint_sum(*sum, bytes, count);
  if (!sync || !count ||
      !msync((void *)(at / page * page), (size_t)count + at % page, MS_SYNC))
    return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot write finished rows: %s",
                  strerror(errno));
}

/* Rows first..first+count-1 of one batch row of o, or one head's of lse. */
static dil_status take_rows(uint64_t *sum, const dil_call *c, int64_t b,
                            int64_t first, int64_t count, bool sync) {
  int64_t row = c->o.stride[1] * (int64_t)dil_dtype_size(c->o.dtype);
  int64_t start = b * c->o.stride[0] * (int64_t)dil_dtype_size(c->o.dtype);
  dil_status status = take_bytes(
      sum, (const char *)c->o.data + start + first * row, count * row, sync);
  for (int64_t h = 0; h < c->o.shape[2] && c->lse.data && !status; h++)
    status = take_bytes(sum,
                        (const char *)((const float *)c->lse.data +
                                       b * c->lse.stride[0] +
                                       h * c->lse.stride[1] + first),
                        count * (int64_t)sizeof(float), sync);
  return status;
}

/* Adds chunks of queries up to number `end` to the sum. */
static dil_status take_chunks(stream_work *w, int64_t end, bool sync) {
  const stream_shape *s = &w->stream->shape;
  stream_place unit = {.unit = 1};
  int64_t each = stream_queries_before(s, unit);
  dil_status status = DIL_OK;
  for (; w->summed < end && !status; w->summed++) {
    int64_t b = w->summed / each * s->chunks.batch;
    int64_t stop = minimum(b + s->chunks.batch, s->B);
    int64_t first = w->summed % each * s->chunks.queries;
    int64_t count = minimum(s->chunks.queries, s->N - first);
    for (; b < stop && !status; b++)
      status = take_rows(&w->sum, w->stream->call, b, first, count, sync);
  }
  return status;
}

/* ---- keeping ------------------------------------------------------------- */

/* The state as the host sees it: in place, or a copy. */
typedef struct mirror {
  float *o, *lse;
  int64_t o_bytes, lse_bytes;
  bool copied;
} mirror;

static dil_status stream_mirror_new(const stream_work *w, mirror *m) {
  *m = (mirror){.o = w->o_state,
                .lse = w->lse_state,
                .lse_bytes = w->states * (int64_t)sizeof(float),
                .copied = !w->device->calls->on_host};
  m->o_bytes = m->lse_bytes * w->stream->shape.table->value_dim;
  if (!m->copied) return DIL_OK;
  m->o = malloc((size_t)m->o_bytes + 1);
  m->lse = malloc((size_t)m->lse_bytes + 1);
  return m->o && m->lse
             ? DIL_OK
             : dil_fail(DIL_MEMORY, "no memory to keep the state of a stream");
}

static void stream_mirror_free(mirror *m) {
  if (!m->copied) return;
  free(m->o);
  free(m->lse);
}

static dil_status write_state(stream_work *w, const stream_state_header *h) {
  const ring_device_calls *calls = w->device->calls;
  char name[DIL_PATH_MAX];
  mirror m;
  dil_status status = stream_mirror_new(w, &m);
  if (!status) status = stream_state_name(w->stream->checkpoint.prefix, name);
  if (!status && m.copied)
    status = calls->read(w->device, m.o, w->o_state, m.o_bytes);
  if (!status && m.copied)
    status = calls->read(w->device, m.lse, w->lse_state, m.lse_bytes);
  const checkpoint_block blocks[] = {{h, sizeof *h},
                                     {m.o, m.o_bytes},
                                     {m.lse, m.lse_bytes}};
  if (!status) status = checkpoint_write(name, blocks, 3);
  stream_mirror_free(&m);
  return status;
}

/* All that is closed is at its place, too. */
static dil_status stream_state_write(stream_work *w, stream_place next) {
  for (int32_t slot = 0; slot < 2 && w->buffers_output; slot++)
    if (!work_claim(w, OUTPUTS, slot)) return DIL_OK;
  dil_status status = take_chunks(w, w->closed, true);
  if (status) return status;
  stream_state_header h = stream_state_describe(w);
  h.next = next;
  return write_state(w, &h);
}

dil_status work_checkpoint(stream_work *w, stream_place done) {
  const stream_checkpoint *k = &w->stream->checkpoint;
  if (!k->prefix || ++w->pairs < k->every) return DIL_OK;
  w->pairs = 0;
  done.key++;
  int64_t begin = trace_begin();
  dil_status status = stream_state_write(w, done);
  trace_end(begin, "stream", "keep the state", NULL, done.key);
  return status;
}

/* ---- resuming ------------------------------------------------------------ */

static dil_status stream_state_read_header(checkpoint_file *file,
                                           const char *name,
                                           stream_state_header *h) {
  dil_status status = checkpoint_read(file, h, sizeof *h);
  if (!status && !memcmp(h->magic, magic, sizeof magic)) return DIL_OK;
  return dil_fail(DIL_INPUT, "'%s' is not the state of a streamed run", name);
}

static dil_status stream_state_compare(const stream_work *w,
                                       const stream_state_header *file,
                                       const char *name) {
  stream_state_header mine = stream_state_describe(w);
  for (int32_t i = 0; i < FIELDS; i++)
    if (mine.is[i] != file->is[i])
      return dil_fail(DIL_INPUT, "the state '%s' has another %s", name,
                      words[i]);
  return DIL_OK;
}

static dil_status read_state(stream_work *w, checkpoint_file *file) {
  const ring_device_calls *calls = w->device->calls;
  mirror m;
  dil_status status = stream_mirror_new(w, &m);
  if (!status) status = checkpoint_read(file, m.o, m.o_bytes);
  if (!status) status = checkpoint_read(file, m.lse, m.lse_bytes);
  if (!status && m.copied)
    status = calls->write(w->device, w->o_state, m.o, m.o_bytes);
  if (!status && m.copied)
    status = calls->write(w->device, w->lse_state, m.lse, m.lse_bytes);
  stream_mirror_free(&m);
  return status;
}

static dil_status stream_state_resume(stream_work *w, checkpoint_file *file,
                                      const char *name) {
  dil_stream *s = w->stream;
  stream_state_header h;
  dil_status status = stream_state_read_header(file, name, &h);
  if (!status) status = stream_state_compare(w, &h, name);
  if (!status) status = read_state(w, file);
  if (status) return status;
  w->from = h.next;
  w->closed = stream_queries_before(&s->shape, h.next);
  status = take_chunks(w, w->closed, false);
  if (!status && w->sum != h.sum)
    return dil_fail(DIL_INPUT, "finished rows beside the state '%s' are not "
                    "those that it was left with", name);
  w->resumed = true;
  s->facts.resumed = stream_pairs_before(&s->shape, h.next);
  if (s->progress) s->progress(s->user, s->facts.resumed);
  return status;
}

dil_status work_resume(stream_work *w) {
  char name[DIL_PATH_MAX];
  checkpoint_file *file = NULL;
  dil_status status = stream_state_name(w->stream->checkpoint.prefix, name);
  if (!status) status = checkpoint_open(name, &file);
  if (!status) status = stream_state_resume(w, file, name);
  checkpoint_close(file);
  return status;
}

dil_status stream_checkpoint_chunks(const char *prefix, stream_chunks *chunks) {
  char name[DIL_PATH_MAX];
  checkpoint_file *file = NULL;
  stream_state_header h;
  dil_status status = stream_state_name(prefix, name);
  if (!status) status = checkpoint_open(name, &file);
  if (!status) status = stream_state_read_header(file, name, &h);
  checkpoint_close(file);
  if (status) return status;
  *chunks = (stream_chunks){(int64_t)h.is[CUT_BATCH],
                            (int64_t)h.is[CUT_QUERIES],
                            (int64_t)h.is[CUT_KEYS]};
  return DIL_OK;
}

bool stream_has_checkpoint(const char *prefix) {
  char name[DIL_PATH_MAX];
  return !stream_state_name(prefix, name) && !access(name, F_OK);
}

void stream_checkpoint_remove(const char *prefix) {
  char name[DIL_PATH_MAX];
  if (!stream_state_name(prefix, name)) unlink(name);
}
