/* _call_watch.c - what Python must be asked before a call goes straight to its
 * kernel: who looks on, and what autograd wants. */
#include "_call.h"

static PyObject *watchers; /* tuple of functions without arguments */
static PyObject *name_is_neg, *name_requires_grad;

/* Whether a function of no arguments says so; 1 also where it fails. */
static int is_said(PyObject *function) {
  PyObject *said = PyObject_CallNoArgs(function);
  int is = said ? PyObject_IsTrue(said) : 1;
  if (!said) PyErr_Clear();
  Py_XDECREF(said);
  return is != 0;
}

int is_watched(int level) {
  if (!watchers) return 1;
  if (level == WATCH_NONE) return 0;
  Py_ssize_t first = level == WATCH_ALL ? 1 : 2;
  for (Py_ssize_t i = first; i < PyTuple_Size(watchers); i++)
    if (is_said(PyTuple_GetItem(watchers, i))) return 1;
  return 0;
}

static int has_attribute(PyObject *tensor, PyObject *name) {
  PyObject *value = PyObject_GetAttr(tensor, name);
  int is = value ? PyObject_IsTrue(value) : 1;
  if (!value) PyErr_Clear();
  Py_XDECREF(value);
  return is != 0;
}

/* Whether the tensor's memory holds the numbers with the other sign. */
static int is_negated(PyObject *tensor) {
  PyObject *said = PyObject_CallMethodObjArgs(tensor, name_is_neg, NULL);
  int is = said ? PyObject_IsTrue(said) : 1;
  if (!said) PyErr_Clear();
  Py_XDECREF(said);
  return is != 0;
}

int tensors_state(PyObject *const *tensor, int count) {
  int wants = 0;
  for (int i = 0; i < count; i++) {
    if (tensor[i] == Py_None) continue;
    if (is_negated(tensor[i])) return IS_OTHER;
    wants = wants || has_attribute(tensor[i], name_requires_grad);
  }
  return wants && is_said(PyTuple_GetItem(watchers, 0)) ? WANTS_GRADIENT
                                                        : MAY_GO;
}

PyObject *module_watch(PyObject *self, PyObject *functions) {
  (void)self;
  if (!PyTuple_Check(functions) || PyTuple_Size(functions) < 2) {
    PyErr_SetString(PyExc_TypeError, "watchers are a tuple of two and more");
    return NULL;
  }
  if (!name_is_neg) name_is_neg = PyUnicode_InternFromString("is_neg");
  if (!name_requires_grad)
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
  if (!name_is_neg || !name_requires_grad) return NULL;
  Py_INCREF(functions);
  Py_XDECREF(watchers);
  watchers = functions;
  Py_RETURN_NONE;
}
