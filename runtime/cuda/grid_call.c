/* grid_call.c - see grid_call.h. In: a checked call of a whole sequence over a grid. Out:
 * tensor maps under a lock, the parameters of patches. */
#include "grid_call.h"
#include "device.h"
#include "general.h"
#include "patches.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the cache between launches ------------------------------------------ */

enum { KEPT = 16 };

/* The tensors of a call, by which maps are found. Views are compared byte by byte. */
typedef struct grid_views {
  map_view tensor[GRID_TENSORS];
} grid_views;

struct grid_cache {
  pthread_mutex_t lock;
  int32_t count, next;     /* next: index of the entry that is replaced next */
  grid_views views[KEPT];
  hopper_map (*maps)[GRID_TENSORS][GRID_MAPS]; /* [KEPT] */
};

void grid_cache_close(grid_cache *cache) {
  free(cache->maps);
  pthread_mutex_destroy(&cache->lock);
  free(cache);
}

dil_status grid_cache_open(grid_cache **out) {
  grid_cache *m = calloc(1, sizeof *m);
  if (m) m->maps = aligned_alloc(sizeof(hopper_map), KEPT * sizeof *m->maps);
  if (!m || !m->maps) {
    free(m);
    return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  }
  pthread_mutex_init(&m->lock, NULL);
  *out = m;
  return DIL_OK;
}

/* ---- patches ------------------------------------------------------------- */

bool grid_patches(const cuda_run *r, int32_t pass, const cuda_code *code, int32_t groups,
                  patch_plan *out) {
  const int32_t *knob = code->about.knob;
  int32_t z = knob[GRID_KNOB_Z], y = knob[GRID_KNOB_Y];
  bool solid = r->table->grid.axes == 3;
  const int32_t size[DIL_GRID_AXES] = {solid ? z * groups : y * groups,
                                       solid ? y : GRID_ROW, GRID_ROW};
  return patch_plan_of(r->table, __builtin_ctzll(r->table->passes[pass].branches),
                       r->M, size, out);
}

int64_t grid_batch_maps(const cuda_run *r) {
  return r->table->grid.axes == 3 ? r->B : 1;
}

dil_status grid_fill(const cuda_run *r, int32_t pass, const patch_plan *p, int32_t heads,
                     grid_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  *l = (grid_launch){.of = general_parameters(r),
                     .batch_maps = (int)grid_batch_maps(r),
                     .group = r->table->heads / r->table->kv_heads,
                     .scale = r->scale * log2_e};
  l->slack = fminf(8 / l->scale, 1e30f);
  l->of.heads = heads;
  l->of.items = cuda_patches_fill(r, pass, p, &l->of) * heads * r->B;
  if (l->of.items > INT32_MAX)
    return dil_fail(DIL_USAGE, "more than 2^31 tiles in one call");
  return DIL_OK;
}

/* ---- tensor maps --------------------------------------------------------- */

/* Describes the cells of a residue of a tensor, and with three axes those of one
 * batch row. `number`: of the residue, axis 0 fastest. `box`: cells of a copy along x,
 * y and z. */
static map_shape grid_shape_of(const map_view *v, const patch_plan *p,
                               const grid_box box, int64_t number,
                               int64_t batch) {
  int64_t row = (int64_t)maps_bytes(v, 1), head = p->axes + 1;
  map_shape s = maps_shape(v);
  for (int32_t k = 0; k < p->axes; k++) {
    const patch_axis *a = &p->axis[k];
    int32_t axis = p->axes - k; /* of the map */
    int64_t residue = number % a->residues;
    number /= a->residues;
    s.data += residue * a->stride * row;
    s.size[axis] = (uint64_t)patch_residue_cells(a, residue);
    s.step[axis] = (uint64_t)(a->stride * a->step * row);
    s.box[axis] = (unsigned)box[axis - 1];
  }
  s.size[head] = (uint64_t)v->heads;
  s.step[head] = maps_bytes(v, 2);
  if (p->axes == 3) {
    s.data += batch * (int64_t)maps_bytes(v, 0);
    return s;
  }
  s.size[4] = (uint64_t)v->batches;
  s.step[4] = maps_bytes(v, 0);
  return s;
}

static dil_status grid_make_maps(const cuda_run *r, const patch_plan *p,
                                 const grid_views *views, const grid_box *box,
                                 hopper_map (*maps)[GRID_MAPS]) {
  int64_t batches = grid_batch_maps(r);
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < GRID_TENSORS; i++)
    for (int64_t n = 0; n < p->residues * batches && !status; n++) {
      map_shape s = grid_shape_of(&views->tensor[i], p, box[i], n / batches,
                                  n % batches);
      status = map_make(r->device->driver, &s, &maps[i][n]);
    }
  return status;
}

/* The caller holds the lock. */
static dil_status grid_look_up(grid_cache *m, const cuda_run *r, const patch_plan *p,
                               const grid_views *views, const grid_box *box,
                               grid_launch *l) {
  int32_t at = 0;
  while (at < m->count && memcmp(&m->views[at], views, sizeof *views)) at++;
  if (at == m->count) {
    at = m->next;
    m->views[at] = (grid_views){0};
    dil_status status = grid_make_maps(r, p, views, box, m->maps[at]);
    if (status) return status;
    m->views[at] = *views;
    m->next = (at + 1) % KEPT;
    if (m->count < KEPT) m->count++;
  }
  memcpy(l->q, m->maps[at], sizeof *m->maps);
  return DIL_OK;
}

dil_status grid_cache_find(grid_cache *cache, const cuda_run *r, const patch_plan *p,
                           const map_view view[GRID_TENSORS],
                           const grid_box box[GRID_TENSORS], grid_launch *l) {
  grid_views views;
  memcpy(&views, view, sizeof views);
  pthread_mutex_lock(&cache->lock);
  dil_status status = grid_look_up(cache, r, p, &views, box, l);
  pthread_mutex_unlock(&cache->lock);
  return status;
}

/* ---- which calls --------------------------------------------------------- */

const char *grid_call_refusal(const cuda_run *r, int32_t pass, const cuda_code *code) {
  const dil_call *c = r->call;
  patch_plan p;
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries || pages_given(c) || c->lengths)
    return "lengths, documents or pages over a grid";
  if (r->N != r->M) return "queries that are not all of the grid";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < 64) return "fewer than 64 queries";
  if (r->N > 1 << 29) return "more than 2^29 rows";
  if (!grid_patches(r, pass, code, 1, &p)) return "every row sees all of the grid";
  if (p.residues * grid_batch_maps(r) > GRID_MAPS)
    return "more than 16 residues of a grid in all batch rows";
  return NULL;
}
