/* _call.c - a call of a kernel from Python without a detour: the tensors give
 * their DLTensors through the C exchange table of DLPack 1.3 that their type
 * has, `type(x).__dlpack_c_exchange_api__`.
 *
 * In: a kernel's handle and tensors. Out: True, or False where this way cannot
 * take the call or dil refused it; the caller then takes the long way, which
 * says why. The module knows CPython's limited API alone and is linked to
 * nothing of dil or PyTorch: dil/__init__.py hands it the functions. */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include "dilrt.h"

/* ---- DLPack 1.3 ---------------------------------------------------------- */

typedef struct exchange_table {
  uint32_t major, minor;
  const struct exchange_table *older; /* of another major version, or NULL */
  void (*allocate)(void), (*managed_from)(void), (*managed_to)(void);
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
    if (!view_add(v, PyTuple_GetItem(inputs, i), &view[i]) || !view[i]) return 0;
  *count = (int)size;
  return 1;
}

enum {
  KERNEL, Q, K, V, O, LSE, LENGTHS, INPUTS, TRAIN, SEED, SCALE, STREAM, ARGUMENTS
};

/* The numbers of a call; 0 with an exception where one is none. */
static int read_numbers(PyObject *const *given, dil_arguments *a) {
  a->train = PyObject_IsTrue(given[TRAIN]);
  a->seed = PyLong_AsUnsignedLongLong(given[SEED]);
  a->scale = PyFloat_AsDouble(given[SCALE]);
  a->stream = given[STREAM] == Py_None ? NULL : PyLong_AsVoidPtr(given[STREAM]);
  return !PyErr_Occurred();
}

static PyObject *call_run(PyObject *self, PyObject *const *given,
                          Py_ssize_t count) {
  views v = {.count = 0};
  DLTensor *view[6], *inputs[INPUTS_MAX];
  dil_arguments a = DIL_ARGUMENTS_INIT;
  int good = 1;
  (void)self;
  if (count != ARGUMENTS) {
    PyErr_SetString(PyExc_TypeError, "a call has 12 arguments");
    return NULL;
  }
  dil_kernel *kernel = PyLong_AsVoidPtr(given[KERNEL]);
  if (!kernel || !read_numbers(given, &a)) return NULL;
  for (int i = 0; good && i < 6; i++)
    good = view_add(&v, given[Q + i], &view[i]);
  if (!good || !add_inputs(&v, given[INPUTS], inputs, &a.input_count) ||
      !view[0] || !is_stream_current(&v, &view[0]->device, a.stream)) {
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_FALSE;
  }
  a.q = view[0], a.k = view[1], a.v = view[2];
  a.o = view[3], a.lse = view[4], a.lengths = view[5];
  a.inputs = (const DLTensor *const *)inputs;
  dil_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = kernel_run(kernel, &a);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(status == DIL_OK);
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
     "run(kernel, q, k, v, o, lse, lengths, inputs, train, seed, scale, stream)"},
    {0}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_call", "Calls of kernels", -1, methods, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit__call(void);
PyMODINIT_FUNC PyInit__call(void) { return PyModule_Create(&module); }
