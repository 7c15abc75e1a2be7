/* test_grid_kernels.c - kernels of grids large enough for several patches, by all
 * instruction sets or on a GPU, forward and backward, against the oracle. */
#include "tests/support/gpu_gradients.h"
#include "tests/support/gradients.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>

#define P(sizes, rest)                                                         \
  "pattern p { " sizes "; dtype f32; " rest " }"
#define GROUPED "heads 4 kv 2; head_dim 6 value 5"

static const struct {
  const char *text;
  int64_t cells;
} cases[] = {
    {P(GROUPED, "grid 11 x 19; branch { neighborhood 5 x 7; }"), 209},
    {P(GROUPED, "grid any x 18; dilation 2 x 3; neighborhood 3 x 5; causal x; "
                "branch { score s + 0.125 * (jx - ix); }"), 13 * 18},
    {P(GROUPED, "grid 9 x 21; window (3, 1) x 2; sink 0.5; branch { mask (jx + "
                "iy) % 3 > 0; }"), 189},
    {P("heads 2; head_dim 17", "grid 5 x 6 x 9; neighborhood 3 x 4 x 5; "
                               "dropout 0.25; branch { }"), 270},
    {P("heads 1; head_dim 8", "grid 4 x 7 x 8; window 1 x inf x 2; causal z; "
                              "dilation 1 x 2 x 1; branch { }"), 224},
    {P(GROUPED, "grid 10 x 20; branch { neighborhood 5 x 5; } branch { window 1 "
                "x 3; dilation 1 x 2; }"), 200},
    {P("heads 2; head_dim 8", "combine mean; grid 10 x 20; branch { neighborhood "
                              "5 x 5; } branch { causal y; window 2 x 2; }"),
     200},
    {P("heads 2; head_dim 64", "grid 17 x 16; neighborhood 5 x 7; branch { score s "
                               "- 0.1 * abs(iy - jy); mask (ix + jy) % 5 < 4; }"),
     272},
    {P("heads 2; head_dim 32", "grid 12 x 1 x 30; neighborhood 3 x 1 x 13; dilation "
                               "3 x 1 x 2; causal z; branch { }"), 360},
    {P("heads 2 kv 1; head_dim 8",
       "input z : f32[H] gradient; grid 12 x 17; score s * z[h]; branch { "
       "neighborhood 7 x 3; heads 1..1; }"), 204},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void try_kernel(const tested_pattern *s, gradient_data *g, recipe way) {
  way.direction = DIL_BACKWARD;
  kernel_made *k = kernel_make(s, way);
  ck_assert_msg(!k->refused, "%s", k->problem);
  const char *problem = gradient_data_problem(g, k);
  ck_assert_msg(problem[0] == 0, "%s, %s: %s", s->pattern->name, way.isa,
                problem);
  kernel_unmake(k);
}

static void try_on_gpu(const tested_pattern *s, gradient_shape shape) {
  kernel_made *k = kernel_make(s, (recipe){.threads = 1});
  ck_assert_msg(!k->refused, "%s", k->problem);
  data *d = data_new(s, shape.call);
  const char *problem = data_problem(d, k);
  ck_assert_msg(problem[0] == 0, "%s: %s", s->pattern->name, problem);
  data_free(d);
  kernel_unmake(k);
  problem = gpu_gradient_problem(s, 0, shape);
  ck_assert_msg(problem[0] == 0, "%s: %s", s->pattern->name, problem);
}

START_TEST(patches_are_right) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};
  tested_pattern *s = tested_pattern_new("grid", cases[_i].text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  for (int i = 0; i < 3; i++) {
    gradient_shape shape = {.call = {.batch = 2,
                                     .queries = cases[_i].cells,
                                     .keys = cases[_i].cells,
                                     .seed = 3 + (uint32_t)_i,
                                     .train = true,
                                     .dropout_seed = 7}};
    tested_pattern_retype(s, dtypes[i]);
    for (int x = 0; x < GRADIENT_TENSORS; x++)
      shape.layout[x] = (guard_layout)((x + i) % GUARD_LAYOUT_COUNT);
    if (gpu_wanted()) {
      try_on_gpu(s, shape);
      continue;
    }
    gradient_data *g = gradient_data_new(s, shape);
    for (const char *const *isa = cpu_isas(); *isa; isa++)
      try_kernel(s, g, (recipe){.isa = *isa, .threads = 1 + i});
    gradient_data_free(g);
  }
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("grid_kernels");
  TCase *tests = tcase_create("patches");
  tcase_add_loop_test(tests, patches_are_right, 0, CASES);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
