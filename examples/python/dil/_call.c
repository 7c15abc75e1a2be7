/* _call.c - calls of kernels from Python without a detour: the tensors give
 * their DLTensors through the C exchange table of DLPack 1.3 that their type
 * has, `type(x).__dlpack_c_exchange_api__`.
 *
 * In: tensors, and a kernel's handle or a plan's number, of which the kernels
 * were told by `learn`. Out: True, or what is made here, which is o, lse and
 * gradients; or False where this way cannot take the call or dil refused it:
 * the caller then takes the long way, which says why. The module knows
 * CPython's limited API alone and is linked to nothing of dil or PyTorch:
 * dil/_quick.py hands it the functions. */
#include "_call.h"

/* ---- one call ------------------------------------------------------------ */

static dil_status (*kernel_run)(dil_kernel *, const dil_arguments *);
static dil_status (*kernel_backward)(dil_kernel *, const dil_gradients *);

/* What a call borrows while it runs, and the outputs that it makes. */
typedef struct call {
  views views;
  dil_arguments arguments;
  DLTensor *q, *k, *v, *o, *lse, *lengths, *inputs[INPUTS_MAX];
  PyObject *made_o, *made_lse; /* NULL: given, or not wanted */
  int is_differentiable;       /* autograd must know of it */
} call;

static void call_begin(call *c) {
  c->views.table = NULL;
  c->views.count = 0;
  c->arguments = (dil_arguments)DIL_ARGUMENTS_INIT;
  c->q = c->k = c->v = c->o = c->lse = c->lengths = NULL;
  c->made_o = c->made_lse = NULL;
  c->is_differentiable = 0;
}

static int call_add_rows(call *c, PyObject *const *rows) {
  return view_add(&c->views, rows[0], &c->q) && c->q && c->q->ndim == 4 &&
         view_add(&c->views, rows[1], &c->k) && c->k && c->k->ndim == 4 &&
         view_add(&c->views, rows[2], &c->v) && c->v && c->v->ndim == 4;
}

/* Where o is None, one of [B, N, H, Dv]. */
static int call_add_o(call *c, PyObject *o) {
  const DLTensor *q = c->q;
  if (o == Py_None) {
    int64_t shape[] = {q->shape[0], q->shape[1], q->shape[2], c->v->shape[3]};
    o = c->made_o = tensor_make(&c->views, q, 4, shape, q->dtype);
  }
  return o && view_add(&c->views, o, &c->o);
}

/* Where lse is True, one of [B, H, N]. */
static int call_add_lse(call *c, PyObject *lse) {
  const DLTensor *q = c->q;
  if (lse == Py_True) {
    int64_t shape[] = {q->shape[0], q->shape[2], q->shape[1]};
    lse = c->made_lse =
        tensor_make(&c->views, q, 3, shape, (DLDataType){kDLFloat, 32, 1});
  }
  return lse && view_add(&c->views, lse, &c->lse);
}

static void call_bind(call *c) {
  dil_arguments *a = &c->arguments;
  a->q = c->q, a->k = c->k, a->v = c->v;
  a->o = c->o, a->lse = c->lse, a->lengths = c->lengths;
  a->inputs = (const DLTensor *const *)c->inputs;
}

static int call_start(call *c, dil_kernel *kernel) {
  dil_status status;
  call_bind(c);
  Py_BEGIN_ALLOW_THREADS;
  status = kernel_run(kernel, &c->arguments);
  Py_END_ALLOW_THREADS;
  return status == DIL_OK;
}

/* False, True, or what was made, and True behind it where autograd must know;
 * None stands for an lse that is not wanted. */
static PyObject *call_result(call *c, int good) {
  PyObject *result = NULL;
  if (good && (c->made_o || c->made_lse))
    result = PyTuple_Pack(c->is_differentiable ? 3 : 2,
                          c->made_o ? c->made_o : Py_None,
                          c->made_lse ? c->made_lse : Py_None, Py_True);
  else if (good || !PyErr_Occurred())
    result = PyBool_FromLong(good);
  Py_XDECREF(c->made_o);
  Py_XDECREF(c->made_lse);
  return result;
}

static int is_count(Py_ssize_t count, int wanted) {
  if (count == wanted) return 1;
  PyErr_Format(PyExc_TypeError, "this call has %d arguments, got %zd", wanted,
               count);
  return 0;
}

/* The numbers of a call but its seed, which stands after `train`; 0 with an
 * exception where one is none. */
static int read_numbers(PyObject *const *given, dil_arguments *a) {
  a->train = PyObject_IsTrue(given[0]);
  a->scale = PyFloat_AsDouble(given[2]);
  a->stream = given[3] == Py_None ? NULL : PyLong_AsVoidPtr(given[3]);
  return !PyErr_Occurred();
}

/* A GPU's call joins the stream on which the tensors' owner works. */
static int is_stream_current(const call *c) {
  void *current;
  return c->q->device.device_type == kDLCPU ||
         (current_stream(&c->views, &c->q->device, &current) &&
          current == c->arguments.stream);
}

static PyObject *module_run(PyObject *self, PyObject *const *given,
                            Py_ssize_t count) {
  enum { KERNEL, Q, K, V, O, LSE, LENGTHS, INPUTS, TRAIN, LIES = 12 };
  call c;
  (void)self;
  if (!is_count(count, LIES + 1)) return NULL;
  dil_kernel *kernel = PyLong_AsVoidPtr(given[KERNEL]);
  call_begin(&c);
  if (!kernel || !read_numbers(given + TRAIN, &c.arguments)) return NULL;
  return call_result(
      &c, call_add_rows(&c, given + Q) &&
              view_add(&c.views, given[LENGTHS], &c.lengths) &&
              view_add_all(&c.views, given[INPUTS], c.inputs,
                           &c.arguments.input_count) &&
              seed_add(&c.views, given[TRAIN + 1], c.q, &c.arguments) &&
              layout_add(&c.views, given[LIES], &c.arguments) &&
              is_stream_current(&c) && call_add_o(&c, given[O]) &&
              call_add_lse(&c, given[LSE]) && call_start(&c, kernel));
}

/* ---- gradients ----------------------------------------------------------- */

/* A call's gradients: of q, k, v and of its inputs. */
typedef struct gradients {
  call c;
  dil_gradients g;
  DLTensor *d_o, *dlse, *d[3 + INPUTS_MAX];
  PyObject *made; /* list of those that are wanted */
} gradients;

/* In place of True a gradient is made, as its tensor is but contiguous. */
static int gradient_add(gradients *g, PyObject *wanted, const DLTensor *of,
                        DLTensor **d) {
  *d = NULL;
  if (wanted == Py_None || wanted == Py_False) return 1;
  PyObject *tensor = wanted;
  if (wanted == Py_True)
    tensor = tensor_make(&g->c.views, of, of->ndim, of->shape, of->dtype);
  else
    Py_INCREF(tensor);
  int good = tensor && view_add(&g->c.views, tensor, d) && *d &&
             !PyList_Append(g->made, tensor);
  Py_XDECREF(tensor);
  return good;
}

static int gradients_add(gradients *g, PyObject *wanted) {
  const DLTensor *of[3] = {g->c.q, g->c.k, g->c.v};
  Py_ssize_t count = 3 + g->c.arguments.input_count;
  g->made = PyList_New(0);
  if (!g->made || PySequence_Size(wanted) != count) return 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *one = PySequence_GetItem(wanted, i);
    int good = one && gradient_add(g, one, i < 3 ? of[i] : g->c.inputs[i - 3],
                                   &g->d[i]);
    Py_XDECREF(one);
    if (!good) return 0;
  }
  return 1;
}

/* d_o, dlse, q, k, v, o, lse, inputs, lengths */
static int gradients_add_call(gradients *g, PyObject *const *given) {
  call *c = &g->c;
  return call_add_rows(c, given + 2) &&
         view_add(&c->views, given[0], &g->d_o) && g->d_o &&
         view_add(&c->views, given[1], &g->dlse) &&
         view_add(&c->views, given[5], &c->o) && c->o &&
         view_add(&c->views, given[6], &c->lse) &&
         view_add_all(&c->views, given[7], c->inputs,
                      &c->arguments.input_count) &&
         view_add(&c->views, given[8], &c->lengths);
}

static int gradients_start(gradients *g, dil_kernel *kernel) {
  dil_status status;
  call_bind(&g->c);
  g->g = (dil_gradients)DIL_GRADIENTS_INIT;
  g->g.forward = &g->c.arguments;
  g->g.d_o = g->d_o, g->g.dlse = g->dlse;
  g->g.dq = g->d[0], g->g.dk = g->d[1], g->g.dv = g->d[2];
  g->g.inputs = g->d + 3;
  g->g.input_count = g->c.arguments.input_count;
  Py_BEGIN_ALLOW_THREADS;
  status = kernel_backward(kernel, &g->g);
  Py_END_ALLOW_THREADS;
  return status == DIL_OK;
}

static PyObject *gradients_result(gradients *g, int good) {
  if (good) return g->made;
  Py_XDECREF(g->made);
  return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
}

/* What stands before `wanted` in both calls: see gradients_add_call. */
enum { CALL_TENSORS = 9 };

static PyObject *module_backward(PyObject *self, PyObject *const *given,
                                 Py_ssize_t count) {
  enum { KERNEL, TENSORS, TRAIN = TENSORS + CALL_TENSORS, WANTED = TRAIN + 4 };
  enum { LIES = WANTED + 1 };
  gradients g;
  (void)self;
  if (!is_count(count, LIES + 1)) return NULL;
  dil_kernel *kernel = PyLong_AsVoidPtr(given[KERNEL]);
  call_begin(&g.c);
  g.made = NULL;
  if (!kernel || !read_numbers(given + TRAIN, &g.c.arguments)) return NULL;
  return gradients_result(
      &g, gradients_add_call(&g, given + TENSORS) &&
              seed_add(&g.c.views, given[TRAIN + 1], g.c.q, &g.c.arguments) &&
              layout_add(&g.c.views, given[LIES], &g.c.arguments) &&
              is_stream_current(&g.c) && gradients_add(&g, given[WANTED]) &&
              gradients_start(&g, kernel));
}

/* ---- calls of plans ------------------------------------------------------ */

/* The numbers of a plan's call; 0 where a scale is missing or too many. */
static int plan_numbers(call *c, const kind *found, PyObject *scale,
                        PyObject *seed, PyObject *train) {
  dil_arguments *a = &c->arguments;
  if (found->takes_scale == (scale == Py_None)) return 0;
  if (scale != Py_None) a->scale = PyFloat_AsDouble(scale);
  a->train = PyObject_IsTrue(train);
  return !PyErr_Occurred() && seed_add(&c->views, seed, c->q, a) &&
         current_stream(&c->views, &c->q->device, &a->stream);
}

static int plan_kind(const call *c, PyObject *plan, kind *found) {
  return kind_find(PyLong_AsLongLong(plan), c->q, c->k, c->v, found);
}

/* The worst state of the inputs, a tuple or a list. */
static int inputs_state(PyObject *inputs) {
  int state = MAY_GO;
  Py_ssize_t count = PySequence_Size(inputs);
  for (Py_ssize_t i = 0; i < count && state == MAY_GO; i++) {
    PyObject *input = PySequence_GetItem(inputs, i);
    state = input ? tensors_state(&input, 1) : IS_OTHER;
    Py_XDECREF(input);
  }
  if (PyErr_Occurred()) PyErr_Clear(); /* the dispatcher says what is wrong */
  return count < 0 ? IS_OTHER : state;
}

static PyObject *plan_run(call *c, const kind *found, PyObject *const *given,
                          int wants_lse) {
  enum { INPUTS, LENGTHS, SCALE, SEED, TRAIN, LIES = TRAIN + 2 };
  return call_result(
      c, view_add(&c->views, given[LENGTHS], &c->lengths) &&
             view_add_all(&c->views, given[INPUTS], c->inputs,
                          &c->arguments.input_count) &&
             plan_numbers(c, found, given[SCALE], given[SEED], given[TRAIN]) &&
             layout_add(&c->views, given[LIES], &c->arguments) &&
             !(c->is_differentiable && c->arguments.pages) &&
             call_add_o(c, Py_None) &&
             call_add_lse(c, wants_lse ? Py_True : Py_None) &&
             call_start(c, found->forward));
}

static PyObject *module_attend(PyObject *self, PyObject *const *given,
                               Py_ssize_t count) {
  enum { WATCH, PLAN, Q, INPUTS = 5, WANTS_LSE = 10, LIES, ARGUMENTS };
  call c;
  kind found;
  (void)self;
  if (!is_count(count, ARGUMENTS)) return NULL;
  call_begin(&c);
  if (is_watched((int)PyLong_AsLong(given[WATCH])) ||
      !call_add_rows(&c, given + Q) || !plan_kind(&c, given[PLAN], &found))
    Py_RETURN_FALSE;
  int state = tensors_state(given + Q, 3);
  int wants_lse = given[WANTS_LSE] == Py_True || state == WANTS_GRADIENT;
  if (state == IS_OTHER || inputs_state(given[INPUTS]) != MAY_GO ||
      (wants_lse && !found.has_lse) ||
      (state == WANTS_GRADIENT && !found.backward))
    Py_RETURN_FALSE;
  c.is_differentiable = state == WANTS_GRADIENT;
  return plan_run(&c, &found, given + INPUTS, wants_lse);
}

static PyObject *module_gradients(PyObject *self, PyObject *const *given,
                                  Py_ssize_t count) {
  enum { WATCH, PLAN, TENSORS, SCALE = TENSORS + CALL_TENSORS };
  enum { SEED = SCALE + 1, TRAIN, WANTED, LIES, ARGUMENTS };
  gradients g;
  kind found;
  (void)self;
  if (!is_count(count, ARGUMENTS)) return NULL;
  call_begin(&g.c);
  g.made = NULL;
  if (is_watched((int)PyLong_AsLong(given[WATCH])) ||
      tensors_state(given + TENSORS, 7) != MAY_GO)
    Py_RETURN_FALSE;
  return gradients_result(&g, gradients_add_call(&g, given + TENSORS) &&
                                  plan_kind(&g.c, given[PLAN], &found) &&
                                  found.backward &&
                                  plan_numbers(&g.c, &found, given[SCALE],
                                               given[SEED], given[TRAIN]) &&
                                  layout_add(&g.c.views, given[LIES],
                                             &g.c.arguments) &&
                                  gradients_add(&g, given[WANTED]) &&
                                  gradients_start(&g, found.backward));
}

/* ---- the module ---------------------------------------------------------- */

/* Grows where a function here takes other arguments than before. */
enum { FORM = 2 };

/* connect(addresses of dil_kernel_run and of dil_kernel_backward, the form that
 * the caller knows): False where it is another */
static PyObject *module_connect(PyObject *self, PyObject *given) {
  PyObject *address[2];
  int form;
  (void)self;
  if (!PyArg_ParseTuple(given, "OOi", &address[0], &address[1], &form))
    return NULL;
  if (form != FORM) Py_RETURN_FALSE;
  void *run = PyLong_AsVoidPtr(address[0]);
  void *backward = PyLong_AsVoidPtr(address[1]);
  if (!run || !backward) return NULL;
  memcpy(&kernel_run, &run, sizeof run);
  memcpy(&kernel_backward, &backward, sizeof backward);
  Py_RETURN_TRUE;
}

#define QUICK(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef methods[] = {
    {"connect", module_connect, METH_VARARGS,
     "connect(addresses of dil_kernel_run and dil_kernel_backward, form)"},
    {"use", module_use, METH_VARARGS, "use(type, its exchange table)"},
    {"run", QUICK(module_run),
     "run(kernel, q, k, v, o, lse, lengths, inputs, train, seed, scale, "
     "stream, layout): o None and lse True are made"},
    {"backward", QUICK(module_backward),
     "backward(kernel, d_o, dlse, q, k, v, o, lse, inputs, lengths, train, "
     "seed, scale, stream, wanted, layout): the gradients that are wanted, of "
     "which True are made"},
    {"watch", module_watch, METH_O,
     "watch((is_grad_enabled, is_autocast_enabled, others...))"},
    {"learn", module_learn, METH_VARARGS,
     "learn(plan, q, k, v, kernel, kernel with gradients or 0, takes_scale, "
     "has_lse)"},
    {"forget", module_forget, METH_NOARGS, "forget what was learned"},
    {"attend", QUICK(module_attend),
     "attend(watch, plan, q, k, v, inputs, lengths, scale, seed, train, "
     "wants_lse, layout): o and lse, and a third item where autograd must know "
     "of the call"},
    {"gradients", QUICK(module_gradients),
     "gradients(watch, plan, d_o, dlse, q, k, v, o, lse, inputs, lengths, "
     "scale, seed, train, wanted, layout): those that are wanted"},
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
