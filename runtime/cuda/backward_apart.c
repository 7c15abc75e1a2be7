/* backward_apart.c - gradients where each pass has facts of its own: with `mean`
 * and `sum` it has a softmax of its own, with `gradient detached` an o of its own
 * beside the joint lse. In `detached` the pattern's sinks move that lse alone.
 *
 * In: a prepared call. Out: launches. Each pass runs forward once more, which
 * leaves its lse and o in a state; facts follow from these, and gradients from
 * the facts. The fast kernels add to sums in f32. If one of these is not finite,
 * the general kernels make all passes again, and so the facts of each are kept. */
#include "backward.h"
#include "general.h"
#include "runtime/rowset/walk.h"

/* The passes of a call: their state, their facts, and the kernels. */
typedef struct backward_alone {
  cuda_run forward; /* at the state of the pass */
  bool additive;    /* the state's lse is that of the pass's softmax */
  bool fast;        /* the fast kernels make the gradients */
  bool opens;       /* nothing stands in the state before the pass */
  bool saved;       /* the run forward has left the states */
  float *facts;     /* of the first pass */
  int64_t rows;     /* [B, N, H] */
  hopper_gradient_space space;
} backward_alone;

/* Returns whether all passes open the rows that they see. */
static bool backward_opens(const backward_run *b, const cuda_run *r) {
  const dil_table *t = b->kernel->table;
  bool opens = !t->sinks;
  for (int32_t p = 0; p < t->pass_count && opens; p++) {
    const cuda_code *code = codes_choose(&b->kernel->codes, r, p);
    opens = code && code->family->state_stride;
  }
  return opens;
}

static dil_status backward_begin_alone(backward_run *b, backward_alone *w) {
  const dil_table *t = b->kernel->table;
  bool fast = !backward_fast_refusal(b);
  cuda_run r = backward_forward_run(b);
  *w = (backward_alone){.additive = combine_is_additive(t),
                        .fast = fast,
                        .saved = backward_has_saved(b),
                        .facts = b->gradient.facts,
                        .rows = cuda_rows(&b->run) * t->heads};
  if (!w->additive && backward_makes_lse(b)) r.state_lse += w->rows;
  w->forward = r;
  w->opens = fast && !w->saved && backward_opens(b, &r);
  dil_status status = fast ? backward_begin_fast(b, &w->space) : DIL_OK;
  if (status || !w->additive || w->opens || w->saved) return status;
  return general_begin(&w->forward, b->codes.general);
}

/* The state of a pass that the run forward has left. */
static void backward_take_state(const backward_run *b, backward_alone *w, int32_t p) {
  saved_states s = kernel_saved(b->kernel, &b->call->forward);
  w->forward.state_o = s.o + p * w->rows * b->kernel->table->value_dim;
  w->forward.state_lse = s.lse + p * w->rows;
}

/* Makes the state of a pass from nothing but its sinks, if it is not there. */
static dil_status backward_make_state(backward_run *b, backward_alone *w,
                                      int32_t p) {
  cuda_run *r = &w->forward;
  dil_status status = DIL_OK;
  if (w->saved) {
    backward_take_state(b, w, p);
    return DIL_OK;
  }
  if (w->additive && p) r->state_lse += w->rows;
  if (w->additive && p && r->table->sinks)
    r->state_o += w->rows * r->table->value_dim;
  if (w->opens) {
    r->opening = p;
    status = hopper_gradient_mark(r, r->state_lse, w->rows);
  } else if (!w->additive) {
    status = general_begin_alone(r, p, b->codes.general);
  }
  return status ? status : backward_advance(b, r, p);
}

static void backward_choose_facts(backward_run *b, const backward_alone *w,
                                  int32_t p) {
  b->gradient.facts = w->facts + (w->fast ? p * w->rows * DIL_FACTS : 0);
}

static dil_status backward_run_alone(backward_run *b, backward_alone *w,
                                     int32_t p) {
  const cuda_run *r = &w->forward;
  dil_status status = backward_make_state(b, w, p);
  if (status) return status;
  if (w->additive) backward_take_lse(b, r->state_lse);
  backward_take_o(b, r->state_o);
  backward_choose_facts(b, w, p);
  status = w->fast ? backward_run_fast_alone(b, p, r->state_lse, &w->space)
                   : backward_make_facts(b);
  if (!status && !w->fast) status = backward_run_pass(b, p, p == 0);
  if (status) return status;
  return backward_run_sinks(b, w->additive, r->table->passes[p].branches);
}

/* The general kernels make all gradients again, if some sum was not finite. */
static dil_status backward_end_alone(backward_run *b, const backward_alone *w) {
  bool ended = false;
  dil_status status = backward_end_fast(b, &w->space);
  if (!status) status = backward_end_without_general(b, &ended);
  if (status || ended) return status;
  for (int32_t p = 0; p < b->kernel->table->pass_count && !status; p++) {
    backward_choose_facts(b, w, p);
    status = backward_run_pass(b, p, p == 0);
  }
  b->gradient.only_if = NULL;
  return status;
}

dil_status backward_run_apart(backward_run *b) {
  const dil_table *t = b->kernel->table;
  backward_alone w;
  dil_status status = backward_begin_alone(b, &w);
  for (int32_t p = 0; p < t->pass_count && !status; p++)
    status = backward_run_alone(b, &w, p);
  if (!status && w.fast) status = backward_end_alone(b, &w);
  bool sinks = !w.additive && t->sinks && backward_wants_inputs(b);
  if (status || !sinks) return status;
  b->gradient.o.data = NULL;
  backward_choose_facts(b, &w, 0);
  status = backward_make_facts(b);
  return status ? status : backward_run_sinks(b, true, 0);
}
