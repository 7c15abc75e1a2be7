/* _call_views.c - DLTensors of tensors by the C exchange table of their type,
 * and empty tensors beside them. */
#include "_call.h"

enum { TYPES_MAX = 8 };
static struct {
  PyTypeObject *type;
  const exchange_table *table;
} types[TYPES_MAX];
static int type_count;

static const exchange_table *table_of(PyObject *tensor) {
  PyTypeObject *type = Py_TYPE(tensor);
  for (int i = 0; i < type_count; i++)
    if (types[i].type == type) return types[i].table;
  return NULL;
}

PyObject *module_use(PyObject *self, PyObject *given) {
  PyObject *type, *capsule;
  (void)self;
  if (!PyArg_ParseTuple(given, "OO", &type, &capsule)) return NULL;
  const exchange_table *table =
      PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!table) return NULL;
  if (table->major != DLPACK_MAJOR_VERSION || !table->view ||
      type_count == TYPES_MAX)
    Py_RETURN_FALSE;
  Py_INCREF(type); /* for good */
  types[type_count].type = (PyTypeObject *)type;
  types[type_count++].table = table;
  Py_RETURN_TRUE;
}

int view_add(views *v, PyObject *tensor, DLTensor **view) {
  *view = NULL;
  if (tensor == Py_None) return 1;
  const exchange_table *table = table_of(tensor);
  if (!table || (v->table && table != v->table)) return 0;
  v->table = table;
  *view = &v->tensor[v->count++];
  if (!table->view(tensor, *view)) return 1;
  PyErr_Clear();
  return 0;
}

int view_add_all(views *v, PyObject *tensors, DLTensor **view, int32_t *count) {
  Py_ssize_t size = PySequence_Size(tensors);
  if (size < 0 || size > INPUTS_MAX) return 0;
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject *tensor = PySequence_GetItem(tensors, i);
    int good = tensor && view_add(v, tensor, &view[i]) && view[i];
    Py_XDECREF(tensor); /* the sequence keeps it */
    if (!good) return 0;
  }
  *count = (int32_t)size;
  return 1;
}

static void be_silent(void *user, const char *class, const char *text) {
  (void)user, (void)class, (void)text; /* the long way says it */
}

PyObject *tensor_make(const views *v, const DLTensor *like, int rank,
                      int64_t *shape, DLDataType type) {
  DLTensor wanted = {
      .device = like->device, .ndim = rank, .dtype = type, .shape = shape};
  DLManagedTensorVersioned *managed;
  void *made;
  if (!v->table->allocate(&wanted, &managed, NULL, be_silent) &&
      !v->table->managed_to(managed, &made))
    return made;
  PyErr_Clear();
  return NULL;
}

int current_stream(const views *v, const DLDevice *device, void **stream) {
  *stream = NULL;
  if (device->device_type == kDLCPU ||
      !v->table->current_stream(device->device_type, device->device_id, stream))
    return 1;
  PyErr_Clear();
  return 0;
}

int seed_add(views *v, PyObject *seed, const DLTensor *q, dil_arguments *a) {
  DLTensor *view;
  if (seed == Py_None) return 1;
  if (PyLong_Check(seed)) {
    a->seed = PyLong_AsUnsignedLongLong(seed);
    return !PyErr_Occurred();
  }
  if (!view_add(v, seed, &view)) return 0;
  a->seed_tensor = view;
  if (q->device.device_type == kDLCPU || view->device.device_type != kDLCPU)
    return 1;
  if (view->ndim || view->dtype.code != kDLInt || view->dtype.bits != 64)
    return 0;
  a->seed_tensor = NULL;
  memcpy(&a->seed, (const char *)view->data + view->byte_offset,
         sizeof a->seed);
  return 1;
}

/* ---- how rows lie -------------------------------------------------------- */

/* Returns the rows that the caller said; where these are 0, the longest document
 * of offsets that a processor may read. dil checks the offsets. */
static int64_t longest_of(const DLTensor *offsets, int64_t said) {
  if (said || !offsets || !offsets->data ||
      offsets->device.device_type != kDLCPU || offsets->ndim != 1 ||
      offsets->dtype.code != kDLInt || offsets->dtype.bits != 32 ||
      (offsets->strides && *offsets->strides != 1))
    return said;
  const int32_t *at = (const void *)((const char *)offsets->data +
                                     offsets->byte_offset);
  for (int64_t i = 0; i + 1 < *offsets->shape; i++)
    if ((int64_t)at[i + 1] - at[i] > said) said = (int64_t)at[i + 1] - at[i];
  return said;
}

/* 0 where this item is no number of rows, which the long way says. */
static int rows_add(PyObject *lies, Py_ssize_t index, int64_t *rows) {
  *rows = 0;
  if (index >= PyTuple_Size(lies)) return 1;
  *rows = PyLong_AsLongLong(PyTuple_GetItem(lies, index));
  if (!PyErr_Occurred()) return 1;
  PyErr_Clear();
  return 0;
}

static int lie_add(views *v, PyObject *lies, Py_ssize_t index,
                   const DLTensor **tensor) {
  DLTensor *view = NULL;
  int good = index >= PyTuple_Size(lies) ||
             view_add(v, PyTuple_GetItem(lies, index), &view);
  *tensor = view;
  return good;
}

int layout_add(views *v, PyObject *lies, dil_arguments *a) {
  enum { OFFSETS_Q, OFFSETS_K, LONGEST_Q, LONGEST_K, PAGES };
  if (lies == Py_None) return 1;
  if (!PyTuple_Check(lies) || !lie_add(v, lies, OFFSETS_Q, &a->offsets_q) ||
      !lie_add(v, lies, OFFSETS_K, &a->offsets_k) ||
      !rows_add(lies, LONGEST_Q, &a->longest_q) ||
      !rows_add(lies, LONGEST_K, &a->longest_k) ||
      !lie_add(v, lies, PAGES, &a->pages))
    return 0;
  a->longest_q = longest_of(a->offsets_q, a->longest_q);
  a->longest_k = longest_of(a->offsets_k, a->longest_k);
  return 1;
}
