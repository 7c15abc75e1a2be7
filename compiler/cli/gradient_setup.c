/* gradient_setup.c - makes a call for gradients from the command line. In:
 * options and a call with its tensors. Out: a dil_backward_call, and .npy files
 * after the run. See gradient_setup.h. */
#include "gradient_setup.h"
#include "runtime/base/status.h"
#include <string.h>

/* Of random numbers: q, k and v are tensors 0 to 2, inputs follow. */
enum { DO_NUMBER = 3 + DIL_INPUT_MAX, DLSE_NUMBER };

/* ---- options ------------------------------------------------------------- */

dil_status gradient_setup_check(const options *o) {
  static const struct {
    option_id id;
    const char *name;
  } parts[] = {{OPTION_DO, "do"}, {OPTION_DLSE, "dlse"}, {OPTION_DQ, "dq"},
               {OPTION_DK, "dk"}, {OPTION_DV, "dv"},     {OPTION_GRAD, "grad"}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (o->seen[parts[i].id] && !o->backward)
      return dil_fail(DIL_USAGE, "--%s needs --backward", parts[i].name);
  return DIL_OK;
}

static dil_status no_gradient(const pattern *p, const dil_input *input) {
  if (!dil_dtype_is_real(input->dtype))
    return dil_fail(DIL_INPUT,
                    "input '%s' of pattern '%s' is %s and has no "
                    "gradient",
                    input->name, p->name, dil_dtype_name(input->dtype));
  return dil_fail(DIL_INPUT,
                  "input '%s' of pattern '%s' has no gradient: its "
                  "declaration would end with `gradient;`",
                  input->name, p->name);
}

/* Refuses --grad for a name that is no input with a gradient. */
static dil_status check_gradient_name(const call_setup *b, const char *name) {
  const pattern *p = b->pattern;
  const char *names[DIL_INPUT_MAX];
  char guess[DIAG_GUESS];
  int32_t count = 0;
  for (int32_t i = 0; i < p->input_count; i++) {
    const dil_input *input = &p->input[i];
    if (!strcmp(input->name, name))
      return input->gradient ? DIL_OK : no_gradient(p, input);
    if (input->gradient) names[count++] = input->name;
  }
  return dil_fail(DIL_INPUT, "pattern '%s' has no input '%s'%s", p->name, name,
                  diag_guess(name, names, count, guess));
}

static const char *file_of(const call_setup *b, const char *name) {
  const options *o = b->options;
  const char *const rows[] = {"dq", "dk", "dv"};
  for (int32_t i = 0; i < 3; i++)
    if (!strcmp(rows[i], name)) return o->gradient[i];
  for (int32_t i = 0; i < o->grad.count; i++)
    if (!strcmp(o->grad.pair[i].name, name)) return o->grad.pair[i].value;
  return NULL;
}

static dil_status check_gradient_names(const call_setup *b) {
  const settings *grad = &b->options->grad;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < grad->count && !status; i++) {
    status = check_gradient_name(b, grad->pair[i].name);
    for (int32_t k = 0; k < i && !status; k++)
      if (!strcmp(grad->pair[i].name, grad->pair[k].name))
        status =
            dil_fail(DIL_USAGE, "--grad %s is given twice", grad->pair[i].name);
  }
  return status;
}

/* ---- tensors --------------------------------------------------------------
 */

static dil_status make_random(call_setup *b, uint32_t number, dil_tensor *to) {
  dil_status status = call_tensor_new(b, to->dtype, to->rank, to->shape, to);
  return status ? status
                : call_tensor_random(b, b->options->random, number, to);
}

/* From a file, or standard normals where `path` is NULL or "random". */
static dil_status make_given(call_setup *b, const char *what, const char *path,
                             uint32_t number, const dil_tensor *like,
                             dil_tensor *to) {
  if (path && strcmp(path, "random"))
    return call_load_array(b, what, path, like, to);
  if (!path && !b->options->seen[OPTION_RANDOM] && b->options->verb == VERB_run)
    return dil_fail(DIL_USAGE, "--do is not given: say --do F.npy or --random "
                               "SEED");
  *to = dil_tensor_make(NULL, like->dtype, like->rank, like->shape);
  if (b->is_rank && number == DO_NUMBER) return DIL_OK;
  return make_random(b, number, to);
}

static dil_status make_dlse(call_setup *b, dil_backward_call *call) {
  const options *o = b->options;
  if (!o->dlse) return DIL_OK;
  if (!pattern_has_lse(b->pattern))
    return dil_fail(DIL_INPUT,
                    "pattern '%s' has no lse, and none of its "
                    "gradient: its branches are normalised each by itself",
                    b->pattern->name);
  return make_given(b, "dlse", o->dlse, DLSE_NUMBER, &b->call.lse, &call->lse);
}

/* All bits set is a NaN of every float type. */
static dil_status make_gradient_room(call_setup *b, const dil_tensor *like,
                                     dil_tensor *to) {
  dil_status status =
      call_tensor_new(b, like->dtype, like->rank, like->shape, to);
  if (!status)
    memset(to->data, 0xFF,
           (size_t)dil_tensor_count(to) * dil_dtype_size(to->dtype));
  return status;
}

uint32_t gradient_setup_number(void) { return DO_NUMBER; }

dil_status gradient_setup_room(call_setup *b, dil_backward_call *call) {
  if (call->dq.data) return DIL_OK;
  dil_status status = make_gradient_room(b, &b->call.q, &call->dq);
  if (!status) status = make_gradient_room(b, &b->call.k, &call->dk);
  return status ? status : make_gradient_room(b, &b->call.v, &call->dv);
}

dil_status gradient_setup_complete(call_setup *b, dil_backward_call *call) {
  return call->output.data ? DIL_OK
                           : make_random(b, DO_NUMBER, &call->output);
}

dil_status gradient_setup_make(call_setup *b, dil_backward_call *call) {
  const pattern *p = b->pattern;
  *call = (dil_backward_call){.size = sizeof *call};
  dil_status status = check_gradient_names(b);
  if (!status)
    status = make_given(b, "do", b->options->d_o, DO_NUMBER, &b->call.o,
                        &call->output);
  if (!status) status = make_dlse(b, call);
  if (!status && (!b->is_rank || b->call.o.data))
    status = gradient_setup_room(b, call);
  for (int32_t i = 0; i < p->input_count && !status; i++)
    if (p->input[i].gradient)
      status = make_gradient_room(b, &b->inputs[i], &call->inputs[i]);
  return status;
}

/* ---- files ----------------------------------------------------------------
 */

dil_status gradient_setup_each(const pattern *p, dil_backward_call *call,
                               gradient_visit *visit, void *context) {
  dil_status status = visit(context, "dq", &call->dq);
  if (!status) status = visit(context, "dk", &call->dk);
  if (!status) status = visit(context, "dv", &call->dv);
  for (int32_t i = 0; i < p->input_count && !status; i++)
    if (p->input[i].gradient)
      status = visit(context, p->input[i].name, &call->inputs[i]);
  return status;
}

static dil_status write_gradient(void *context, const char *name,
                                 dil_tensor *gradient) {
  call_setup *b = context;
  const char *path = file_of(b, name);
  return path ? call_write_wide(b, path, gradient) : DIL_OK;
}

dil_status gradient_setup_write(call_setup *b, const dil_backward_call *call) {
  dil_backward_call written = *call;
  return gradient_setup_each(b->pattern, &written, write_gradient, b);
}
