/* special_gradient.c - see special_gradient.h. In: a checked call, and the parameter of a
 * launch. Out: maps from a cache under a lock of its own, the launch. */
#include "special_gradient.h"
#include "device.h"
#include "runtime/base/status.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the cache between launches ------------------------------------------ */

typedef struct special_memory {
  pthread_mutex_t lock;
  map_cache maps;
  launch_layout layout;  /* of the parameter's `of` */
  hopper_launch nothing; /* without tables */
  void *own;             /* see special_own */
} special_memory;

void special_close(cuda_code *code) {
  special_memory *m = code->memory;
  maps_close(&m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

dil_status special_open(const dil_table *table, cuda_code *code) {
  special_memory *m = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  pthread_mutex_init(&m->lock, NULL);
  m->layout = layout_of(table, false);
  code->memory = m;
  dil_status status = maps_open(&m->maps, 2);
  if (status) special_close(code);
  return status;
}

void **special_own(const cuda_code *code) {
  special_memory *m = code->memory;
  return &m->own;
}

/* ---- the launch ---------------------------------------------------------- */

bool special_holds_keys(const cuda_code *code) {
  return code->about.knob[GRADIENT_KNOB_MAKES] != GRADIENT_Q;
}

void special_fill(const gradient_run *g, const hopper_gradient_space *space,
                  const cuda_code *code, hopper_backward_launch *l, int64_t bytes) {
  const special_memory *m = code->memory;
  layout_copy(&m->layout, &m->nothing, &l->of);
  memset((char *)l + sizeof l->of, 0, (size_t)bytes - sizeof l->of);
  hopper_gradient_fill(g, space, code->about.knob[GRADIENT_KNOB_MAKES], l);
}

dil_status special_find_maps(const cuda_run *r, const cuda_code *code, int32_t count,
                             const map_view *views, hopper_maps *const *maps) {
  const int32_t stride = 1;
  special_memory *m = code->memory;
  dil_status status = DIL_OK;
  pthread_mutex_lock(&m->lock);
  for (int32_t i = 0; i < count && !status; i++)
    status = maps_find(&m->maps, r->device->driver, &views[i], &stride, 1, *maps[i]);
  pthread_mutex_unlock(&m->lock);
  return status;
}

dil_status special_start(const cuda_run *r, const cuda_code *code, int32_t entry,
                         int64_t blocks, int32_t threads, int32_t shared,
                         const hopper_backward_launch *l, int64_t bytes) {
  const special_memory *m = code->memory;
  char parameter[sizeof *l + SPECIAL_REST_MOST];
  int64_t back = hopper_gradient_pack(&m->layout, l, parameter);
  memcpy(parameter + back, (const char *)l + sizeof *l, (size_t)bytes - sizeof *l);
  return cuda_launch(r, code, entry, blocks, threads, shared, parameter);
}

/* ---- refusals ------------------------------------------------------------ */

/* Rows are copied by 16 bytes, as tensor maps ask for, too. */
static bool special_describes(const dil_tensor *t) {
  return !t->data || (t->dtype != DIL_F32 && maps_can(t));
}

const char *special_tensor_refusal(const gradient_run *g) {
  const dil_call *c = g->of->call;
  if (!maps_can(&c->q) || !maps_can(&c->k) || !maps_can(&c->v) || !maps_can(&c->o) ||
      !special_describes(&g->o))
    return "tensors that no tensor map describes";
  if (!special_describes(g->q.to) || !special_describes(g->k.to) ||
      !special_describes(g->v.to))
    return "gradients of another type, or that are not aligned";
  return NULL;
}

const char *special_refuses_forward(const cuda_run *r, int32_t pass,
                                    const cuda_code *code) {
  (void)r;
  (void)pass;
  (void)code;
  return "it makes gradients";
}
