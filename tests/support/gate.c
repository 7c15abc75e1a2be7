/* gate.c - see gate.h. In: patterns. Out: cubins of the kernels that pass the gate. */
#include "gate.h"
#include <check.h>
#include <string.h>

bool gate_has_compiler(void) {
  static int32_t told;
  if (gpu_compiler()->common.versions()) return true;
  if (!told++) printf("skipped: %s\n", dil_last_error());
  return false;
}

plan *gate_plan(const tested_pattern *s, unsigned force) {
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  plan *p = plan_make(s->memory, diag_new(s->memory), s->pattern, force);
  ck_assert_ptr_nonnull(p);
  return p;
}

void gate_compile_family(const gpu_request *request, const char *family,
                         gpu_codes *made) {
  gpu_codes all = {0};
  dil_status status = gpu_compiler()->estimate(request, &all);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  for (int32_t i = 0; i < all.count; i++) {
    if (strcmp(all.code[i].family, family)) continue;
    status = gpu_compiler()->variant(request, all.variant[i],
                                     &made->code[made->count]);
    if (status == DIL_UNSUPPORTED) continue;
    ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
    made->count++;
  }
}

plan *gate_backward_plan(const tested_pattern *s) {
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  return plan_make_for(s->memory, diag_new(s->memory), s->pattern, 0,
                       DIL_BACKWARD, NULL);
}
