/* session_stream.c - a session whose arrays stream through memory in chunks.
 * In: a compilation, a call of mapped files or memory, a bound in bytes. Out:
 * runs, and the bytes and waits of their copies. */
#include "session_stream.h"
#include "runtime/base/status.h"
#include "runtime/stream/stream_bound.h"
#include <string.h>

static dil_status check_stream_options(const compilation *c) {
  if (c->topology)
    return dil_fail(DIL_USAGE, "--stream is for one device, topology '%s' has "
                    "%lld", c->topology->name, (long long)c->topology->devices);
  if (c->pattern->grid.axes)
    return dil_fail(DIL_USAGE, "--stream: pattern '%s' has a grid, which runs "
                    "as a whole", c->pattern->name);
  return DIL_OK;
}

/* A resumed run keeps the chunk sizes of its checkpoint, on which the bits of
 * results depend. */
static dil_status take_cuts(const options *o, stream_shape *s) {
  stream_chunks kept;
  dil_status status = stream_checkpoint_chunks(o->state, &kept);
  if (status) return status;
  if (o->stream && memcmp(&kept, &s->chunks, sizeof kept))
    return dil_fail(DIL_USAGE, "the state of '%s' is of chunks of %lld queries "
                    "and %lld keys, --stream=%lld makes others: say --stream "
                    "alone", o->state, (long long)kept.queries,
                    (long long)kept.keys, (long long)o->stream);
  s->chunks = kept;
  return DIL_OK;
}

dil_status session_stream_plan(const call_setup *b, const dil_table *table,
                               int32_t threads, int64_t memory,
                               stream_shape *s) {
  int64_t bound = b->options->stream;
  dil_status status = bound ? DIL_OK : stream_bound(memory, &bound);
  *s = (stream_shape){.table = table,
                      .B = b->size[CALL_B],
                      .N = b->size[CALL_N],
                      .M = b->size[CALL_M],
                      .lengths = b->call.lengths};
  if (!status) status = stream_plan(s, threads, bound);
  return status || !b->options->resume ? status : take_cuts(b->options, s);
}

static dil_status make_cpu(session_stream *t, compilation *c,
                           const call_setup *b) {
  dil_call first = b->call; /* sizes of a chunk, to prepare code */
  int32_t threads = dil_threads_count(b->threads);
  code_request request = driver_code_request(c, b->context);
  dil_status status = driver_code(c, &request, &t->code);
  if (!status)
    status = cpu_kernel_new(t->code.source.table, t->code.source.make,
                            t->code.source.context, &t->kernel);
  if (!status)
    status = session_stream_plan(b, t->code.source.table, threads, 0,
                                 &t->stream.shape);
  if (status) return status;
  if (first.q.shape[1] > t->stream.shape.chunks.queries)
    first.q.shape[1] = t->stream.shape.chunks.queries;
  status = cpu_kernel_prepare(t->kernel, &first);
  if (status) return status;
  return ring_cpu_new(t->kernel, threads, &t->stream.device);
}

dil_status session_stream_open(session_stream *t, compilation *c,
                               const call_setup *b) {
  dil_status status = check_stream_options(c);
  t->on_gpu = b->options->device.word == DEVICE_CUDA;
  t->stream.call = &b->call;
  if (!status) status = (t->on_gpu ? session_stream_gpu : make_cpu)(t, c, b);
  if (status) return status;
  const options *o = b->options;
  t->stream.checkpoint = (stream_checkpoint){
      .prefix = o->state,
      .every = o->seen[OPTION_EVERY] ? (int32_t)o->every : 1,
      .resume = o->resume,
      .plan_hash = t->code.source.plan_hash};
  /* One copying thread is enough where the processor computes. */
  t->threads = dil_threads_new(t->on_gpu ? dil_threads_count(b->threads) : 1);
  t->stream.threads = t->threads;
  return t->threads ? DIL_OK : dil_fail_text(DIL_MEMORY, dil_last_error());
}

void session_stream_free(session_stream *t) {
  if (t->on_gpu)
    session_stream_gpu_free(t);
  else ring_device_free(t->stream.device);
  cpu_kernel_free(t->kernel);
  if (t->threads) dil_threads_free(t->threads);
  kernel_code_free(&t->code);
}

static void count_stream_pairs(void *user, int64_t pairs) {
  progress_add(user, pairs);
}

dil_status session_stream_run(session_stream *t, double *seconds) {
  double start = message_clock();
  t->stream.progress = count_stream_pairs;
  t->stream.user = &t->bar;
  progress_start(&t->bar, "streaming", stream_pairs(&t->stream.shape), 1);
  dil_status status = stream_run(&t->stream);
  progress_end(&t->bar);
  *seconds = message_clock() - start;
  return status;
}

void session_stream_tell(const session_stream *t, report *r) {
  r->streamed = true;
  r->chunks = t->stream.shape.chunks;
  r->stream = t->stream.facts;
}
