/* arguments_pages.c - the pages of a call, from a host's DLPack tensor.
 *
 * In: dil_arguments. Out: the pages of a dil_call, or an error that names what is
 * wrong with them. Numbers of pages are read later, by whoever runs the call. */
#include "context.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"

static dil_status check_shape(const dil_tensor *t, int64_t batch) {
  char got[DIL_TENSOR_TEXT];
  if (t->dtype != DIL_I32 || t->rank != 2 || t->shape[0] != batch)
    return dil_fail(DIL_USAGE, "pages must be i32 [%lld, pages of a batch row], "
                    "got %s", (long long)batch, dil_tensor_text(t, got));
  if (t->shape[1] > 1 && t->stride[1] != 1)
    return dil_fail(DIL_USAGE, "the last dimension of pages must be contiguous, "
                    "its stride is %lld", (long long)t->stride[1]);
  if (t->data || !dil_tensor_count(t)) return DIL_OK;
  return dil_fail(DIL_USAGE, "pages has no memory");
}

/* What pages do not go with. */
static dil_status check_company(const dil_kernel *k, const dil_call *call) {
  const dil_table *table = k->source.table;
  if (call->packed.queries) return dil_pages_refuse(call, "offsets_q");
  if (!call->lengths)
    return dil_fail(DIL_USAGE, "pages want lengths, the keys that each batch row "
                    "has");
  return call->train && table->dropout > 0 ? dil_pages_refuse(call, "dropout")
                                           : DIL_OK;
}

dil_status arguments_read_pages(const dil_kernel *k, const DLTensor *pages,
                                dil_call *call) {
  static const int32_t none[1]; /* no batch row has a page */
  dil_tensor t;
  if (!pages) return DIL_OK;
  dil_status status =
      arguments_read_tensor(k->context, "pages", DIL_I32, pages, &t);
  if (!status) status = check_shape(&t, call->q.shape[0]);
  if (status) return status;
  call->pages = (dil_call_pages){t.data ? t.data : none, t.shape[1],
                                 t.stride[0]};
  return check_company(k, call);
}

dil_tensor arguments_pages(const dil_call *call) {
  const dil_call_pages *p = &call->pages;
  const int64_t shape[] = {p->number ? call->q.shape[0] : 0, p->columns};
  dil_tensor t = dil_tensor_make((void *)(uintptr_t)p->number, DIL_I32, 2, shape);
  t.stride[0] = p->stride;
  return t;
}
