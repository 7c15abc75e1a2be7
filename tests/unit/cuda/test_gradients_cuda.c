/* test_gradients_cuda.c - gradients by the GPU's general kernels against the
 * oracle's, on the device that DIL_TEST_DEVICE asks for: a chip, or the emulated
 * one (tests/emulator/README.md). */
#include "tests/support/gpu_gradients.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

#define P(sizes, body) "pattern p { " sizes "; dtype f32; " body " }"
#define SMALL "heads 2; head_dim 32"

static const struct {
  const char *name, *text;
  int64_t batch, queries, keys;
} cases[] = {
    {"dense", P(SMALL, "branch { }"), 1, 70, 70},
    {"more keys", P(SMALL, "branch { }"), 2, 33, 130},
    {"more queries", P(SMALL, "branch { }"), 1, 130, 40},
    {"causal", P(SMALL, "causal; branch { }"), 1, 150, 150},
    {"window", P(SMALL, "window 20, 7; branch { }"), 1, 150, 170},
    {"causal window", P(SMALL, "causal; window 30, 0; branch { }"), 1, 140, 100},
    {"segments", P(SMALL, "causal; branch { segment 48; }"), 1, 133, 150},
    {"dilated", P(SMALL, "branch { segment 64; dilation 3; }"), 1, 150, 150},
    {"late queries, dilated", P(SMALL, "branch { dilation 2; }"), 1, 150, 90},
    {"longnet", P("heads 4; head_dim 16", "causal; segments 32, 64, 128; "
                  "dilations 1, 2, 4;"), 1, 150, 150},
    {"nested", P(SMALL, "segments 24, 48, 96; dilations 1, 2, 4;"), 2, 100, 100},
    {"crossed", P(SMALL, "branch { segment 40; } branch { segment 56; dilation 2; "
                  "}"), 1, 130, 130},
    {"grouped", P("heads 6 kv 2; head_dim 16", "causal; branch { }"), 1,
     90, 90},
    {"grouped, few", P("heads 4 kv 1; head_dim 16", "branch { }"), 2, 3,
     100},
    {"grouped longnet", P("heads 4 kv 2; head_dim 16",
                          "causal; segments 32, 64; dilations 1, 2;"), 1, 150,
     150},
    {"values of another size", P("heads 2; head_dim 24 value 40",
                                 "causal; branch { }"), 1, 80, 80},
    {"odd sizes", P("heads 1; head_dim 13 value 7", "branch { }"), 1, 50,
     61},
    {"wide heads", P("heads 1; head_dim 256", "causal; branch { }"), 1, 70, 70},
    {"masks", P(SMALL, "mask (i - j) % 3 == 0 || j < 5; branch { }"), 1, 100, 120},
    {"blocks", P(SMALL, "block 16; keep bi == bj || bj == 0; branch { }"), 1, 130,
     130},
    {"union", P(SMALL, "combine union; branch { window 10, 10; } branch { mask j "
                "< 20; } branch { dilation 4; }"), 1, 110, 110},
    {"mean", P(SMALL, "combine mean; segments 32, 64; dilations 1, 2;"), 1, 100,
     100},
    {"sum", P(SMALL, "combine sum; branch { causal; } branch { dilation 2; }"), 1,
     90, 90},
    {"heads split", P("heads 4; head_dim 16", "segments 32, 64; dilations 1, 2; "
                      "heads split;"), 1, 100, 100},
    {"dropout", P(SMALL, "dropout 0.2; causal; branch { }"), 1, 80, 80},
    {"sinks", P(SMALL, "causal; sink 0.5 - 0.01 * i; branch { }"), 1, 80, 80},
    {"sinks, mean", P(SMALL, "combine mean; sink 0.2; branch { sink 1.0; causal; "
                      "} branch { dilation 2; }"), 1, 70, 70},
    {"dropout, grouped", P("heads 4 kv 2; head_dim 16", "dropout 0.4; branch { }"),
     2, 40, 70},
    {"tanh", P(SMALL, "score 4.0 * tanh(s / 4.0); branch { }"), 1, 60, 90},
    {"bias and squares", P(SMALL, "causal; score s * s - 0.1 * (i - j); score "
                           "max(s, 0.5 * s) + 1.0; branch { }"), 1, 90, 90},
    {"scores of branches",
     P(SMALL, "branch { segment 32; score s + 0.5; } branch { dilation 2; score "
       "abs(s); }"), 1, 100, 100},
    {"negative scale", P(SMALL, "scale -0.3; branch { }"), 1, 60, 60},
};
enum { CASES = sizeof cases / sizeof *cases };
static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};

static void try(const char *name, const char *text, dil_dtype dtype,
                gradient_shape shape) {
  subject *s = subject_new(name, text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", name, s->problem);
  subject_retype(s, dtype);
  const char *problem = gpu_gradient_problem(s, 0, shape);
  ck_assert_msg(problem[0] == 0, "%s, %s: %s", name, dil_dtype_name(dtype),
                problem);
  subject_free(s);
}

START_TEST(compared) {
  int32_t i = _i / 3;
  if (!gpu_wanted()) return;
  try(cases[i].name, cases[i].text, dtypes[_i % 3],
      (gradient_shape){.call = {.batch = cases[i].batch,
                                .queries = cases[i].queries,
                                .keys = cases[i].keys,
                                .train = true,
                                .dropout_seed = 7,
                                .seed = (uint32_t)_i + 1}});
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gradients on a GPU");
  TCase *tests = tcase_create("compared");
  tcase_set_timeout(tests, 300);
  tcase_add_loop_test(tests, compared, 0, 3 * CASES);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
