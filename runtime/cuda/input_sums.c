/* input_sums.c - see input_sums.h. Many thread blocks add to the sums of an
 * input at once. Where the plan says that pairs of other rows, heads or batch
 * rows never read one element, their tiles share a copy of the sums; other
 * tiles are dealt out to lists, each with copies of its own. The number of
 * copies follows from the shape of the call alone, and so do the bits of the
 * gradient. */
#include "input_sums.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/launch/nvidia.h"

enum {
  LISTS = 512,          /* blocks that are wanted at once */
  SUM_BYTES = 64 << 20, /* of all copies, unless one alone has more */
  LIST_ROWS = 64        /* about the rows of a tile */
};

/* ---- how many copies ----------------------------------------------------- */

/* Bits of DIL_APART_... for this call. A dimension of one is apart. Positions
 * of batch rows with lengths of their own stand in tiles of other numbers. */
static unsigned input_apart(const cuda_run *r, int32_t input) {
  unsigned apart = r->table->inputs[input].apart;
  if (r->B <= 1) apart |= DIL_APART_B;
  if (r->table->heads == 1) apart |= DIL_APART_H;
  bool own = r->call->lengths || r->call->packed.queries;
  if (own && !(apart & DIL_APART_B))
    apart &= ~(unsigned)DIL_APART_I;
  return apart;
}

/* Returns whether no two pairs of a visit read one element. The heads of a group
 * may share a tile. */
static bool input_is_single(const cuda_run *r, unsigned apart) {
  return (apart & DIL_APART_I) && (apart & DIL_APART_J) &&
         (apart & DIL_APART_H || r->table->heads == r->table->kv_heads);
}

/* Sets how many lists there are for tiles that may add to one element, and the
 * copies of each: one for all warps of a block, or one a warp. Where memory is
 * short, the warps of a block take turns. */
static void input_share_out(const cuda_run *r, unsigned apart, int32_t warps,
                            int64_t limit, dil_input_sums *of) {
  int64_t tiles = (r->N + LIST_ROWS - 1) / LIST_ROWS, heads = r->table->heads;
  int64_t kinds = (apart & DIL_APART_I ? tiles : 1) *
                  (apart & DIL_APART_H ? heads : 1) *
                  (apart & DIL_APART_B ? r->B : 1);
  int64_t rivals = tiles * heads * r->B / maximum(kinds, 1);
  bool shared = of->single || ((apart & DIL_APART_I) && (apart & DIL_APART_H));
  of->turns = !shared && limit < warps;
  of->copies = shared || of->turns ? 1 : warps;
  int64_t lists = (LISTS + kinds - 1) / maximum(kinds, 1);
  lists = minimum(minimum(lists, rivals), limit / of->copies);
  of->lists = (int)maximum(lists, 1);
}

static int input_type(dil_dtype dtype) {
  return dtype == DIL_F16    ? DIL_INPUT_F16
         : dtype == DIL_BF16 ? DIL_INPUT_BF16
                             : DIL_INPUT_F32;
}

static void input_fill_places(const dil_tensor *t, dil_input_sums *of) {
  of->count = dil_tensor_count(t);
  of->gradient = t->data;
  of->gradient_type = input_type(t->dtype);
  for (int32_t axis = 0; axis < 4; axis++) {
    of->dim[axis] = axis < t->rank ? t->shape[axis] : 1;
    of->gradient_stride[axis] = axis < t->rank ? t->stride[axis] : 0;
  }
  int64_t stride = 1;
  for (int32_t axis = 3; axis >= 0; axis--) {
    of->stride[axis] = stride;
    stride *= of->dim[axis];
  }
}

static int64_t input_plan(const cuda_run *r, int32_t input,
                          const dil_tensor *to, int32_t warps, int64_t bytes,
                          dil_input_sums *of) {
  unsigned apart = input_apart(r, input);
  *of = (dil_input_sums){.input = input,
                         .apart = {!!(apart & DIL_APART_I),
                                   !!(apart & DIL_APART_H),
                                   !!(apart & DIL_APART_B)}};
  of->single = input_is_single(r, apart);
  input_fill_places(to, of);
  int64_t one = of->count * (int64_t)sizeof(double);
  input_share_out(r, apart, warps, bytes / one, of);
  of->direct =
      (apart & DIL_APART_ALL) == DIL_APART_ALL && to->dtype == DIL_F32;
  if (!of->direct) return round_up(of->lists * of->copies * one, 256);
  for (int32_t axis = 0; axis < 4; axis++)
    of->stride[axis] = of->gradient_stride[axis];
  of->data = of->gradient;
  return 0;
}

void input_sums_plan(const cuda_run *r, const dil_tensor *gradients,
                     int32_t warps, input_sums *out) {
  const dil_table *t = r->table;
  int32_t input[DIL_INPUT_MAX];
  out->count = 0;
  for (int32_t i = 0; i < t->input_count; i++) {
    if (!gradients[i].data || !dil_tensor_count(&gradients[i])) continue;
    input[out->count] = i;
    out->to[out->count++] = &gradients[i];
  }
  for (int32_t i = 0; i < out->count; i++)
    out->bytes[i] = input_plan(r, input[i], out->to[i],
                               t->inputs[input[i]].in_scores ? warps : 1,
                               SUM_BYTES / out->count, &out->of[i]);
}

/* Sums that were to be the gradient itself get one copy, as they would have were
 * the gradient of another type. */
void input_sums_add_to(input_sums *s, double *sums) {
  for (int32_t i = 0; i < s->count; i++) {
    dil_input_sums *of = &s->of[i];
    int64_t stride = 1, copies = (int64_t)of->lists * of->copies;
    for (int32_t axis = 3; axis >= 0; axis--) {
      of->stride[axis] = of->gradient_stride[axis] = stride;
      stride *= of->dim[axis];
    }
    of->direct = false;
    of->gradient = sums;
    of->gradient_type = DIL_INPUT_SUM;
    s->bytes[i] = round_up(of->count * copies * (int64_t)sizeof(double), 256);
    sums += of->count;
  }
}

int64_t input_sums_bytes(const input_sums *s) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < s->count; i++) bytes += s->bytes[i];
  return bytes;
}

/* ---- launches ------------------------------------------------------------ */

dil_status input_sums_begin(const gradient_run *g, char *memory,
                            const cuda_code *code, input_sums *s) {
  const cuda_driver *driver = g->of->device->driver;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < s->count && !status; i++) {
    if (s->of[i].direct) { /* without lists the end writes 0 */
      dil_input_sums none = s->of[i];
      none.lists = 0;
      status = gradient_input_end(g, &none, code);
      continue;
    }
    s->of[i].data = memory;
    status =
        cuda_check(driver,
                   driver->fill_ordered((cu_pointer)(uintptr_t)memory, 0,
                                        (size_t)s->bytes[i], g->of->stream),
                   "clear sums");
    memory += s->bytes[i];
  }
  return status;
}

dil_status input_sums_pass(const gradient_run *g, const input_sums *s,
                           int32_t pass, const cuda_code *code) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < s->count && !status; i++)
    if (g->of->table->inputs[s->of[i].input].in_scores)
      status = gradient_input_pass(g, pass, &s->of[i], code);
  return status;
}

dil_status input_sums_sinks(const gradient_run *g, const input_sums *s,
                            bool own, uint64_t branches,
                            const cuda_code *code) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < s->count && !status; i++) {
    dil_input_sums of = s->of[i];
    of.own = own;
    of.among = branches;
    if (g->of->table->inputs[of.input].in_sinks)
      status = gradient_input_sinks(g, &of, code);
  }
  return status;
}

dil_status input_sums_end(const gradient_run *g, const input_sums *s,
                          const cuda_code *code) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < s->count && !status; i++)
    if (!s->of[i].direct) status = gradient_input_end(g, &s->of[i], code);
  return status;
}
