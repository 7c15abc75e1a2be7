/* _call.c - a call of a kernel from Python without a detour: the tensors give
 * their DLTensors through the C exchange table of DLPack 1.3 that their type
 * has, `type(x).__dlpack_c_exchange_api__`.
 *
 * In: a kernel's handle and tensors. Out: True, or o and lse where these are
 * made here; or False where this way cannot take the call or dil refused it:
 * the caller then takes the long way, which says why. The module knows
 * CPython's limited API alone and is linked to nothing of dil or PyTorch:
 * dil/__init__.py hands it the functions. */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include "dilrt.h"

/* ---- DLPack 1.3 ---------------------------------------------------------- */

typedef struct exchange_table {
  uint32_t major, minor;
  const struct exchange_table *older; /* of another major version, or NULL */
  int (*allocate)(DLTensor *like, DLManagedTensorVersioned **made, void *user,
                  void (*refuse)(void *user, const char *kind,
                                 const char *text));
  void (*managed_from)(void);
  int (*managed_to)(DLManagedTensorVersioned *managed, void **tensor);
  int (*view)(void *tensor, DLTensor *view); /* borrowed; 0, or an exception */
  int (*current_stream)(DLDeviceType kind, int32_t device, void **stream);
} exchange_table;

enum { TYPES_MAX = 8, INPUTS_MAX = 64 };
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

/* ---- one call ------------------------------------------------------------ */

static dil_status (*kernel_run)(dil_kernel *, const dil_arguments *);

/* Views of the tensors that stand where a tensor may: None is NULL. */
typedef struct views {
  const exchange_table *table;
  int count;
  DLTensor tensor[6 + INPUTS_MAX];
} views;

/* 1; 0 where the tensor has no table, or refuses. */
static int view_add(views *v, PyObject *tensor, DLTensor **view) {
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

/* ---- outputs ------------------------------------------------------------- */

static void be_silent(void *user, const char *kind, const char *text) {
  (void)user, (void)kind, (void)text; /* the long way says it */
}

/* An empty tensor beside `like`; NULL where its owner makes none. */
static PyObject *tensor_make(const views *v, const DLTensor *like, int rank,
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

/* o [B, N, H, Dv] of a call, or its lse [B, H, N]. */
static PyObject *output_make(const views *v, const DLTensor *q,
                             const DLTensor *value) {
  int64_t shape[] = {q->shape[0], q->shape[1], q->shape[2], value->shape[3]};
  return tensor_make(v, q, 4, shape, q->dtype);
}

static PyObject *lse_make(const views *v, const DLTensor *q) {
  int64_t shape[] = {q->shape[0], q->shape[2], q->shape[1]};
  return tensor_make(v, q, 3, shape, (DLDataType){kDLFloat, 32, 1});
}

/* A GPU's call joins the stream on which the tensors' owner works. */
static int is_stream_current(const views *v, const DLDevice *device,
                             const void *stream) {
  void *current;
  if (device->device_type == kDLCPU) return 1;
  if (!v->table->current_stream(device->device_type, device->device_id,
                                &current))
    return current == stream;
  PyErr_Clear();
  return 0;
}

static int add_inputs(views *v, PyObject *inputs, DLTensor **view, int *count) {
  Py_ssize_t size = PyTuple_Size(inputs);
  if (size < 0 || size > INPUTS_MAX) return 0;
  for (Py_ssize_t i = 0; i < size; i++)
    if (!view_add(v, PyTuple_GetItem(inputs, i), &view[i]) || !view[i])
      return 0;
  *count = (int)size;
  return 1;
}

enum {
  KERNEL,
  Q,
  K,
  V,
  O,
  LSE,
  LENGTHS,
  INPUTS,
  TRAIN,
  SEED,
  SCALE,
  STREAM,
  ARGUMENTS
};

/* The numbers of a call; 0 with an exception where one is none. */
static int read_numbers(PyObject *const *given, dil_arguments *a) {
  a->train = PyObject_IsTrue(given[TRAIN]);
  a->seed = PyLong_AsUnsignedLongLong(given[SEED]);
  a->scale = PyFloat_AsDouble(given[SCALE]);
  a->stream = given[STREAM] == Py_None ? NULL : PyLong_AsVoidPtr(given[STREAM]);
  return !PyErr_Occurred();
}

/* The views that a call borrows while it runs, and the outputs that it makes. */
typedef struct call {
  views views;
  dil_arguments arguments;
  DLTensor *view[LENGTHS + 1], *inputs[INPUTS_MAX];
  PyObject *o, *lse; /* NULL: given, or not wanted */
} call;

/* Makes o where it is None, and lse where it is True. */
static int add_outputs(call *c, PyObject *const *given) {
  const DLTensor *q = c->view[Q], *v = c->view[V];
  if (given[O] == Py_None) {
    if (q->ndim != 4 || !v || v->ndim != 4) return 0;
    c->o = output_make(&c->views, q, v);
    if (!c->o || !view_add(&c->views, c->o, &c->view[O])) return 0;
  }
  if (given[LSE] != Py_True) return 1;
  c->lse = q->ndim == 4 ? lse_make(&c->views, q) : NULL;
  return c->lse && view_add(&c->views, c->lse, &c->view[LSE]);
}

static int call_read(call *c, PyObject *const *given) {
  dil_arguments *a = &c->arguments;
  for (int i = Q; i <= LENGTHS; i++)
    if (given[i] != Py_True && !view_add(&c->views, given[i], &c->view[i]))
      return 0;
  if (!c->view[Q] ||
      !add_inputs(&c->views, given[INPUTS], c->inputs, &a->input_count) ||
      !is_stream_current(&c->views, &c->view[Q]->device, a->stream) ||
      !add_outputs(c, given))
    return 0;
  a->q = c->view[Q], a->k = c->view[K], a->v = c->view[V];
  a->o = c->view[O], a->lse = c->view[LSE], a->lengths = c->view[LENGTHS];
  a->inputs = (const DLTensor *const *)c->inputs;
  return 1;
}

/* True, or what was made; None stands for an lse that is not wanted. */
static PyObject *call_result(const call *c) {
  if (!c->o && !c->lse) return PyBool_FromLong(1);
  return PyTuple_Pack(2, c->o ? c->o : Py_None, c->lse ? c->lse : Py_None);
}

static PyObject *call_run(PyObject *self, PyObject *const *given,
                          Py_ssize_t count) {
  call c;
  (void)self;
  if (count != ARGUMENTS) {
    PyErr_SetString(PyExc_TypeError, "a call has 12 arguments");
    return NULL;
  }
  c.views.table = NULL;
  c.views.count = 0;
  c.arguments = (dil_arguments)DIL_ARGUMENTS_INIT;
  memset(c.view, 0, sizeof c.view);
  c.o = c.lse = NULL;
  dil_kernel *kernel = PyLong_AsVoidPtr(given[KERNEL]);
  if (!kernel || !read_numbers(given, &c.arguments)) return NULL;
  dil_status status = DIL_USAGE;
  if (call_read(&c, given)) {
    Py_BEGIN_ALLOW_THREADS;
    status = kernel_run(kernel, &c.arguments);
    Py_END_ALLOW_THREADS;
  }
  PyObject *result = status == DIL_OK   ? call_result(&c)
                     : PyErr_Occurred() ? NULL
                                        : PyBool_FromLong(0);
  Py_XDECREF(c.o);
  Py_XDECREF(c.lse);
  return result;
}

/* ---- the module ---------------------------------------------------------- */

/* use(type, capsule): whether tensors of this type are taken from now on. */
static PyObject *call_use(PyObject *self, PyObject *given) {
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

/* connect(address): of dil_kernel_run */
static PyObject *call_connect(PyObject *self, PyObject *address) {
  (void)self;
  void *run = PyLong_AsVoidPtr(address);
  if (!run) return NULL;
  memcpy(&kernel_run, &run, sizeof run);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"connect", call_connect, METH_O, "connect(address of dil_kernel_run)"},
    {"use", call_use, METH_VARARGS, "use(type, its exchange table)"},
    {"run", (PyCFunction)(void (*)(void))call_run, METH_FASTCALL,
     "run(kernel, q, k, v, o, lse, lengths, inputs, train, seed, scale, "
     "stream): "
     "o None and lse True are made"},
    {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT,
                                    "_call",
                                    "Calls of kernels",
                                    -1,
                                    methods,
                                    0,
                                    0,
                                    0,
                                    0};

PyMODINIT_FUNC PyInit__call(void);
PyMODINIT_FUNC PyInit__call(void) {
  return PyModule_Create(&module);
}
