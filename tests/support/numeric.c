/* numeric.c - one call of a pattern and the oracle's answer to it. In: a tested
 * pattern and a shape. Out: tensors in guarded memory, rows that no query may
 * see made NaN, and what is wrong with a kernel's result (numeric_error.c). */
#include "gpu.h"
#include "compiler/analysis/cover.h"
#include "compiler/cli/accuracy.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *must_allocate(void *memory) {
  return memory ? memory : (abort(), NULL);
}

static int64_t row_count(const data *d) {
  return d->shape.batch * d->shape.queries * d->pattern->heads;
}

static int64_t row_keys(const data *d, int64_t b) { /* M of this batch row */
  return d->shape.lengths ? d->shape.lengths[b] : d->shape.keys;
}

/* ---- filling ------------------------------------------------------------- */

static guard *guard_next(data *d) {
  if (d->guard_count == NUMERIC_GUARDS) abort();
  return &d->guards[d->guard_count++];
}

static void fill_tensor(data *d, int32_t tensor, const dil_tensor *t) {
  uint64_t element = 0;
  double size = tensor == 0 && d->shape.size != 0 ? d->shape.size : 1;
  int64_t at[4];
  for (at[0] = 0; at[0] < t->shape[0]; at[0]++)
    for (at[1] = 0; at[1] < t->shape[1]; at[1]++)
      for (at[2] = 0; at[2] < t->shape[2]; at[2]++)
        for (at[3] = 0; at[3] < t->shape[3]; at[3]++) {
          double number =
              size * dil_normal(d->shape.seed, (uint32_t)tensor, element++);
          if (d->shape.element) number = d->shape.element(tensor, at, number);
          dil_element_write(t->data, t->dtype, tensor_index(t, at), number);
        }
}

static dil_tensor make_tensor(data *d, int64_t rows, int64_t heads,
                              int64_t width) {
  int64_t shape[4] = {d->shape.batch, rows, heads, width};
  return guard_tensor(guard_next(d), d->pattern->dtype, shape,
                      d->shape.layout, !d->shape.at_start);
}

/* Small numbers: runs of equal integers along the last index, so that masks
 * over documents keep some pairs and drop others; floats between 0 and 1. */
static double plain_input(const data *d, int32_t index, const int64_t *at,
                          uint64_t element) {
  const dil_input *input = &d->pattern->input[index];
  double normal = dil_normal(d->shape.seed, 16u + (uint32_t)index, element);
  switch (input->dtype) {
  case DIL_I32: return (double)(at[input->rank - 1] / 23);
  case DIL_U8: return normal < 0.5;
  default: return fabs(normal) / 4;
  }
}

/* ---- lists of blocks ----------------------------------------------------- */

enum { LIST = 3, LIST_REST = 5 }; /* entries of a block, and those behind all */

/* The table that an input is a list of; NULL: none. */
static const dil_input *list_table(const data *d, int32_t index) {
  const pattern *p = d->pattern;
  for (int32_t made = p->input_count; made < pattern_reads(p); made++)
    if (dil_input_is_table(&p->input[made]) &&
        (p->input[made].rows == index || p->input[made].cols == index))
      return &p->input[made];
  return NULL;
}

static int64_t list_size(const data *d, int32_t index) {
  if (list_table(d, index)->keys) return d->shape.keys / 5 + LIST_REST;
  int64_t queries = list_table(d, index)->query_block;
  return (d->shape.keys + queries - 1) / queries * LIST + LIST_REST;
}

/* Lists of 2, 4, 2, 4, ... entries, in no order; those that no list has are no
 * blocks. */
static double list_element(const data *d, int32_t index, const int64_t *at,
                           uint64_t element) {
  const dil_input *made = list_table(d, index);
  int64_t last = at[d->pattern->input[index].rank - 1];
  int64_t keys = (d->shape.keys + made->block - 1) / made->block;
  if (made->keys && last % 5 == 3) return -1; /* none */
  if (made->rows == index && !made->keys) return (double)(last * LIST - last % 2);
  if (!made->keys && last >= list_size(d, index) - LIST_REST)
    return (double)keys + 7;
  double normal = dil_normal(d->shape.seed, 16u + (uint32_t)index, element);
  if (keys) return (double)((int64_t)(fabs(normal) * 1e6) % keys);
  return made->keys ? -1 : 0;
}

/* Whether a list of keys has this one. */
static value read_keys(const data *d, const dil_input *made, const int32_t *at) {
  const dil_tensor *list = &d->inputs[made->rows];
  int32_t last = list->rank - 1;
  int64_t place[DIL_RANK_MAX];
  for (int32_t axis = 0; axis < last; axis++) place[axis] = at[axis];
  for (int64_t e = 0; e < list->shape[last]; e++) {
    place[last] = e;
    if (dil_element_read(list->data, DIL_I32, tensor_index(list, place)) ==
        at[last])
      return (value){1, 1};
  }
  return (value){0};
}

static value read_list(const data *d, const dil_input *made,
                       const int32_t *at) {
  if (made->keys) return read_keys(d, made, at);
  int32_t own = d->pattern->input_count;
  const dil_tensor *lists = made->rows < own ? d->inputs : d->call.made - own;
  const dil_tensor *rows = &lists[made->rows], *cols = &lists[made->cols];
  int64_t place[DIL_RANK_MAX], line = rows->rank - 1;
  for (int32_t axis = 0; axis < line; axis++) place[axis] = at[axis];
  place[line] = at[line];
  if (at[line] < 0 || at[line] + 1 >= rows->shape[line]) return (value){0};
  int64_t e = (int64_t)dil_element_read(rows->data, DIL_I32,
                                        tensor_index(rows, place));
  place[line]++;
  int64_t end = (int64_t)dil_element_read(rows->data, DIL_I32,
                                          tensor_index(rows, place));
  for (; e < end; e++) {
    place[line] = e;
    if (dil_element_read(cols->data, DIL_I32, tensor_index(cols, place)) ==
        at[line + 1])
      return (value){1, 1};
  }
  return (value){0};
}

static void fill_input(data *d, int32_t index) {
  const dil_tensor *t = &d->inputs[index];
  int64_t at[DIL_RANK_MAX] = {0}, count = dil_tensor_count(t);
  for (int64_t e = 0; e < count; e++) {
    int64_t rest = e;
    for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
      at[axis] = rest % t->shape[axis];
      rest /= t->shape[axis];
    }
    double number = d->shape.input ? d->shape.input(index, at, t->shape)
                    : list_table(d, index)
                        ? list_element(d, index, at, (uint64_t)e)
                        : plain_input(d, index, at, (uint64_t)e);
    dil_element_write(t->data, t->dtype, e, number);
  }
}

static void make_input(data *d, int32_t index) {
  const dil_input *input = &d->pattern->input[index];
  expr_point point = {.B = (int32_t)d->shape.batch,
                      .N = (int32_t)d->shape.queries,
                      .M = (int32_t)d->shape.keys};
  int64_t shape[DIL_RANK_MAX], count = 1;
  for (int32_t axis = 0; axis < input->rank; axis++) {
    shape[axis] =
        expr_eval(d->pattern->dimension[index][axis], &point, false).integer;
    if (shape[axis] == DIL_ANY_SIZE) shape[axis] = list_size(d, index);
    count *= shape[axis];
  }
  guard *g = guard_next(d);
  *g = guard_new((size_t)count * dil_dtype_size(input->dtype), true);
  d->inputs[index] =
      dil_tensor_make(g->bytes, input->dtype, input->rank, shape);
  fill_input(d, index);
}

/* ---- blocks that a call chooses ------------------------------------------ */

/* Means have NaN where a row has it, so that no row may be spoilt. The oracle's
 * answer waits for the lists: those of the kernel, or of data_choose. */
static bool make_lists(data *d) {
  oracle_lists *lists = must_allocate(calloc(1, sizeof *lists));
  if (oracle_lists_open(d->pattern, &d->call, lists)) abort();
  d->lists = lists;
  return d->call.made != NULL;
}

/* "" or what is wrong with the lists of a run. */
static const char *lists_problem(const data *d) {
  static choice_accuracy v;
  if (!d->call.made) return "";
  if (choice_accuracy_check(d->pattern, &d->call, 1, &v)) abort();
  return v.good ? "" : v.fault;
}

/* ---- rows that nobody may see -------------------------------------------- */

/* An element of a declared input as expressions see it: 0 outside. */
static value read_input(void *context, int32_t index, const int32_t *at) {
  const data *d = context;
  const dil_tensor *t = &d->inputs[index];
  int64_t place[DIL_RANK_MAX];
  if (index >= d->pattern->input_count)
    return read_list(d, &d->pattern->input[index], at);
  for (int32_t axis = 0; axis < t->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= t->shape[axis]) return (value){0};
    place[axis] = at[axis];
  }
  double real = dil_element_read(t->data, t->dtype, tensor_index(t, place));
  return (value){.integer = (int64_t)real, .real = real};
}

static bool query_sees(const data *d, int64_t b, int64_t h, int64_t n,
                       int64_t j) {
  int64_t keys = row_keys(d, b), t = n + keys - d->shape.queries;
  expr_point point = {.b = (int32_t)b, .h = (int32_t)h, .i = (int32_t)t,
                      .j = (int32_t)j, .B = (int32_t)d->shape.batch,
                      .N = (int32_t)d->shape.queries, .M = (int32_t)keys,
                      .input = read_input, .context = (void *)d};
  for (int32_t i = 0; i < d->pattern->branch_count; i++)
    if (pattern_reaches(d->pattern, i, h, t, j, &point)) return true;
  return false;
}

/* Looks from the diagonal outwards: most rows are seen from near by. */
static bool row_is_seen(const data *d, int64_t b, int64_t kv_head, int64_t j) {
  int64_t group = d->pattern->heads / d->pattern->kv_heads;
  int64_t queries = d->shape.queries;
  if (j >= row_keys(d, b)) return false;
  int64_t near = j - (row_keys(d, b) - queries);
  near = near < 0 ? 0 : near >= queries ? queries - 1 : near;
  for (int64_t step = 0; step < queries; step++)
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
      if ((near + step < queries && query_sees(d, b, h, near + step, j)) ||
          (near - step >= 0 && query_sees(d, b, h, near - step, j)))
        return true;
  return false;
}

static void spoil_row(const dil_tensor *t, int64_t b, int64_t j, int64_t h) {
  for (int64_t x = 0; x < t->shape[3]; x++) {
    int64_t index = tensor_index(t, (int64_t[]){b, j, h, x});
    dil_element_write(t->data, t->dtype, index, x % 3 == 2 ? INFINITY : NAN);
  }
}

static void spoil_unseen(data *d) {
  for (int64_t b = 0; b < d->shape.batch; b++)
    for (int64_t h = 0; h < d->pattern->kv_heads; h++)
      for (int64_t j = 0; j < d->shape.keys; j++)
        if (!row_is_seen(d, b, h, j)) {
          spoil_row(&d->call.k, b, j, h);
          spoil_row(&d->call.v, b, j, h);
        }
}

/* ---- the oracle's answer ------------------------------------------------- */

static void ask_oracle(data *d) {
  const pattern *p = d->pattern;
  free(d->o);
  free(d->lse);
  int64_t B = d->shape.batch, N = d->shape.queries, H = p->heads;
  size_t rows = (size_t)(B * N * H);
  d->o = must_allocate(calloc(rows * (size_t)p->value_dim + 1, sizeof *d->o));
  d->lse = must_allocate(calloc(rows + 1, sizeof *d->lse));
  for (int64_t b = 0; b < B; b++)
    for (int64_t n = 0; n < N; n++)
      for (int64_t h = 0; h < H; h++)
        oracle_row(p, &d->call, b, n, h,
                   d->o + ((b * N + n) * H + h) * p->value_dim,
                   d->lse + (b * H + h) * N + n);
}

void data_choose(data *d) {
  if (!d->call.made) return;
  if (oracle_choose(d->pattern, &d->call, ORACLE_NUMBERS, d->call.made)) abort();
  ask_oracle(d);
}

void data_explain(data *d) {
  const pattern *p = d->pattern;
  int64_t N = d->shape.queries, H = p->heads;
  dot_error exactness = dot_error_of(p, gpu_wanted());
  d->explained =
      must_allocate(calloc((size_t)row_count(d) + 1, sizeof *d->explained));
  for (int64_t row = 0; row < row_count(d); row++) {
    int64_t b = row / (N * H), n = row / H % N;
    expr_point point = {.b = (int32_t)b, .B = (int32_t)d->shape.batch,
                        .N = (int32_t)N, .M = (int32_t)row_keys(d, b),
                        .input = read_input, .context = d};
    d->explained[row] =
        rounding_of_row(p, &d->call, &point, n, row % H, exactness);
  }
}

/* ---- a call -------------------------------------------------------------- */

static void make_outputs(data *d) {
  const pattern *p = d->pattern;
  const call_shape *s = &d->shape;
  d->call.o = make_tensor(d, s->queries, p->heads, p->value_dim);
  if (!pattern_has_lse(p)) return;
  int64_t shape[3] = {s->batch, p->heads, s->queries};
  guard *g = guard_next(d);
  *g = guard_new((size_t)(shape[0] * shape[1] * shape[2]) * sizeof(float),
                 !s->at_start);
  d->call.lse = dil_tensor_make(g->bytes, DIL_F32, 3, shape);
}

static void make_lengths(data *d, const int32_t *lengths) {
  if (lengths == NULL) return;
  size_t size = (size_t)d->shape.batch * sizeof(int32_t);
  guard *g = guard_next(d);
  *g = guard_new(size, true);
  memcpy(g->bytes, lengths, size);
  d->call.lengths = (const int32_t *)(void *)g->bytes;
}

data *data_new(const tested_pattern *s, call_shape shape) {
  data *d = must_allocate(calloc(1, sizeof *d));
  const pattern *p = s->pattern;
  d->pattern = p;
  memcpy(d->name, s->name, sizeof d->name);
  d->shape = shape;
  d->call.size = sizeof d->call;
  d->call.train = shape.train;
  d->call.seed = shape.dropout_seed;
  d->call.scale = shape.scale;
  d->call.q = make_tensor(d, shape.queries, p->heads, p->head_dim);
  d->call.k = make_tensor(d, shape.keys, p->kv_heads, p->head_dim);
  d->call.v = make_tensor(d, shape.keys, p->kv_heads, p->value_dim);
  const dil_tensor *const rows[] = {&d->call.q, &d->call.k, &d->call.v};
  for (int32_t i = 0; i < 3 && gpu_computes(); i++) fill_tensor(d, i, rows[i]);
  make_lengths(d, shape.lengths);
  d->call.inputs = d->inputs;
  d->call.input_count = p->input_count;
  for (int32_t i = 0; i < p->input_count; i++) make_input(d, i);
  bool chooses = make_lists(d);
  if (!shape.clean && !chooses && gpu_computes()) spoil_unseen(d);
  for (int32_t i = 0; i < d->guard_count; i++) guard_protect(&d->guards[i]);
  if (gpu_computes()) ask_oracle(d);
  make_lengths(d, shape.told);
  make_outputs(d);
  if (shape.offsets) documents_pack(d);
  return d;
}

void data_free(data *d) {
  if (d == NULL) return;
  for (int32_t i = 0; i < d->guard_count; i++) guard_free(&d->guards[i]);
  free(d->o);
  free(d->lse);
  free(d->explained);
  oracle_lists_free(d->lists);
  free(d->lists);
  free(d);
}

/* ---- running and comparing ----------------------------------------------- */

void tensor_fill_nan(const dil_tensor *t) {
  int64_t at[DIL_RANK_MAX] = {0};
  bool more = dil_tensor_count(t) > 0;
  for (; more; more = tensor_next(t, at))
    dil_element_write(t->data, t->dtype, tensor_index(t, at), NAN);
}

enum { POOL_MAX = 16 };
static dil_threads *threads[POOL_MAX + 1]; /* by number of threads */
static pool *scratch;

/* The leak checker stops over threads that still run at the end. */
static void free_pools(void) {
  for (int32_t i = 0; i <= POOL_MAX; i++) dil_threads_free(threads[i]);
  dil_pool_free(scratch);
}

static dil_threads *pool_of(int32_t count) {
  static bool registered;
  if (count <= 0) count = 2;
  if (count > POOL_MAX) abort();
  if (!registered) atexit(free_pools);
  registered = true;
  if (scratch == NULL) scratch = must_allocate(pool_new_host(NULL, NULL));
  if (threads[count] == NULL)
    threads[count] = must_allocate(dil_threads_new(count));
  return threads[count];
}

/* Compiled for the device when a run first needs it; every other seed's knows
 * of parts. */
static dil_status run_on_gpu(data *d, kernel_made *k) {
  if (!k->cuda) {
    k->compiled++;
    k->cuda = d->shape.whole
                  ? gpu_kernel_make_whole(k->plan, k->problem, sizeof k->problem)
                  : gpu_kernel_make(k->plan, d->shape.seed % 2 == 0, k->problem,
                                    sizeof k->problem);
  }
  return k->cuda ? gpu_run(d, k->cuda) : DIL_INTERNAL;
}

void data_forget(data *d) {
  tensor_fill_nan(&d->call.o);
  if (d->call.lse.data) tensor_fill_nan(&d->call.lse);
}

dil_status data_run(data *d, kernel_made *k) {
  data_forget(d);
  if (gpu_wanted()) return run_on_gpu(d, k);
  dil_threads *workers = pool_of(k->way.threads);
  return cpu_kernel_run(k->kernel, workers, scratch, &d->call);
}

dil_status data_run_backward(kernel_made *k, const dil_backward_call *call) {
  dil_threads *workers = pool_of(k->way.threads); /* makes `scratch`, too */
  return cpu_kernel_backward(k->kernel, workers, scratch, call);
}

static guard *guard_at(data *d, const void *bytes) {
  for (int32_t i = 0; i < d->guard_count; i++) {
    const guard *g = &d->guards[i];
    if ((const unsigned char *)bytes >= g->map &&
        (const unsigned char *)bytes < g->map + g->map_size)
      return &d->guards[i];
  }
  abort();
}

const char *data_problem(data *d, kernel_made *k) {
  static char text[700];
  if (k->problem[0] || gpu_leaves_out()) return k->problem;
  guard *o = guard_at(d, d->call.o.data);
  guard *lse = d->call.lse.data ? guard_at(d, d->call.lse.data) : NULL;
  guard_snapshot(o);
  if (lse) guard_snapshot(lse);
  dil_status status = data_run(d, k);
  if (status != DIL_OK) {
    snprintf(text, sizeof text, "%s: %s", dil_status_text(status),
             dil_last_error());
    return text;
  }
  if (!gpu_computes()) return "";
  if (!guard_intact(o, &d->call.o)) return "wrote beside the elements of o";
  if (lse && !guard_intact(lse, &d->call.lse))
    return "wrote beside the elements of lse";
  const char *lists = lists_problem(d);
  if (lists[0]) return lists;
  if (d->call.made) ask_oracle(d);
  return data_compare(d);
}
