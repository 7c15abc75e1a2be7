/* call_setup.c - makes a call from the command line. In: options and a pattern.
 * Out: a dil_call whose sizes agree, or a message that names the two sources of
 * sizes that disagree. See call_setup.h. */
#include "call_setup.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const size_names[CALL_SIZE_COUNT] = {"batch rows", "queries",
                                                        "keys"};

dil_status call_setup_open(arena *a, const options *o, const pattern *p,
                           call_setup *b) {
  *b = (call_setup){.arena = a, .options = o, .pattern = p};
  b->call = (dil_call){.size = sizeof b->call,
                       .seed = o->seed,
                       .train = o->train,
                       .scale = o->scale};
  dil_context_options processor = DIL_CONTEXT_OPTIONS_INIT;
  processor.threads = (int32_t)o->threads;
  processor.log = message_log;
  processor.log_level = DIL_LOG_WARNING;
  dil_status status = dil_context_new(&processor, &b->context);
  if (!status) b->threads = dil_context_workers(b->context);
  return status;
}

void call_setup_free(call_setup *b) {
  for (int32_t i = 0; i < b->buffer_count; i++) free(b->buffer[i]);
  for (int32_t i = 0; i < 3; i++) dil_npy_free(&b->mapped[i]);
  call_outputs_discard(b);
  call_sparse_free(b);
  dil_context_free(b->context);
}

/* ---- sizes --------------------------------------------------------------- */

dil_status call_claim_size(call_setup *b, call_size which, int64_t size,
                           const char *who) {
  if (b->claimed[which] && b->size[which] != size)
    return dil_fail(DIL_INPUT, "%s has %lld %s, but %s has %lld", who,
                    (long long)size, size_names[which], b->claimed[which],
                    (long long)b->size[which]);
  if (b->claimed[which]) return DIL_OK;
  b->size[which] = size;
  b->claimed[which] = who;
  return DIL_OK;
}

static dil_status claim_options(call_setup *b) {
  const options *o = b->options;
  dil_status status = DIL_OK;
  if (o->seen[OPTION_BATCH])
    status = call_claim_size(b, CALL_B, o->batch, "--batch");
  if (!status && o->seen[OPTION_SEQ])
    status = call_claim_size(b, CALL_N, o->seq, "--seq");
  if (!status && o->seen[OPTION_KEYS])
    status = call_claim_size(b, CALL_M, o->keys, "--keys");
  return status;
}

/* A grid has as many queries and keys as cells; of a first extent that is any,
 * about `seq`. */
static dil_status claim_grid(call_setup *b, int64_t seq) {
  const grid *g = &b->pattern->grid;
  int64_t cells = dil_grid_cells(g), plane = dil_grid_plane(g);
  if (!g->axes) return DIL_OK;
  if (!cells && b->claimed[CALL_N] && b->size[CALL_N] % plane)
    return dil_fail(DIL_INPUT, "%s has %lld queries, but the grid of pattern "
                    "'%s' has a multiple of %lld cells", b->claimed[CALL_N],
                    (long long)b->size[CALL_N], b->pattern->name,
                    (long long)plane);
  if (!cells && b->claimed[CALL_N]) cells = b->size[CALL_N];
  if (!cells && seq > 0) cells = round_up(seq, plane);
  if (!cells) return DIL_OK;
  dil_status status = call_claim_size(b, CALL_N, cells, "the grid");
  return status ? status : call_claim_size(b, CALL_M, cells, "the grid");
}

/* Defaults: one batch row, `seq` queries, as many keys as queries. */
static dil_status default_sizes(call_setup *b, int64_t seq) {
  if (!b->claimed[CALL_N] && seq < 0)
    return dil_fail(DIL_USAGE,
                    "the number of queries is not given: say --seq N");
  call_claim_size(b, CALL_B, b->claimed[CALL_B] ? b->size[CALL_B] : 1, "one");
  call_claim_size(b, CALL_N, b->claimed[CALL_N] ? b->size[CALL_N] : seq, "one");
  call_claim_size(b, CALL_M,
                  b->claimed[CALL_M] ? b->size[CALL_M] : b->size[CALL_N],
                  "--seq");
  return DIL_OK;
}

/* Shapes of q, k, v, o without data: enough for cover and the masks. */
static void shape_call(call_setup *b) {
  const pattern *p = b->pattern;
  const int64_t *s = b->size;
  const int64_t q[] = {s[CALL_B], s[CALL_N], p->heads, p->head_dim};
  const int64_t k[] = {s[CALL_B], s[CALL_M], p->kv_heads, p->head_dim};
  const int64_t v[] = {s[CALL_B], s[CALL_M], p->kv_heads, p->value_dim};
  const int64_t out[] = {s[CALL_B], s[CALL_N], p->heads, p->value_dim};
  const int64_t lse[] = {s[CALL_B], p->heads, s[CALL_N]};
  b->call.q = dil_tensor_make(NULL, p->dtype, 4, q);
  b->call.k = dil_tensor_make(NULL, p->dtype, 4, k);
  b->call.v = dil_tensor_make(NULL, p->dtype, 4, v);
  b->call.o = dil_tensor_make(NULL, p->dtype, 4, out);
  b->call.lse = dil_tensor_make(NULL, DIL_F32, 3, lse);
}

dil_status call_setup_sizes(call_setup *b, int64_t seq) {
  dil_status status = claim_options(b);
  if (!status) status = claim_grid(b, seq);
  if (!status) status = default_sizes(b, seq);
  if (!status) shape_call(b);
  return status;
}

/* ---- declared inputs ----------------------------------------------------- */

static bool expr_reads(const expr *e, int32_t input) {
  if (e->op == EXPR_INPUT && e->integer == input) return true;
  for (int32_t i = 0; i < e->count; i++)
    if (expr_reads(e->arg[i], input)) return true;
  return false;
}

static bool branch_keeps_by(const branch *b, int32_t input) {
  for (int32_t i = 0; i < b->mask_count; i++)
    if (expr_reads(b->mask[i], input)) return true;
  for (int32_t level = 0; level < 2; level++)
    for (int32_t i = 0; i < b->keeps[level].count; i++) {
      const keep *k = &b->keeps[level].keep[i];
      if (expr_reads(k->condition, input)) return true;
    }
  return false;
}

bool call_input_decides(const pattern *p, int32_t input) {
  if (call_lists_of(p, input) >= 0) return true;
  for (int32_t i = 0; i < p->branch_count; i++)
    if (branch_keeps_by(&p->branch[i], input)) return true;
  return false;
}

static const char *given_input(const options *o, const char *name) {
  for (int32_t i = 0; i < o->input.count; i++)
    if (!strcmp(o->input.pair[i].name, name)) return o->input.pair[i].value;
  return NULL;
}

static dil_status check_array_names(const call_setup *b) {
  const pattern *p = b->pattern;
  const char *names[DIL_INPUT_MAX];
  for (int32_t i = 0; i < p->input_count; i++) names[i] = p->input[i].name;
  for (int32_t g = 0; g < b->options->input.count; g++) {
    const char *name = b->options->input.pair[g].name;
    int32_t i = 0;
    while (i < p->input_count && strcmp(names[i], name)) i++;
    if (given_input(b->options, name) != b->options->input.pair[g].value)
      return dil_fail(DIL_USAGE, "--input %s is given twice", name);
    if (i < p->input_count) continue;
    char guess[DIAG_GUESS];
    return dil_fail(DIL_INPUT, "pattern '%s' has no input '%s'%s", p->name,
                    name, diag_guess(name, names, p->input_count, guess));
  }
  return DIL_OK;
}

/* The dimensions of an input for the sizes of the call. */
static dil_status input_shape(const call_setup *b, int32_t index,
                              int64_t *shape) {
  expr_point point = {.B = (int32_t)documents_count(&b->call),
                      .N = (int32_t)documents_queries(&b->call),
                      .M = (int32_t)documents_keys(&b->call)};
  for (int32_t axis = 0; axis < b->pattern->input[index].rank; axis++) {
    shape[axis] =
        expr_eval(b->pattern->dimension[index][axis], &point, false).integer;
    if (shape[axis] < 0 && shape[axis] != DIL_ANY_SIZE)
      return dil_fail(DIL_INPUT,
                      "dimension %d of input '%s' is %lld with %d queries and "
                      "%d keys",
                      axis, b->pattern->input[index].name,
                      (long long)shape[axis], point.N, point.M);
  }
  return DIL_OK;
}

dil_status call_wrong_type(const char *path, dil_dtype holds,
                           dil_dtype wanted) {
  return dil_fail(DIL_INPUT, "'%s' holds %s, not %s: save x.astype('%s')", path,
                  call_type_is_float(holds) ? "floats"
                  : holds == DIL_U8         ? "u8"
                                            : "integers",
                  dil_dtype_name(wanted),
                  call_type_is_float(wanted) ? "float32"
                  : wanted == DIL_U8         ? "uint8"
                                             : "int32");
}

dil_status call_take_array(call_setup *b, const char *path, dil_dtype dtype,
                           const dil_npy *file, dil_tensor *tensor) {
  bool floats = call_type_is_float(dtype);
  if (call_type_is_float(file->tensor.dtype) != floats ||
      (!floats && file->tensor.dtype != dtype))
    return call_wrong_type(path, file->tensor.dtype, dtype);
  dil_status status =
      call_tensor_new(b, dtype, file->tensor.rank, file->tensor.shape, tensor);
  return status ? status : call_tensor_convert(b, &file->tensor, tensor);
}

static bool has_same_shape(const dil_tensor *a, const dil_tensor *b) {
  return a->rank == b->rank &&
         !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
}

/* Adds a batch of one, where `want` has it and the array has not. */
static void add_input_batch(const dil_tensor *want, dil_tensor *t) {
  if (t->rank + 1 != want->rank || want->shape[0] != 1) return;
  int64_t shape[DIL_RANK_MAX] = {1};
  memcpy(shape + 1, t->shape, (size_t)t->rank * sizeof *shape);
  *t = dil_tensor_make(t->data, t->dtype, want->rank, shape);
}

dil_status call_load_array(call_setup *b, const char *what, const char *path,
                           const dil_tensor *want, dil_tensor *tensor) {
  dil_npy file;
  dil_status status = dil_npy_read(path, &file);
  if (status) return status;
  add_input_batch(want, &file.tensor);
  dil_tensor sized = *want;
  int32_t last = sized.rank - 1;
  if (file.tensor.rank == sized.rank && sized.shape[last] == DIL_ANY_SIZE)
    sized.shape[last] = file.tensor.shape[last];
  if (!has_same_shape(&file.tensor, &sized))
    status = dil_fail(DIL_INPUT, "%s is %s here, but '%s' is %s", what,
                      call_tensor_shape_text(b->arena, want), path,
                      call_tensor_shape_text(b->arena, &file.tensor));
  else
    status = call_take_array(b, path, want->dtype, &file, tensor);
  dil_npy_free(&file);
  return status;
}

static dil_status make_input(call_setup *b, int32_t index, bool needed) {
  const dil_input *in = &b->pattern->input[index];
  const char *path = given_input(b->options, in->name);
  int64_t shape[DIL_RANK_MAX];
  dil_status status = input_shape(b, index, shape);
  if (status) return status;
  b->inputs[index] = dil_tensor_make(NULL, in->dtype, in->rank, shape);
  if (!path && !needed) return DIL_OK;
  if (!path)
    return dil_fail(DIL_INPUT,
                    "input '%s' of pattern '%s' is not given: say --input "
                    "%s=F.npy or --input %s=random",
                    in->name, b->pattern->name, in->name, in->name);
  const char *what = arena_print(b->arena, "input '%s'", in->name);
  dil_tensor want = b->inputs[index];
  if (strcmp(path, "random"))
    return call_load_array(b, what, path, &want, &b->inputs[index]);
  if (shape[in->rank - 1] == DIL_ANY_SIZE)
    shape[in->rank - 1] = call_lists_length(b, index);
  status = call_tensor_new(b, in->dtype, in->rank, shape, &b->inputs[index]);
  if (status || call_lists_random(b, index, 3 + (uint32_t)index)) return status;
  return call_tensor_random(b, b->options->random, 3 + (uint32_t)index,
                            &b->inputs[index]);
}

dil_status call_setup_inputs(call_setup *b, bool all) {
  dil_status status = check_array_names(b);
  for (int32_t i = 0; !status && i < b->pattern->input_count; i++)
    status = make_input(b, i, all || call_input_decides(b->pattern, i));
  b->call.inputs = b->inputs;
  b->call.input_count = b->pattern->input_count;
  if (!status) status = call_lists_make(b);
  if (!status) status = call_choices_make(b);
  if (!status && !all) status = call_choices_expect(b);
  return status;
}

dil_status call_setup_shapes(call_setup *b, int64_t seq) {
  const options *o = b->options;
  dil_tensor loaded[3] = {0};
  dil_status status = DIL_OK;
  if ((o->array[0] || o->array[1]) && !call_has_choices(b->pattern))
    return dil_fail(DIL_USAGE, "pattern '%s' chooses no blocks by their scores: "
                    "--q and --k have no effect", b->pattern->name);
  if (!o->array[0] != !o->array[1])
    return dil_fail(DIL_USAGE, "blocks are chosen by q and k: say both --q and "
                    "--k");
  if (o->array[0] && o->seen[OPTION_STREAM])
    return dil_fail(DIL_USAGE, "--q and --k cannot be used with --stream");
  status = call_rows_load(b, loaded);
  if (!status) status = call_setup_sizes(b, seq);
  if (!status && o->array[0]) {
    b->call.q = loaded[0];
    b->call.k = loaded[1];
  }
  return status ? status : call_setup_inputs(b, false);
}

/* ---- the rest of a call ------------------------------------------------- */

static dil_status make_lengths(call_setup *b) {
  const char *path = b->options->lengths;
  if (!path) return DIL_OK;
  int64_t shape[] = {b->size[CALL_B]};
  dil_tensor lengths, want = dil_tensor_make(NULL, DIL_I32, 1, shape);
  dil_npy file;
  dil_status status = dil_npy_read(path, &file);
  if (status) return status;
  if (!has_same_shape(&file.tensor, &want))
    status = dil_fail(DIL_INPUT, "lengths are [%lld] here, but '%s' is %s",
                      (long long)shape[0], path,
                      call_tensor_shape_text(b->arena, &file.tensor));
  else
    status = call_take_array(b, path, DIL_I32, &file, &lengths);
  dil_npy_free(&file);
  if (status) return status;
  b->call.lengths = lengths.data;
  for (int64_t i = 0; i < shape[0]; i++)
    if (b->call.lengths[i] < 0 || b->call.lengths[i] > b->size[CALL_M])
      return dil_fail(DIL_INPUT,
                      "'%s' has %d at batch row %lld, which is not "
                      "in 0..%lld",
                      path, b->call.lengths[i], (long long)i,
                      (long long)b->size[CALL_M]);
  return DIL_OK;
}

/* Refuses --scale, --seed and --train where the pattern does not use them, and
 * a missing --scale. */
static dil_status check_call_options(const call_setup *b) {
  const options *o = b->options;
  bool wanted = b->pattern->scale_kind == SCALE_RUNTIME;
  if (wanted && !o->seen[OPTION_SCALE])
    return dil_fail(DIL_INPUT,
                    "the scale of pattern '%s' is given at run "
                    "time: say --scale X",
                    b->pattern->name);
  if (!wanted && o->seen[OPTION_SCALE])
    return dil_fail(DIL_INPUT,
                    "pattern '%s' fixes its scale: --scale needs `scale "
                    "runtime;` in it",
                    b->pattern->name);
  if (o->seen[OPTION_SEED] && !o->train)
    return dil_fail(DIL_USAGE,
                    "--seed is the seed of dropout, and needs --train");
  if (o->train && !(b->pattern->dropout > 0))
    return dil_fail(DIL_INPUT,
                    "pattern '%s' drops nothing: --train needs `dropout P;` "
                    "in it",
                    b->pattern->name);
  return DIL_OK;
}

dil_status call_setup_tensors(call_setup *b, int64_t seq) {
  dil_tensor loaded[3];
  dil_status status = check_call_options(b);
  if (!status) status = call_choices_check(b);
  if (!status) status = call_packed_check(b->options);
  if (!status) status = call_pages_check(b->options);
  if (!status) status = call_outputs_check(b->arena, b->options);
  if (!status) status = call_rows_load(b, loaded);
  if (!status) status = call_packed_load(b);
  if (!status) status = call_pages_load(b, loaded);
  if (!status) status = call_setup_sizes(b, seq);
  if (!status) status = call_pages_size(b);
  if (!status) status = call_setup_inputs(b, true);
  if (!status) status = call_rows_make(b, loaded);
  if (!status) status = make_lengths(b);
  if (!status) status = call_pages_make(b);
  return status ? status : call_outputs_make(b);
}

dil_status call_setup_follow(call_setup *b,
                             const int64_t size[CALL_SIZE_COUNT]) {
  dil_tensor loaded[3];
  dil_status status = check_call_options(b);
  if (!status) status = claim_options(b);
  for (int32_t i = 0; i < CALL_SIZE_COUNT && !status; i++)
    status = call_claim_size(b, (call_size)i, size[i], "rank 0");
  if (!status) status = call_rows_load(b, loaded);
  if (!status) status = call_setup_sizes(b, -1);
  if (!status) status = call_setup_inputs(b, true);
  return status ? status : call_rows_make(b, loaded);
}

/* All bits set is a NaN of every float type. */
void call_setup_wipe(call_setup *b) {
  dil_tensor *o = &b->call.o, *lse = &b->call.lse;
  if (!b->out.map)
    memset(o->data, 0xFF,
           (size_t)dil_tensor_count(o) * dil_dtype_size(o->dtype));
  if (lse->data && !b->lse.map)
    memset(lse->data, 0xFF, (size_t)dil_tensor_count(lse) * sizeof(float));
}

/* ---- what masks see ------------------------------------------------------ */

/* Element at[] of input `index`; 0 outside of it. */
static value read_input_element(void *context, int32_t index,
                                const int32_t *at) {
  const dil_tensor *t = &((const call_setup *)context)->inputs[index];
  int64_t place = 0;
  for (int32_t axis = 0; axis < t->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= t->shape[axis]) return (value){0};
    place += at[axis] * t->stride[axis];
  }
  const call_setup *b = context;
  bool bits = dil_input_is_bits(&b->pattern->input[index]);
  double element = bits ? dil_lists_bit(t, place)
                        : dil_element_read(t->data, t->dtype, place);
  return (value){call_type_is_float(t->dtype) ? 0 : (int64_t)element, element};
}

static int64_t rows_of_document(const int32_t *offsets, int64_t number) {
  return (int64_t)offsets[number + 1] - offsets[number];
}

int64_t call_setup_queries(const call_setup *b, int64_t b_row) {
  const dil_packed *p = &b->call.packed;
  return p->queries ? rows_of_document(p->queries, b_row) : b->size[CALL_N];
}

int64_t call_setup_keys(const call_setup *b, int64_t b_row) {
  const dil_packed *p = &b->call.packed;
  if (p->keys) return rows_of_document(p->keys, b_row);
  return b->call.lengths ? b->call.lengths[b_row] : b->size[CALL_M];
}

expr_point call_setup_point(const call_setup *b, int64_t b_row) {
  return (expr_point){.b = (int32_t)b_row,
                      .B = (int32_t)documents_count(&b->call),
                      .N = (int32_t)call_setup_queries(b, b_row),
                      .M = (int32_t)call_setup_keys(b, b_row),
                      .input = read_input_element,
                      .context = (void *)b};
}
