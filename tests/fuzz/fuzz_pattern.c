/* fuzz_pattern.c - random patterns and shapes, computed by the CPU back end
 * and compared with the oracle. In: --seed S --count N; case i is that of seed
 * S + i, alone; --hopper: patterns for the Hopper kernels, and nothing is done
 * with those that they do not take; --backward: gradients; --ring: gradients of
 * ranks on threads, or on GPUs; --choices: blocks chosen by their scores; --grids:
 * patterns over grids; --packed: calls of several documents. Each case runs in a
 * process of its own. Out: for a failure the pattern, made as small as it stays
 * wrong, with its shape, plan and seed; at the end one line, and exit 1 if anything
 * failed. */
#include "spec.h"
#include "runtime/base/random.h"
#include "runtime/ring/ranks.h"
#include "tests/support/gpu_gradients.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_SIZE = 4000, CASE_SECONDS = 1200, SHRINK_TRIES = 150,
       TOOK_HOPPER = 3 /* how a child ends */ };

static bool aims;     /* at the Hopper kernels */
static bool backward; /* gradients, and no o */
static bool on_ring;  /* gradients of ranks on threads */
static bool choosing; /* blocks by their scores */
static bool gridded;  /* patterns over grids */
static bool packing;  /* packed calls */

/* A few rows of q, k and v hold a NaN or an infinity: what sees them is NaN or
 * infinite, and nothing else is. */
static double spoilt(int32_t tensor, const int64_t *at, double number) {
  static const double wrong[] = {NAN, INFINITY, -INFINITY};
  uint32_t counter[4] = {(uint32_t)at[0], (uint32_t)at[1], (uint32_t)at[2], 0};
  uint32_t key[2] = {(uint32_t)tensor, 0}, word[4];
  dil_philox(counter, key, word);
  bool here = word[0] % 64 == 0 && at[3] == word[1] % 3;
  return here ? wrong[word[2] % 3] : number;
}

/* Few values, so that estimates are often the same. */
static double few_values(int32_t tensor, const int64_t *at, double number) {
  (void)at;
  return tensor == 2 ? number : floor(number);
}

static double nan_keys(int32_t tensor, const int64_t *at, double number) {
  return tensor == 1 && at[1] % 37 == 5 && at[3] == 0 ? NAN : number;
}

static double spoilt_scores(int32_t tensor, const int64_t *at, double number) {
  return tensor == 2 ? number : spoilt(tensor, at, number);
}

/* Kernels of 16 bits on GPUs ask for values that are not finite only where no
 * row of a tile sees them, or masks and scores decide over pairs: 0 * NaN makes
 * NaN of a row that others of its tile see such a value beside. Weights that fall
 * with a distance end below the least of f32, and it depends on tiles whether an
 * infinite value that has one comes out as infinity, NaN or nothing. Ranks on GPUs
 * have lse of their own, which may be another NaN than the oracle's infinity. */
static double (*spoils(const spec *s))(int32_t, const int64_t *, double) {
  if (spec_chooses(s))
    return s->seed % 3 == 0 ? few_values : s->seed % 5 == 0 ? nan_keys : NULL;
  if (s->seed % 6 || (on_ring && gpu_wanted())) return NULL;
  bool asks = !gpu_wanted() || s->dtype == DIL_F32;
  return asks && !spec_says(s, "slope[h] * abs") ? spoilt : spoilt_scores;
}

static int32_t length_of(const spec *s, uint32_t b) {
  const int32_t some[] = {s->keys / 3, s->keys, s->keys - s->keys / 3,
                          0, s->keys > 0,
                          s->queries < s->keys ? s->queries : s->keys};
  return some[(s->seed / 8 + b) % 6];
}

/* Offsets of a packed call: documents of no row, of one, of some or all of the rows that
 * the case has; rows of nobody behind them in some cases. Returns their end. */
enum { DOCUMENTS = 6 };
static int32_t put_documents(uint32_t bits, int32_t rows, int32_t *offsets) {
  const int32_t some[] = {rows, 0, 1, rows / 3, rows - rows / 3, rows / 2, rows, 1};
  for (int32_t d = 0; d < DOCUMENTS; d++)
    offsets[d + 1] = offsets[d] + some[bits >> (3 * d) & 7];
  return offsets[DOCUMENTS] + (int32_t)(bits >> 20 & 4);
}

/* The same call, packed. */
static call_shape packed_shape(const spec *s, call_shape shape) {
  static int32_t offsets[DOCUMENTS + 1], key_offsets[DOCUMENTS + 1];
  uint32_t bits = (s->seed + 1) * 0x9E3779B1u;
  shape.batch = 1;
  shape.clean = true;
  shape.element = NULL;
  shape.lengths = NULL;
  shape.documents = DOCUMENTS;
  shape.offsets = offsets;
  shape.queries = put_documents(bits, s->queries, offsets);
  shape.keys = shape.queries;
  if (bits >> 30 == 0) return shape;
  shape.key_offsets = key_offsets;
  shape.keys = put_documents(bits * 0x85EBCA6Bu, s->keys, key_offsets);
  return shape;
}

static call_shape shape_of(const spec *s, int32_t *lengths) {
  for (int32_t b = 0; b < s->batch; b++) lengths[b] = length_of(s, (uint32_t)b);
  call_shape shape = {.batch = s->batch, .queries = s->queries,
                      .keys = s->keys, .seed = s->seed, .scale = 0.3,
                      .layout = (guard_layout)s->layout, .train = s->dropout,
                      .at_start = s->seed % 5 == 0, .dropout_seed = s->seed,
                      .element = spoils(s),
                      .lengths = s->lengths ? lengths : NULL};
  return packing ? packed_shape(s, shape) : shape;
}

/* Whether general kernels take all passes, whatever the call. */
static bool is_left(const kernel_made *k) {
  gpu_request request = {.common = {k->plan}, .arch = 90};
  char reason[200];
  for (int32_t p = 0; p < k->plan->table.pass_count; p++)
    if (!gpu_compiler()->refuses(&request, p, reason, sizeof reason))
      return false;
  return true;
}

static bool took_hopper(data *d, const kernel_made *k) {
  return k->cuda && strstr(gpu_variants(d, k->cuda), "hopper");
}

/* A call backward: what it brings and wants varies with the seed, as far as kernels that
 * are aimed at take it. */
static gradient_shape gradient_shape_of(const spec *s, int32_t *lengths) {
  uint32_t bits = s->seed * 0x9E3779B1u;
  gradient_shape shape = {.call = shape_of(s, lengths),
                          .without_dlse = bits >> 8 & 1,
                          .without_lse = (bits >> 9 & 3) == 0,
                          .wide = !aims && (bits >> 11 & 3) == 0};
  for (int32_t x = 0; x < GRADIENT_TENSORS; x++)
    shape.layout[x] = (guard_layout)((s->layout + (bits >> (12 + 2 * x))) % (aims ? 2 : 4));
  if ((bits >> 20 & 3) == 0) shape.unwanted = bits >> 22 & 14;
  return shape;
}

/* Laws hold of f32, and of numbers alone. */
#define LAW_BOUND 1e-5

/* Ranks that vary with the seed; few on GPUs, which may be emulated. */
static mesh mesh_of(const spec *s) {
  uint32_t bits = s->seed * 0x85EBCA77u;
  static const uint64_t some[] = {0, 1, 6, ~(uint64_t)0};
  int32_t most = gpu_wanted() ? 3 : 8;
  return (mesh){.ring = 1 + (int32_t)(bits >> 8 & 7) % most,
                .heads = bits >> 11 & 1 && s->heads > 1 ? 2 : 1,
                .batch = 1 + (int32_t)(bits >> 12 & 1),
                .layout = (dil_layout)((bits >> 13 & 255) % DIL_LAYOUT_COUNT),
                .gathered = some[bits >> 21 & 3],
                .timeout = CASE_SECONDS,
                .way_given = bits >> 23 & 3,
                .queries = some[bits >> 25 & 3]};
}

/* The gradients of a rank group, and what is wrong with them. A pattern whose
 * rows have no list of a bounded length is refused, and the case ends. */
static const char *ring_problem(const spec *s, gradient_data *g,
                                const kernel_made *k) {
  static char text[400];
  rank_group *all;
  rank_group_task task = {.mesh = mesh_of(s),
                          .table = &k->plan->table,
                          .plan_hash = plan_hash(k->plan),
                          .make = plan_variant,
                          .context = k->plan,
                          .threads = s->threads,
                          .backward = true,
                          .gpu = gpu_wanted() ? gpu_rank_group(k->plan) : NULL};
  dil_status status = rank_group_new(&task, &all);
  if (!status) {
    status = task.gpu ? gpu_ranks_backward(all, &g->call)
                      : rank_group_backward(all, &g->call);
    rank_group_free(all);
  }
  if (!status) return gradient_data_compare(g);
  if (status == DIL_UNSUPPORTED) exit(0);
  snprintf(text, sizeof text, "%d x %d x %d ranks: %s", task.mesh.ring,
           task.mesh.heads, task.mesh.batch, dil_last_error());
  return text;
}

/* "" or what is wrong with the gradients, by the oracle and by the laws. */
static const char *gradients_problem(const spec *s, const tested_pattern *made,
                                     kernel_made *k) {
  int32_t lengths[SPEC_BATCHES];
  gradient_shape shape = gradient_shape_of(s, lengths);
  shape.without_lse &= !on_ring; /* the run forward leaves it on the ranks */
  gradient_data *g = gradient_data_new(made, shape);
  const char *problem =
      on_ring ? ring_problem(s, g, k) : gradient_data_problem(g, k);
  bool lawful = s->dtype == DIL_F32 && !shape.call.element && !packing;
  if (problem[0] || !lawful) return problem;
  return gradient_laws(made->pattern, &g->call, LAW_BOUND);
}

/* The same on a GPU, by kernels that add in a fixed order or in any. */
static const char *gpu_gradients_problem(const spec *s,
                                         const tested_pattern *made) {
  int32_t lengths[SPEC_BATCHES];
  unsigned force = force_all[s->force].force;
  gradient_shape shape = gradient_shape_of(s, lengths);
  return s->seed % 4 == 1 ? gpu_gradient_problem_any_order(made, force, shape)
                          : gpu_gradient_problem(made, force, shape);
}

/* In the child: writes what is wrong to `out`, nothing when all is well. How it
 * ends then. */
static int compute(const spec *s, FILE *out) {
  char text[TEXT_SIZE];
  int32_t lengths[SPEC_BATCHES];
  spec_print(s, text, sizeof text);
  tested_pattern *made = tested_pattern_new("fuzz.dil", text, NULL, 0);
  if (made->pattern == NULL) {
    fprintf(out, "not accepted: %s", made->problem);
    return 0;
  }
  if (backward && !on_ring && gpu_wanted()) {
    fputs(gpu_gradients_problem(s, made), out);
    return strstr(gpu_gradient_kernels(), "hopper") ? TOOK_HOPPER : 0;
  }
  const char *const *isas = cpu_isas();
  int32_t count = 0;
  while (isas[count]) count++;
  recipe way = {.isa = isas[s->isa % count],
                .force = force_all[s->force].force,
                .threads = s->threads,
                .direction = backward ? DIL_BACKWARD : DIL_FORWARD};
  kernel_made *k = kernel_make(made, way);
  if (k->refused) {
    if (way.force == 0) fprintf(out, "refused: %s", k->problem);
    return 0;
  }
  if (backward) {
    fputs(gradients_problem(s, made, k), out);
    return 0;
  }
  if (aims && is_left(k)) return 0;
  data *d = data_new(made, shape_of(s, lengths));
  fputs(data_problem(d, k), out);
  return took_hopper(d, k) ? TOOK_HOPPER : 0;
}

static uint32_t hopper_count; /* cases that its kernels took, or some passes */


/* "" or the problem, in static memory. */
static const char *problem_of(const spec *s) {
  static char text[3000];
  int ends[2];
  if (pipe(ends) != 0) abort();
  fflush(NULL);
  pid_t child = fork();
  if (child < 0) abort();
  if (child == 0) {
    FILE *out = fdopen(ends[1], "w");
    if (out == NULL) abort();
    close(ends[0]);
    alarm(CASE_SECONDS);
    int end = compute(s, out);
    fclose(out);
    _exit(end);
  }
  close(ends[1]);
  size_t length = 0;
  for (ssize_t n; length < sizeof text - 1 &&
       (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
    length += (size_t)n;
  text[length] = 0;
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) abort();
  if (WIFEXITED(status) && WEXITSTATUS(status) == TOOK_HOPPER) hopper_count++;
  else if (WIFSIGNALED(status))
    snprintf(text, sizeof text, "died of signal %d (%s)", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) != 0 && length == 0)
    snprintf(text, sizeof text, "ended with status %d", WEXITSTATUS(status));
  return text;
}

/* Takes every simplification that leaves the case wrong. */
static void shrink(spec *s) {
  int32_t tries = 0;
  for (bool smaller = true; smaller && tries < SHRINK_TRIES;) {
    smaller = false;
    for (int32_t step = 0; tries < SHRINK_TRIES; step++) {
      spec less = *s;
      if (!spec_simplify(&less, step)) break;
      if (memcmp(&less, s, sizeof less) == 0) continue;
      tries++;
      if (problem_of(&less)[0] == 0) continue;
      *s = less;
      smaller = true;
    }
  }
}

static void report(const spec *whole, uint32_t seed, const char *problem) {
  char text[TEXT_SIZE];
  spec s = *whole;
  printf("not ok seed %u: %s\n", seed, problem);
  fflush(stdout);
  shrink(&s);
  spec_print(&s, text, sizeof text);
  printf("smaller: %s\n", problem_of(&s));
  printf("%s# batch %d, queries %d, keys %d, layout %d, lengths %d, threads "
         "%d, isa %d, plan: %s\n# the whole case: fuzz_pattern --count 1%s%s "
         "--seed %u --print\n\n",
         text, s.batch, s.queries, s.keys, s.layout, s.lengths, s.threads,
         s.isa, force_all[s.force].name,
         aims       ? gridded    ? " --hopper --grids"
                      : choosing ? " --hopper --choices"
                      : packing  ? " --hopper --packed"
                                 : " --hopper"
         : choosing ? " --choices"
         : gridded  ? " --grids"
         : packing  ? " --packed"
                    : "",
         on_ring    ? " --ring"
         : backward ? " --backward"
                    : "",
         seed);
}

static bool has_lists(const spec *s) {
  char text[TEXT_SIZE];
  spec_print(s, text, sizeof text);
  return strstr(text, "keys vertical") || strstr(text, "rows, cols");
}

static int usage(void) {
  fprintf(stderr, "fuzz_pattern [--count N] [--seed S] [--hopper] [--backward] "
                  "[--ring] [--choices] [--grids] [--packed] [--print]\n");
  return 2;
}

int main(int argc, char **argv) {
  uint32_t count = 100, first = 1, failed = 0;
  bool print = false;
  for (int i = 1; i < argc; i++) {
    bool more = i + 1 < argc;
    if (!strcmp(argv[i], "--print")) print = true;
    else if (!strcmp(argv[i], "--hopper")) aims = true;
    else if (!strcmp(argv[i], "--backward"))
      backward = true;
    else if (!strcmp(argv[i], "--choices"))
      choosing = true;
    else if (!strcmp(argv[i], "--grids"))
      gridded = true;
    else if (!strcmp(argv[i], "--packed"))
      packing = true;
    else if (!strcmp(argv[i], "--ring"))
      backward = on_ring = true;
    else if (more && !strcmp(argv[i], "--count"))
      count = (uint32_t)strtoul(argv[++i], NULL, 10);
    else if (more && !strcmp(argv[i], "--seed"))
      first = (uint32_t)strtoul(argv[++i], NULL, 10);
    else return usage();
  }
  if (choosing && backward) return usage(); /* the oracle would choose for itself */
  if (packing && (choosing || gridded || on_ring)) return usage(); /* none is packed */
  const uint32_t asked = first; /* `first` moves on over what is skipped */
  for (uint32_t i = 0; i < count && failed < 20; i++) {
    spec s = aims && gridded    ? spec_hopper_grids(first + i)
             : aims && choosing ? spec_hopper_choices(first + i)
             : aims             ? spec_hopper(first + i)
             : choosing ? spec_choices(first + i)
             : gridded  ? spec_grids(first + i)
                        : spec_random(first + i);
    if (on_ring) s.lengths = 0;
    if (on_ring && gpu_wanted()) {
      s.queries = s.queries < 90 ? s.queries : 90;
      s.keys = s.keys < 110 ? s.keys : 110;
    }
    bool whole = s.grid[2] || (packing && has_lists(&s));
    if ((on_ring || packing) && whole) { /* what neither shards nor documents have */
      first++;
      i--;
      continue;
    }
    if (print) {
      char text[TEXT_SIZE];
      spec_print(&s, text, sizeof text);
      printf("%s# batch %d, queries %d, keys %d, plan: %s\n", text, s.batch,
             s.queries, s.keys, force_all[s.force].name);
    }
    const char *problem = problem_of(&s);
    if (problem[0] == 0) continue;
    report(&s, first + i, problem);
    failed++;
  }
  if (failed == 0)
    printf("ok %u random patterns%s from seed %u, %u by Hopper kernels\n",
           count,
           on_ring    ? " backward on ranks"
           : packing && backward ? " of packed calls backward"
           : packing  ? " of packed calls"
           : backward ? " backward"
           : choosing ? " that choose blocks"
           : gridded  ? " over grids"
                      : "",
           asked, hopper_count);
  return failed != 0;
}
