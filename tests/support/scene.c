/* scene.c - see scene.h. */
#include "scene.h"
#include <check.h>
#include <stdlib.h>

scene *scene_open(const char *text, call_shape of, unsigned force) {
  scene *c = calloc(1, sizeof *c);
  ck_assert_ptr_nonnull(c);
  c->s = subject_new("scene", text, NULL, 0);
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

void scene_close(scene *c) {
  ring_device_free(c->device);
  if (c->threads) dil_threads_free(c->threads);
  data_free(c->d);
  kernel_unmake(c->k);
  subject_free(c->s);
  free(c);
}

static void count_pairs(void *user, int64_t pairs) {
  atomic_fetch_add(&((scene *)user)->pairs, pairs);
}

dil_stream scene_stream(scene *c, stream_chunks cut) {
  const call_shape *of = &c->d->shape;
  atomic_store(&c->pairs, 0);
  return (dil_stream){.shape = {&c->k->plan->table, of->batch, of->queries,
                                of->keys, of->lengths, cut},
                      .device = c->device, .threads = c->threads,
                      .call = &c->d->call, .progress = count_pairs,
                      .user = c};
}
