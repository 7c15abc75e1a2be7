/* _call.h - what the files of the extension share; see _call.c. */
#ifndef DIL_PYTHON_CALL_H
#define DIL_PYTHON_CALL_H
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include "dilrt.h"

/* ---- views of tensors (_call_views.c) ------------------------------------ */

/* The C exchange table of DLPack 1.3. */
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

enum { INPUTS_MAX = 64 };

/* Views of the tensors that stand where a tensor may: None is NULL. */
typedef struct views {
  const exchange_table *table;
  int count;
  DLTensor tensor[15 + 2 * INPUTS_MAX];
} views;

/* use(type, capsule): whether tensors of this type are taken from now on. */
PyObject *module_use(PyObject *self, PyObject *given);
/* 1; 0 where the tensor has no table, or refuses. */
int view_add(views *v, PyObject *tensor, DLTensor **view);
/* Of a tuple or a list; 0 also where one of them is None. */
int view_add_all(views *v, PyObject *tensors, DLTensor **view, int32_t *count);
/* An empty tensor beside `like`; NULL where its owner makes none. */
PyObject *tensor_make(const views *v, const DLTensor *like, int rank,
                      int64_t *shape, DLDataType type);
/* Of the tensors' owner; NULL on processors. 0 where it does not say. */
int current_stream(const views *v, const DLDevice *device, void **stream);
/* The seed of a call, a number or a tensor of one. The call takes a tensor on
 * the device of q; one of the processor's is read here. 0: neither. */
int seed_add(views *v, PyObject *seed, const DLTensor *q, dil_arguments *a);
/* How the rows of a call lie: None, or the tuple of dil/_layout.py, of which the
 * end may be missing. What processors can count themselves is counted here: the
 * rows of the longest document, where they are 0. */
int layout_add(views *v, PyObject *lies, dil_arguments *a);

/* ---- the kernels of plans (_call_kinds.c) -------------------------------- */

/* The tensors for which a kernel of a plan is; `forward` is NULL in an entry
 * that is free. */
typedef struct kind {
  int64_t plan, heads, kv_heads, head_dim, value_dim;
  DLDevice device;
  DLDataType dtype;
  dil_kernel *forward, *backward; /* NULL: not told yet */
  int takes_scale, has_lse;
} kind;

/* 0 where no kernel for such tensors was told. */
int kind_find(int64_t plan, const DLTensor *q, const DLTensor *k,
              const DLTensor *v, kind *found);
/* learn(plan, q, k, v, kernel, its kernel with gradients or 0, takes_scale,
 * has_lse): for tensors as these, from now on */
PyObject *module_learn(PyObject *self, PyObject *given);
/* forget(): all that was learned */
PyObject *module_forget(PyObject *self, PyObject *none);

/* ---- the looks of Python (_call_watch.c) --------------------------------- */

/* Which of the watchers count. */
enum { WATCH_NONE, WATCH_BELOW_AUTOCAST, WATCH_ALL };
enum { MAY_GO, WANTS_GRADIENT, IS_OTHER };

/* watch((is_grad_enabled, is_autocast_enabled, others...)) */
PyObject *module_watch(PyObject *self, PyObject *functions);
/* Whether a compiler, a mode, a transform, autocast or a profiler looks on. */
int is_watched(int level);
/* Whether autograd must know of a call of these, or one of them holds its
 * numbers with the other sign. */
int tensors_state(PyObject *const *tensor, int count);
#endif
