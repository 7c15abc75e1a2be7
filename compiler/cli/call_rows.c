/* call_rows.c - q, k and v of a call: read from files, mapped, made of random
 * numbers, or left for the ranks to make. In: options. Out: tensors of a
 * call setup, and the sizes of those that come from files. */
#include "call_setup.h"
#include "runtime/base/status.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const char *const array_names[] = {"--q", "--k", "--v"};

/* Turns [N, H, D] into [1, N, H, D]. */
static void add_row_batch(dil_tensor *t) {
  if (t->rank != 3) return;
  const int64_t shape[] = {1, t->shape[0], t->shape[1], t->shape[2]};
  *t = dil_tensor_make(t->data, t->dtype, 4, shape);
}

static dil_status claim_array(call_setup *b, int32_t index, const char *path,
                              const dil_tensor *t) {
  const pattern *p = b->pattern;
  int64_t heads = index ? p->kv_heads : p->heads;
  int64_t dim = index == 2 ? p->value_dim : p->head_dim;
  bool turned = t->rank == 4 && t->shape[1] == heads && t->shape[3] == dim;
  if (t->rank != 4 || t->shape[2] != heads || t->shape[3] != dim)
    return dil_fail(DIL_INPUT,
                    "'%s' is %s, but %s of pattern '%s' is [B, %s, %lld, "
                    "%lld]%s",
                    path, call_tensor_shape_text(b->arena, t),
                    array_names[index] + 2, p->name, index ? "M" : "N",
                    (long long)heads, (long long)dim,
                    turned ? ": save x.transpose(0, 2, 1, 3)" : "");
  if (index && call_pages_of_file(b->options)) return DIL_OK;
  const char *who = arena_print(b->arena, "'%s'", path);
  dil_status status = call_claim_size(b, CALL_B, t->shape[0], who);
  return status ? status
                : call_claim_size(b, index ? CALL_M : CALL_N, t->shape[1], who);
}

/* ---- files --------------------------------------------------------------- */

/* SIGBUS: a mapped file became shorter. Prints why before the process ends. */
static void tell_shrunk(int number) {
  static const char text[] =
      "dil: error: an array has become shorter while it was read, or its disk "
      "fails\n";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  (void)written;
  (void)number;
  _exit(DIL_ENVIRONMENT);
}

static void watch_files(void) {
  struct sigaction action = {.sa_handler = tell_shrunk};
  sigaction(SIGBUS, &action, NULL);
}

/* Maps a file. Ranks that are processes map without --stream, so they read a
 * file whole where its layout cannot be mapped; --stream refuses that file. */
static dil_status open_array(const call_setup *b, const char *path,
                             dil_npy *file) {
  dil_status status = dil_npy_map(path, file);
  if (status != DIL_INPUT || !b->is_rank) return status;
  return dil_npy_read(path, file);
}

static dil_status map_tensor(call_setup *b, int32_t index, dil_tensor *tensor) {
  const char *path = b->options->array[index];
  dil_npy *file = &b->mapped[index];
  dil_status status = open_array(b, path, file);
  if (status) return status;
  watch_files();
  *tensor = file->tensor;
  add_row_batch(tensor);
  if (!call_type_is_float(tensor->dtype))
    return call_wrong_type(path, tensor->dtype, b->pattern->dtype);
  return claim_array(b, index, path, tensor);
}

static dil_status load_tensor(call_setup *b, int32_t index,
                              dil_tensor *tensor) {
  const char *path = b->options->array[index];
  dil_npy file;
  if (b->options->seen[OPTION_STREAM] || b->is_rank)
    return map_tensor(b, index, tensor);
  dil_status status = dil_npy_read(path, &file);
  if (status) return status;
  add_row_batch(&file.tensor);
  status = claim_array(b, index, path, &file.tensor);
  if (!status)
    status = call_take_array(b, path, b->pattern->dtype, &file, tensor);
  dil_npy_free(&file);
  return status;
}

/* Refuses a seed of which no random number is made. */
static dil_status check_seed(const options *o) {
  bool needed = !o->array[0] || !o->array[1] || !o->array[2];
  for (int32_t i = 0; i < o->input.count; i++)
    needed |= !strcmp(o->input.pair[i].value, "random");
  needed |= o->backward && (!o->d_o || (o->dlse && !strcmp(o->dlse, "random")));
  return needed || !o->seen[OPTION_RANDOM] || o->verb != VERB_run
             ? DIL_OK
             : dil_fail(DIL_USAGE,
                        "--random has no effect: --q, --k and --v are given");
}

dil_status call_rows_load(call_setup *b, dil_tensor loaded[3]) {
  dil_status status = check_seed(b->options);
  for (int32_t i = 0; !status && i < 3; i++) {
    if (b->options->array[i])
      status = load_tensor(b, i, &loaded[i]);
    else if (!b->options->seen[OPTION_RANDOM] && b->options->verb == VERB_run)
      status = dil_fail(DIL_USAGE,
                        "%s is not given: say %s F.npy or --random "
                        "SEED",
                        array_names[i], array_names[i]);
  }
  return status;
}

/* ---- random numbers ------------------------------------------------------ */

/* Makes q, k or v of random numbers. */
static dil_status make_tensor(call_setup *b, int32_t index, dil_tensor *t) {
  dil_status status = call_tensor_new(b, t->dtype, t->rank, t->shape, t);
  return status ? status
                : call_tensor_random(b, b->options->random, (uint32_t)index, t);
}

dil_status call_rows_make(call_setup *b, const dil_tensor loaded[3]) {
  dil_tensor *tensors[] = {&b->call.q, &b->call.k, &b->call.v};
  dil_status status = DIL_OK;
  b->absent = call_is_absent(b);
  b->call.random = b->options->random;
  for (int32_t i = 0; !status && i < 3; i++) {
    if (b->options->array[i]) *tensors[i] = loaded[i];
    else if (!b->absent && !b->is_rank)
      status = make_tensor(b, i, tensors[i]);
  }
  return status;
}

/* Returns whether making all of q, k and v takes seconds at most. Otherwise the
 * check makes only the elements that it looks at. */
static bool are_few(const call_setup *b) {
  enum { FEW = 1 << 26 }; /* elements */
  const dil_call *c = &b->call;
  return dil_tensor_count(&c->q) + dil_tensor_count(&c->k) +
             dil_tensor_count(&c->v) <= FEW;
}

bool call_has_rows(const call_setup *b) {
  const dil_call *c = &b->call;
  bool here = c->q.data && c->k.data && c->v.data;
  return here || (b->is_rank && are_few(b));
}

dil_status call_setup_complete(call_setup *b) {
  dil_tensor *tensors[] = {&b->call.q, &b->call.k, &b->call.v};
  dil_status status = DIL_OK;
  bool wanted = b->is_rank && call_has_rows(b);
  for (int32_t i = 0; !status && i < 3 && wanted; i++)
    if (!tensors[i]->data) status = make_tensor(b, i, tensors[i]);
  return status;
}
