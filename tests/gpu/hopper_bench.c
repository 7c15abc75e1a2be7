/* hopper_bench.c - checks and times kernels of templates/hopper/hopper.cu by
 * themselves: cuts that the compiler would not choose, and those of other trees
 * beside this one's. Run at the top of the tree.
 *
 *   hopper_bench make FOLDER NAME...          cubins of this tree: see
 *                                             hopper_variant.c for the names
 *   hopper_bench check|time|all FOLDER [CASE] every case (hopper_cases.h) whose
 *                                             name begins so, on every kernel
 *                                             of its width and element
 *
 * `check` says whether each is right (hopper_check.c), `time` times those that
 * are marked for it, all kernels in turn, `all` does both. HOPPER_HOT=1: no
 * cache is flushed before a launch. Exit status 1 when something is wrong. */
#include "hopper_bench.h"
#include <stdlib.h>
#include <string.h>

void must(dil_status status) {
  if (!status) return;
  fprintf(stderr, "hopper_bench: error: %s\n", dil_last_error());
  exit(3);
}

/* ---- times --------------------------------------------------------------- */

typedef struct launched {
  const setup *s;
  const variant *v;
} launched;

static dil_status launch(void *context) {
  const launched *l = context;
  return cuda_hopper.launch(&l->s->run, 0, &l->v->code);
}

static double time_once(bench *x, const setup *s, const variant *v) {
  launched l = {s, v};
  double seconds;
  if (!getenv("HOPPER_HOT"))
    must(device_fill(x->device, x->flush, 0, FLUSHED));
  must(cuda_time(x->device, CLOCK_ALONE, launch, &l, &seconds));
  return seconds;
}

static int compare_times(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* A few launches of each variant in turn; the first of a turn only warms the
 * instruction caches. */
static void time_case(bench *x, const setup *s, const bool *use) {
  enum { TURNS = 6, EACH = 4, ROUNDS = TURNS * EACH };
  static double times[VARIANTS][ROUNDS];
  double work = 2.0 * (s->c->D + s->c->Dv) * count_pairs(s->c, &s->problem);
  for (int turn = 0; turn < TURNS; turn++)
    for (int v = 0; v < x->variants; v++)
      for (int i = -1; i < EACH && use[v]; i++) {
        double seconds = time_once(x, s, &x->variant[v]);
        if (i >= 0) times[v][turn * EACH + i] = seconds;
      }
  for (int v = 0; v < x->variants; v++) {
    if (!use[v]) continue;
    qsort(times[v], ROUNDS, sizeof **times, compare_times);
    double median = times[v][ROUNDS / 2];
    printf("%-26s %-14s median %8.4f best %8.4f ms  %6.1f TFLOP/s\n",
           s->c->name, x->variant[v].name, median * 1e3, times[v][0] * 1e3,
           work / median * 1e-12);
  }
}

/* ---- cases --------------------------------------------------------------- */

static void run_case(bench *x, const bench_case *c, bool timed) {
  static setup s;
  bool use[VARIANTS] = {0};
  setup_open(x, c, &s);
  for (int v = 0; v < x->variants; v++)
    if (x->variant[v].width == (c->D + 31) / 32 * 32 &&
        x->variant[v].element == c->element)
      use[v] = check_variant(x, &s, &x->variant[v]);
  if (timed && c->flags & TIMED) time_case(x, &s, use);
  for (int v = 0; v < x->variants; v++)
    if (x->variant[v].code.memory) cuda_hopper.close(&x->variant[v].code);
  setup_close(x, &s);
}

static int run_cases(const char *what, const char *folder, const char *prefix) {
  static bench x;
  bool timed = strcmp(what, "check"), only = !strcmp(what, "time");
  bench_open(&x, folder);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if ((!only || cases[i].flags & TIMED) &&
        !strncmp(cases[i].name, prefix, strlen(prefix)))
      run_case(&x, &cases[i], timed);
  bench_close(&x);
  printf("%d wrong\n", x.wrong);
  return x.wrong != 0;
}

int main(int count, char **argument) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char *what = count > 2 ? argument[1] : "";
  if (!strcmp(what, "make"))
    return variants_make(argument[2], argument + 3, count - 3), 0;
  if (!strcmp(what, "check") || !strcmp(what, "time") || !strcmp(what, "all"))
    return run_cases(what, argument[2], count > 3 ? argument[3] : "");
  fputs("usage: hopper_bench make FOLDER NAME... | check|time|all FOLDER "
        "[CASE]\n", stderr);
  return 2;
}
