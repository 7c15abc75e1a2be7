/* test_numeric.c - every example against the oracle: each storage type, each
 * instruction set of this host, each forced plan. The sizes are small, the
 * segments shortened to fit, and the lengths no multiple of anything. */
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define DEFINE(name, value) (const define[]){{name, value}}, 1
#define AS_IT_IS NULL, 0

static const struct {
  const char *file;
  const define *defines;
  int32_t define_count;
  int64_t batch, queries, keys;
  const char *fast; /* the kernel of 16-bit elements on Hopper; NULL: any */
} examples[] = {
    {"dense", AS_IT_IS, 1, 150, 211, NULL},
    {"causal", AS_IT_IS, 1, 203, 203, NULL},
    {"longnet", DEFINE("w", "48"), 1, 301, 301, NULL},
    {"longnet_text", DEFINE("w", "40"), 1, 333, 333, NULL},
    {"longnet_torchscale", DEFINE("w", "52"), 1, 250, 250, NULL},
    {"headsplit_mean", AS_IT_IS, 1, 301, 301, NULL},
    {"longformer", DEFINE("w", "30"), 1, 260, 260, "hopper"},
    {"strided", DEFINE("l", "32"), 1, 275, 275, "hopper"},
    {"blocksparse", AS_IT_IS, 1, 600, 600, "hopper pairs"},
    {"random_hash", AS_IT_IS, 1, 300, 300, "hopper pairs"},
    {"alibi", AS_IT_IS, 1, 190, 190, "hopper scores"},
    {"softcap", AS_IT_IS, 2, 150, 150, "hopper scores"},
    {"documents", AS_IT_IS, 2, 200, 200, "hopper pairs"},
    {"decode_gqa", AS_IT_IS, 2, 1, 500, NULL},
    {"decode_gqa", AS_IT_IS, 1, 20, 300, NULL},
    {"union", DEFINE("w", "24"), 1, 230, 230, NULL},
};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };

/* The phases of its branches, fused into one pass, leave the Hopper kernel. */
static const char fast_apart[] = "strided";

static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};

/* A general kernel in the place of a fast one would only be slow. */
static void expect_fast(data *d, const kernel_made *k, int32_t number,
                        const char *force) {
  const char *fast = examples[number].fast, *file = examples[number].file;
  unsigned others = FORCE_GENERAL | FORCE_CHAIN;
  if (!strcmp(file, fast_apart)) others |= FORCE_FUSE;
  bool asked = fast && !(k->way.force & others) &&
               d->shape.layout == GUARD_HEADS;
  if (!asked || !k->cuda || gpu_module()->facts(gpu_device())->arch != 90)
    return;
  const char *taken = gpu_variants(d, k->cuda);
  ck_assert_msg(strstr(taken, fast) == taken, "%s, %s takes %s", file, force,
                taken);
}

/* All kernels of one storage type on one set of data. */
static void try_kernels(const tested_pattern *s, data *d, int32_t number) {
  const char *file = examples[number].file;
  int32_t computed = 0;
  forced list[FORCES_MOST];
  forces_of(s, list);
  for (const char *const *isa = cpu_isas(); *isa; isa++)
    for (const forced *f = list; f->name; f++) {
      kernel_made *k = kernel_make(s, (recipe){.isa = *isa, .force = f->force, .threads = 0});
      const char *problem = k->refused ? "" : data_problem(d, k);
      ck_assert_msg(f->force != 0 || !k->refused, "%s: refused: %s", file,
                    k->problem);
      ck_assert_msg(problem[0] == 0, "%s, %s, %s, %s: %s", file,
                    dil_dtype_name(s->pattern->dtype), *isa, f->name, problem);
      expect_fast(d, k, number, f->name);
      computed += !k->refused;
      kernel_unmake(k);
    }
  ck_assert_int_ge(computed, 1);
}

START_TEST(example) {
  const char *folder = getenv("EXAMPLES");
  char path[1000];
  snprintf(path, sizeof path, "%s/%s.dil", folder ? folder : "examples",
           examples[_i].file);
  for (int32_t i = 0; i < 3; i++) {
    tested_pattern *s = tested_pattern_read(path, examples[_i].defines,
                                            examples[_i].define_count);
    ck_assert_msg(s->pattern != NULL, "%s", s->problem);
    tested_pattern_retype(s, dtypes[i]);
    data *d = data_new(s, (call_shape){.batch = examples[_i].batch,
                                       .queries = examples[_i].queries,
                                       .keys = examples[_i].keys,
                                       .seed = 1u + (uint32_t)i,
                                       .layout = (guard_layout)i,
                                       .at_start = i == 2});
    try_kernels(s, d, _i);
    data_free(d);
    tested_pattern_free(s);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("numeric");
  TCase *tests = tcase_create("examples");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, example, 0, EXAMPLES);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
