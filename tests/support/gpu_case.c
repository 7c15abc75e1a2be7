/* gpu_case.c - see gpu_case.h. */
#include "gpu_case.h"
#include "gpu.h"
#include <check.h>
#include <math.h>
#include <string.h>

const int32_t ragged_lengths[] = {1, 0, 1100, 777};
const int32_t outside_lengths[] = {INT32_MAX, 299, -7};
const int32_t nearest_lengths[] = {300, 299, 0};

double bad_values(int32_t tensor, const int64_t *at, double number) {
  static const double bad[] = {NAN, INFINITY, -INFINITY};
  bool here = at[1] % 97 == 9 && at[3] == at[1] % 3;
  return tensor == 2 && here ? bad[at[1] % 3] : number;
}

void gpu_case_compute(const gpu_case *c, page_layout pages, const char *takes,
                      const char *leaves) {
  tested_pattern *s = tested_pattern_new("a case", c->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", c->text, s->problem);
  data *d = data_new(s, c->shape);
  if (pages.rows) paged_lay_out(d, pages);
  kernel_made *k = kernel_make(s, (recipe){.force = c->force});
  ck_assert_msg(!k->refused, "%s: %s", c->text, k->problem);
  const char *problem = data_problem(d, k);
  ck_assert_msg(problem[0] == 0, "%s: %s", c->text, problem);
  if (k->cuda && takes) { /* made by the run */
    const char *path = gpu_variants(d, k->cuda);
    ck_assert_msg(strstr(path, takes) && !strstr(path, leaves),
                  "%s takes %s", c->text, path);
  }
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}
