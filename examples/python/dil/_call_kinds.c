/* _call_kinds.c - the kernels of plans, by the tensors that they are for: a
 * table with open addressing, under Python's lock. */
#include "_call.h"

static kind *kinds; /* a table of 2^n entries, half of them free */
static size_t kinds_room, kinds_count;

static kind kind_of(int64_t plan, const DLTensor *q, const DLTensor *k,
                    const DLTensor *v) {
  return (kind){.plan = plan,
                .heads = q->shape[2],
                .kv_heads = k->shape[2],
                .head_dim = q->shape[3],
                .value_dim = v->shape[3],
                .device = q->device,
                .dtype = q->dtype};
}

static int kind_is(const kind *a, const kind *b) {
  return a->plan == b->plan && a->heads == b->heads &&
         a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
         a->value_dim == b->value_dim &&
         a->device.device_type == b->device.device_type &&
         a->device.device_id == b->device.device_id &&
         a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits;
}

/* The entry of these tensors, or the free one where it belongs. */
static kind *kind_entry(const kind *wanted) {
  uint64_t hash = (uint64_t)wanted->plan;
  const int64_t part[] = {wanted->heads,           wanted->kv_heads,
                          wanted->head_dim,        wanted->value_dim,
                          wanted->dtype.code,      wanted->dtype.bits,
                          wanted->device.device_id};
  for (size_t i = 0; i < sizeof part / sizeof *part; i++)
    hash = (hash ^ (uint64_t)part[i]) * 0x9E3779B97F4A7C15u;
  for (size_t i = hash >> 32;; i++) {
    kind *found = &kinds[i & (kinds_room - 1)];
    if (!found->forward || kind_is(found, wanted)) return found;
  }
}

/* 0 with an exception where there is no memory. */
static int kinds_grow(void) {
  kind *old = kinds;
  size_t room = kinds_room;
  if (2 * (kinds_count + 1) <= room) return 1;
  kinds_room = room ? 2 * room : 64;
  kinds = PyMem_Calloc(kinds_room, sizeof *kinds);
  if (!kinds) {
    kinds = old, kinds_room = room;
    PyErr_NoMemory();
    return 0;
  }
  for (size_t i = 0; i < room; i++)
    if (old[i].forward) *kind_entry(&old[i]) = old[i];
  PyMem_Free(old);
  return 1;
}

int kind_find(int64_t plan, const DLTensor *q, const DLTensor *k,
              const DLTensor *v, kind *found) {
  if (!kinds) return 0;
  kind wanted = kind_of(plan, q, k, v);
  *found = *kind_entry(&wanted);
  return found->forward != NULL;
}

PyObject *module_learn(PyObject *self, PyObject *given) {
  PyObject *rows[3], *forward, *backward;
  long long plan;
  int takes_scale, has_lse;
  views v = {0};
  DLTensor *view[3];
  (void)self;
  if (!PyArg_ParseTuple(given, "LOOOOOpp", &plan, &rows[0], &rows[1], &rows[2],
                        &forward, &backward, &takes_scale, &has_lse))
    return NULL;
  for (int i = 0; i < 3; i++)
    if (!view_add(&v, rows[i], &view[i]) || !view[i] || view[i]->ndim != 4)
      Py_RETURN_FALSE;
  kind told = kind_of(plan, view[0], view[1], view[2]);
  told.takes_scale = takes_scale;
  told.has_lse = has_lse;
  told.forward = PyLong_AsVoidPtr(forward);
  told.backward = PyLong_AsVoidPtr(backward);
  if (PyErr_Occurred() || !told.forward || !kinds_grow()) return NULL;
  kind *entry = kind_entry(&told);
  if (!entry->forward) kinds_count++;
  *entry = told;
  Py_RETURN_TRUE;
}

PyObject *module_forget(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  PyMem_Free(kinds);
  kinds = NULL;
  kinds_room = kinds_count = 0;
  Py_RETURN_NONE;
}
