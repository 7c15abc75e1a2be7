/* arguments_saved.c - the memory in which a run leaves what its gradients would make
 * again: the states of a GPU's passes, then the lists of the blocks that it chose.
 *
 * In: dil_arguments. Out: the call's `saved`, and the places of the lists; or an error
 * that says what is wrong with the memory. */
#include "context.h"
#include "usage.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"

enum { SAVED_ALIGN = 64, PART_ALIGN = 256 };

static int64_t state_bytes(const dil_kernel *k, const dil_call *call) {
  const device_kind *kind = k->context->kind;
  return kind->saved ? round_up(kind->saved(k, call), PART_ALIGN) : 0;
}

/* The bytes of the lists of all choices; `made`, if it is there, gets their places from
 * `at` on. */
static int64_t lay_lists(const dil_table *t, const dil_call *call, char *at,
                         dil_tensor *made) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < 2 * t->choice_count; i++) {
    const dil_choice *c = &t->choices[i / 2];
    const dil_tensor list =
        dil_choice_list(c, t->heads, call->q.shape[0], call->k.shape[1], i % 2 == 1,
                        made ? at + bytes : NULL);
    if (made) made[c->rows + i % 2 - t->input_count] = list;
    bytes += round_up(dil_tensor_count(&list) * (int64_t)sizeof(int32_t), PART_ALIGN);
  }
  return bytes;
}

int64_t arguments_saved_bytes(const dil_kernel *k, const dil_call *call) {
  return state_bytes(k, call) + lay_lists(k->source.table, call, NULL, NULL);
}

dil_tensor arguments_saved(const dil_kernel *k, const dil_call *call) {
  int64_t bytes = call->saved ? arguments_saved_bytes(k, call) : 0;
  return dil_tensor_make(bytes ? call->saved : NULL, DIL_U8, 1, &bytes);
}

static dil_status check_memory(const dil_arguments *g) {
  dil_status status = dil_usage_bytes("saved", g->saved, g->saved_bytes);
  if (status) return status;
  if (!g->saved && g->saved_bytes)
    return dil_fail(DIL_USAGE, "saved is NULL and has %lld bytes",
                    (long long)g->saved_bytes);
  if ((uintptr_t)g->saved % SAVED_ALIGN)
    return dil_fail(DIL_USAGE, "saved is not aligned to %d bytes", (int)SAVED_ALIGN);
  return DIL_OK;
}

/* A host asks before how much memory a call takes. */
static dil_status check_call(const dil_kernel *k, const dil_arguments *g,
                             const dil_call *call) {
  const char *other = call->packed.queries ? "offsets"
                      : call->pages.number ? "pages"
                      : g->selection_count ? "a selection"
                                           : NULL;
  if (other)
    return dil_fail(DIL_USAGE, "saved does not go with %s: leave it NULL", other);
  if (k->source.direction != DIL_BACKWARD)
    return dil_fail(DIL_USAGE, "kernel '%s' was made without gradients, and saved is "
                    "for these: leave it NULL", k->source.table->name);
  int64_t bytes = arguments_saved_bytes(k, call);
  if (bytes <= g->saved_bytes) return DIL_OK;
  return dil_fail(DIL_USAGE, "saved has %lld bytes, and this call takes %lld: "
                  "dil_kernel_saved says how many are enough",
                  (long long)g->saved_bytes, (long long)bytes);
}

dil_status arguments_read_saved(const dil_kernel *k, const dil_arguments *g,
                                arguments *a) {
  const dil_table *t = k->source.table;
  dil_status status = check_memory(g);
  if (status || !g->saved) return status;
  status = check_call(k, g, &a->call);
  if (status) return status;
  a->call.saved = g->saved;
  if (!t->choice_count) return DIL_OK;
  lay_lists(t, &a->call, (char *)g->saved + state_bytes(k, &a->call), a->made);
  a->call.made = a->made;
  return DIL_OK;
}
