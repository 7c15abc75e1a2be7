/* stream_case.c - see stream_case.h. */
#include "stream_case.h"
#include <check.h>
#include <stdlib.h>

stream_case *stream_case_open(const char *text, call_shape of, unsigned force) {
  stream_case *c = calloc(1, sizeof *c);
  ck_assert_ptr_nonnull(c);
  c->s = tested_pattern_new("stream_case", text, NULL, 0);
  ck_assert_msg(c->s->pattern != NULL, "%s", c->s->problem);
  c->k = kernel_make(c->s, (recipe){.force = force});
  if (c->k->refused) return c;
  of.seed = 9;
  of.train = true;
  of.dropout_seed = 3;
  if (!of.batch) of.batch = 2;
  c->d = data_new(c->s, of);
  c->threads = dil_threads_new(2);
  ck_assert(!ring_cpu_new(c->k->kernel, 2, &c->device));
  return c;
}

void stream_case_close(stream_case *c) {
  ring_device_free(c->device);
  if (c->threads) dil_threads_free(c->threads);
  data_free(c->d);
  kernel_unmake(c->k);
  tested_pattern_free(c->s);
  free(c);
}

static void count_pairs(void *user, int64_t pairs) {
  atomic_fetch_add(&((stream_case *)user)->pairs, pairs);
}

dil_stream stream_case_stream(stream_case *c, stream_chunks cut) {
  const call_shape *of = &c->d->shape;
  atomic_store(&c->pairs, 0);
  return (dil_stream){.shape = {&c->k->plan->table, of->batch, of->queries,
                                of->keys, of->lengths, cut},
                      .device = c->device,
                      .threads = c->threads,
                      .call = &c->d->call,
                      .progress = count_pairs,
                      .user = c};
}
