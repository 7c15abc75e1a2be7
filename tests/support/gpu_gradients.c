/* gpu_gradients.c - see gpu_gradients.h. In: a backward call whose tensors are
 * guarded on the host. Out: the same with the gradients of the device, guard
 * bytes and all. */
#include "gpu_gradients.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

enum { GIVEN = 2, MOVED = GIVEN + GRADIENT_RESULTS }; /* dO and dlse; all */

typedef struct moved {
  guard *memory;
  dil_tensor *from; /* on the host */
  dil_tensor *to;   /* of the call on the device */
  void *there;
} moved;

static void move_up(moved *m) {
  *m->to = *m->from;
  if (!m->memory->map || !m->from->data) return;
  m->there = gpu_memory(guard_inner(m->memory), guard_inner_size(m->memory));
  m->to->data = (char *)m->there +
                ((unsigned char *)m->from->data - guard_inner(m->memory));
}

static dil_status move_down(moved *m, bool wanted) {
  dil_status status = DIL_OK;
  if (m->there && wanted)
    status =
        gpu_module()->download(gpu_device(), guard_inner(m->memory), m->there,
                               (int64_t)guard_inner_size(m->memory));
  if (m->there) gpu_module()->give(gpu_device(), m->there);
  return status;
}

/* The tensor of the device's call in the place of one of the host's. */
static dil_tensor *counterpart(const gradient_data *g, dil_backward_call *on,
                               const dil_tensor *of) {
  ptrdiff_t away = (const char *)of - (const char *)&g->call;
  return (dil_tensor *)(void *)((char *)on + away);
}

static int32_t list_moved(gradient_data *g, dil_backward_call *on,
                          moved *list) {
  int32_t count = 0;
  list[count++] = (moved){&g->output, &g->call.output, &on->output, NULL};
  list[count++] = (moved){&g->lse, &g->call.lse, &on->lse, NULL};
  for (int32_t i = 0; i < g->result_count; i++) {
    gradient_result *r = &g->result[i];
    list[count++] =
        (moved){&r->memory, r->tensor, counterpart(g, on, r->tensor), NULL};
  }
  return count;
}

/* Runs the call in workspace of the host's own. One byte less is refused. */
static dil_status backward_in_own(dil_cuda_kernel *made,
                                  const dil_backward_call *call) {
  const dil_cuda_module *cuda = gpu_module();
  dil_backward_call own = *call;
  dil_status status =
      cuda->backward_workspace(made, call, &own.workspace_bytes);
  if (!status)
    status = cuda->take(gpu_device(), own.workspace_bytes, &own.workspace);
  if (status) return status;
  own.workspace_bytes--;
  if (cuda->backward(made, &own, NULL) != DIL_USAGE)
    status = dil_fail(DIL_INTERNAL, "a workspace of %lld bytes was not refused",
                      (long long)own.workspace_bytes);
  own.workspace_bytes++;
  if (!status) status = cuda->backward(made, &own, NULL);
  if (!status) status = cuda->wait(gpu_device(), NULL);
  cuda->give(gpu_device(), own.workspace);
  return status;
}

static char kernels_taken[sizeof(((dil_backward_facts *)0)->variant)];

const char *gpu_gradient_kernels(void) { return kernels_taken; }

/* Asks which kernels take the call. */
static dil_status ask_kernels(dil_cuda_kernel *made, const dil_backward_call *on) {
  dil_backward_facts facts;
  dil_status status = gpu_module()->backward_describe(made, on, &facts);
  memcpy(kernels_taken, facts.variant, sizeof kernels_taken);
  return status;
}

/* `ran`: a run forward that has left what gradients would make again, or NULL. */
static dil_status backward_with(gradient_data *g, dil_cuda_kernel *made,
                                bool own_workspace, const dil_call *ran) {
  gpu_copy forward;
  moved list[MOVED];
  dil_backward_call on = g->call;
  gpu_copy_up(g->forward, &forward);
  on.forward = forward.call;
  if (ran) on.forward.saved = ran->saved;
  if (ran && g->forward->lists) on.forward.made = ran->made;
  on.forward.chosen = ran && g->forward->lists;
  if (!g->call.forward.lse.data) on.forward.lse.data = NULL;
  int32_t count = list_moved(g, &on, list);
  for (int32_t i = 0; i < count; i++) move_up(&list[i]);
  dil_status status = ask_kernels(made, &on);
  if (!status)
    status = own_workspace ? backward_in_own(made, &on)
                           : gpu_module()->backward(made, &on, NULL);
  if (!status) status = gpu_module()->wait(gpu_device(), NULL);
  char why[400]; /* a lost context refuses all that follows */
  snprintf(why, sizeof why, "%s", status ? dil_last_error() : "");
  for (int32_t i = 0; i < count; i++) {
    dil_status down = move_down(&list[i], !status && i >= GIVEN);
    if (!status) status = down;
  }
  gpu_copy_down(g->forward, &forward, false);
  return why[0] ? dil_fail(status, "%s", why) : status;
}

dil_status gpu_backward(gradient_data *g, dil_cuda_kernel *made,
                        bool own_workspace) {
  return backward_with(g, made, own_workspace, NULL);
}

/* ---- one pattern --------------------------------------------------------- */

/* All bytes of the results; malloced. */
static unsigned char *results_of(const gradient_data *g, size_t *size) {
  *size = 0;
  for (int32_t i = 0; i < g->result_count; i++)
    *size += guard_inner_size(&g->result[i].memory);
  unsigned char *all = malloc(*size + 1), *next = all;
  if (!all) abort();
  for (int32_t i = 0; i < g->result_count; i++) {
    size_t bytes = guard_inner_size(&g->result[i].memory);
    memcpy(next, guard_inner(&g->result[i].memory), bytes);
    next += bytes;
  }
  return all;
}

static dil_status run_afresh(gradient_data *g, dil_cuda_kernel *made,
                             bool own_workspace) {
  gradient_data_forget(g);
  return gpu_backward(g, made, own_workspace);
}

static const char *run_twice(gradient_data *g, dil_cuda_kernel *made,
                             bool any_order) {
  static char text[1000];
  size_t size;
  dil_status status = run_afresh(g, made, false);
  if (status) {
    snprintf(text, sizeof text, "%s: %s", dil_status_text(status),
             dil_last_error());
    return text;
  }
  if (!gpu_computes()) return "";
  const char *problem = gradient_data_compare(g);
  if (problem[0]) return problem;
  unsigned char *first = results_of(g, &size);
  status = run_afresh(g, made, true);
  unsigned char *second = results_of(g, &size);
  bool same = !status && !memcmp(first, second, size);
  free(first);
  free(second);
  if (!status && any_order) return gradient_data_compare(g);
  if (!status) return same ? "" : "a run in own workspace has other bits";
  snprintf(text, sizeof text, "in own workspace: %s", dil_last_error());
  return text;
}

/* A run forward leaves on the device its states, in memory of their own, and among the
 * tensors of its copy the lists of what it chose. */
typedef struct left {
  data *of;
  gpu_copy on;
  void *states;
} left;

static dil_status leave(left *l, dil_cuda_kernel *made) {
  const dil_cuda_module *cuda = gpu_module();
  data_choose(l->of);
  data_forget(l->of);
  gpu_copy_up(l->of, &l->on);
  int64_t bytes = cuda->saved(made, &l->on.call);
  dil_status status = bytes ? cuda->take(gpu_device(), bytes, &l->states) : DIL_OK;
  if (!status && bytes) status = cuda->fill(gpu_device(), l->states, 0xff, bytes);
  l->on.call.saved = l->states;
  if (!status) status = cuda->run(made, &l->on.call, NULL);
  return status ? status : cuda->wait(gpu_device(), NULL);
}

/* The same gradients with what a run forward has left for them. */
static const char *run_saved(const tested_pattern *s, gradient_shape shape,
                             gradient_data *g, dil_cuda_kernel *made) {
  static char text[1000];
  left l = {.of = data_new(s, shape.call)};
  dil_status status = leave(&l, made);
  gradient_data_forget(g);
  if (!status) status = backward_with(g, made, false, &l.on.call);
  gpu_copy_down(l.of, &l.on, !status);
  if (l.states) gpu_module()->give(gpu_device(), l.states);
  snprintf(text, sizeof text, "%s",
           status ? dil_last_error() : data_compare(l.of));
  data_free(l.of);
  return text[0] ? text : gradient_data_compare(g);
}

/* Whether a run leaves something. */
static bool leaves_something(const gradient_data *g, const dil_cuda_kernel *made) {
  return gpu_computes() && (gpu_module()->saved(made, &g->forward->call) ||
                            g->forward->lists);
}

typedef enum gradient_way { AS_IT_COMES, IN_ANY_ORDER, WHOLE } gradient_way;

static dil_cuda_kernel *make_kernel(const plan *p, gradient_way way, char *text,
                                    size_t size) {
  if (way == IN_ANY_ORDER) return gpu_kernel_make_any_order(p, text, size);
  if (way == WHOLE) return gpu_kernel_make_whole(p, text, size);
  return gpu_kernel_make(p, false, text, size);
}

static const char *problem_of(const tested_pattern *s, unsigned force,
                              gradient_shape shape, gradient_way way) {
  static char text[1500];
  arena *memory = arena_new();
  plan *p = plan_make_for(memory, diag_new(memory), s->pattern, force,
                          DIL_BACKWARD, NULL);
  text[0] = 0;
  if (!p || gpu_leaves_out()) return text;
  dil_cuda_kernel *made = make_kernel(p, way, text, sizeof text);
  if (made) {
    gradient_data *g = gradient_data_new(s, shape);
    snprintf(text, sizeof text, "%s", run_twice(g, made, way == IN_ANY_ORDER));
    if (!text[0] && leaves_something(g, made))
      snprintf(text, sizeof text, "%s", run_saved(s, shape, g, made));
    gradient_data_free(g);
  }
  gpu_kernel_unmake(made);
  arena_free(memory);
  return text;
}

const char *gpu_gradient_problem(const tested_pattern *s, unsigned force,
                                 gradient_shape shape) {
  return problem_of(s, force, shape, AS_IT_COMES);
}

const char *gpu_gradient_problem_whole(const tested_pattern *s, unsigned force,
                                       gradient_shape shape) {
  return problem_of(s, force, shape, WHOLE);
}

const char *gpu_gradient_problem_any_order(const tested_pattern *s,
                                           unsigned force,
                                           gradient_shape shape) {
  return problem_of(s, force, shape, IN_ANY_ORDER);
}
