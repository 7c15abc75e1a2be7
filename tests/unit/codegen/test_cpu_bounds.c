/* test_cpu_bounds.c - the interval rules of every operator, which stand three
 * times: expr_bounds.c, cpu/bounds.c and templates/shared/cover.cuh. Over a
 * table of edge intervals each holds every sampled value, and the processor's
 * are as narrow as the compiler's. The GPU's are compiled by the host's C++
 * compiler from what gpu/emit/cover.c writes; without one they are skipped. */
#include "compiler/codegen/gpu/emit/emit.h"
#include "tests/support/cpu_code.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one case for each operator ------------------------------------------ */

/* The kinds of the arguments of each case: i, f, or c for a condition. A ~
 * marks an operator that only scores may have: generated code never bounds it.
 * The rules of a "leaf" are held by test_cpu_expr.c and test_expr_bounds.c. An
 * operator of ops.def without a row fails. */
static const char *const kinds[EXPR_OP_COUNT] = {
    [EXPR_INT] = "leaf",   [EXPR_REAL] = "leaf",  [EXPR_TRUTH] = "leaf",
    [EXPR_B_] = "leaf",    [EXPR_H_] = "leaf",    [EXPR_I_] = "leaf",
    [EXPR_J_] = "leaf",    [EXPR_S_] = "leaf",    [EXPR_BATCH] = "leaf",
    [EXPR_N_] = "leaf",    [EXPR_M_] = "leaf",    [EXPR_INPUT] = "leaf",
    [EXPR_ADD] = "ii ff if", [EXPR_SUB] = "ii ff fi", [EXPR_MUL] = "ii ff if",
    [EXPR_DIV] = "ii ff if", [EXPR_MOD] = "ii ff fi", [EXPR_NEG] = "i f",
    [EXPR_EQ] = "ii ff if", [EXPR_NE] = "ii ff fi", [EXPR_LT] = "ii ff if",
    [EXPR_LE] = "ii ff fi", [EXPR_GT] = "ii ff if", [EXPR_GE] = "ii ff fi",
    [EXPR_AND] = "cc",     [EXPR_OR] = "cc",      [EXPR_NOT] = "c",
    [EXPR_CHOOSE] = "cii cff cif ccc", [EXPR_ABS] = "i f",
    [EXPR_MIN] = "ii ff if", [EXPR_MAX] = "ii ff fi", [EXPR_EXP] = "f~",
    [EXPR_LOG] = "f~",     [EXPR_SQRT] = "f~",    [EXPR_TANH] = "f~",
    [EXPR_FLOOR] = "i f",  [EXPR_CEIL] = "i f",   [EXPR_TO_INT] = "f",
    [EXPR_HASH] = "i ii",
};

/* Inputs 0..2 are f32, 3..5 are i32; 6 and 7 are what bounds are held against,
 * as f32 and i32. Each has one element, whose range a case sets. */
enum { KINDS = 3, REAL_LIMIT = 6, WHOLE_LIMIT = 7, SLOTS = 8 };
static interval known[SLOTS];
static value element[SLOTS];

static interval slot_range(void *context, int32_t index, int32_t axis,
                           const int32_t *at, int32_t first, int32_t last) {
  (void)context, (void)axis, (void)at, (void)first, (void)last;
  return known[index];
}

static value slot_value(void *context, int32_t index, const int32_t *at) {
  (void)context, (void)at;
  return element[index];
}

static expr *slot(int index) {
  bool real = index < KINDS || index == REAL_LIMIT;
  return make_input(memory, index, real ? TYPE_F32 : TYPE_I32,
                    make_leaf(memory, EXPR_I_), NULL);
}

static expr *argument(char kind, int k) {
  if (kind == 'f') return slot(k);
  expr *whole = slot(KINDS + k);
  if (kind == 'i') return whole;
  return make_condition(memory, EXPR_NE, whole, make_int(memory, 0));
}

static expr_type type_of(expr_op op, const char *kind, int count) {
  bool real = memchr(kind, 'f', (size_t)count) != NULL;
  if (kind[count - 1] == 'c' || (op >= EXPR_EQ && op <= EXPR_GE))
    return TYPE_CONDITION;
  return real && op != EXPR_TO_INT ? TYPE_F32 : TYPE_I32;
}

typedef struct bounds_trial {
  expr_op op;
  const char *kind; /* `count` letters */
  int count;
  bool scores; /* no mask may have it */
  expr *tree;
} bounds_trial;

enum { TRIALS_MOST = 100 };
static bounds_trial trials[TRIALS_MOST];
static int trial_count;

static void add_trial(expr_op op, const char *kind, int count) {
  expr *a[3] = {NULL, NULL, NULL};
  for (int k = 0; k < count; k++) a[k] = argument(kind[k], k);
  ck_assert_int_lt(trial_count, TRIALS_MOST);
  trials[trial_count++] = (bounds_trial){
      op, kind, count, kind[count] == '~',
      make_expr(memory, op, type_of(op, kind, count), count, a[0], a[1], a[2])};
}

static void make_trials(void) {
  trial_count = 0;
  for (int op = 0; op < EXPR_OP_COUNT; op++) {
    ck_assert_msg(kinds[op] != NULL, "no case for %s", expr_op_text(op));
    if (!strcmp(kinds[op], "leaf")) continue;
    for (const char *at = kinds[op]; *at; at += strspn(at, " ~")) {
      int count = (int)strcspn(at, " ~");
      add_trial(op, at, count);
      at += count;
    }
  }
}

/* ---- edge intervals ------------------------------------------------------ */

#define LEAST INT32_MIN
#define MOST INT32_MAX
static const interval wholes[] = {
    {0, 0, false},        {1, 1, false},         {-1, -1, false},
    {-7, -3, false},      {-5, 6, false},        {0, 9, false},
    {3, 64, false},       {-1, 0, false},        {5, 5, false},
    {LEAST, LEAST, false}, {MOST, MOST, false},  {LEAST, MOST, false},
    {MOST - 2, MOST, false}, {LEAST, LEAST + 2, false}, {LEAST, -1, false},
    {1, MOST, false},
};
static const interval reals[] = {
    {0, 0, false},        {1.5, 1.5, false},      {-1, -1, false},
    {-7.5, -3, false},    {-1, 6.25, false},      {0, 0.1f, false},
    {3e38f, 3.1e38f, false}, {-0x1p-149, 0x1p-149, false},
    {2, INFINITY, false}, {-INFINITY, 5, false},  {-INFINITY, -2, false},
    {INFINITY, INFINITY, false}, {-INFINITY, -INFINITY, false},
    {-3e9f, 3e9f, false}, {-INFINITY, INFINITY, true},
};
static const interval truths[] = {{0, 0, false}, {1, 1, false}, {0, 1, false}};

typedef struct table { const interval *row; int count; } table;

static table table_of(char kind) {
  if (kind == 'i') return (table){wholes, sizeof wholes / sizeof *wholes};
  if (kind == 'f') return (table){reals, sizeof reals / sizeof *reals};
  return (table){truths, 3};
}

enum { SAMPLES = 10 };

/* Values of an interval: its ends, those beside them, around 0, NaN. */
static int samples(char kind, interval x, double *out) {
  const double some[] = {x.low, x.high, x.low + 1, x.high - 1, 0, 1, -1,
                         x.low / 2 + x.high / 2, 2.5};
  int count = 0;
  for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
    double v = kind == 'f' ? (double)(float)some[k] : floor(some[k]);
    if (v >= x.low && v <= x.high) out[count++] = v;
  }
  if (x.nan) out[count++] = NAN;
  return count;
}

static int slot_of(const bounds_trial *t, int k) {
  return t->kind[k] == 'f' ? k : KINDS + k;
}

/* Calls `look` once for each choice of intervals. */
static void each_choice(const bounds_trial *t, int k,
                        void (*look)(const bounds_trial *)) {
  if (k == t->count) {
    look(t);
    return;
  }
  table rows = table_of(t->kind[k]);
  for (int row = 0; row < rows.count; row++) {
    known[slot_of(t, k)] = rows.row[row];
    each_choice(t, k + 1, look);
  }
}

/* Calls `see` once for each choice of samples of those intervals. */
static void each_value(const bounds_trial *t, int k, bool wide,
                       void (*see)(const bounds_trial *, double)) {
  if (k == t->count) {
    expr_point point = {.input = slot_value};
    value v = expr_eval(t->tree, &point, wide);
    see(t, t->tree->type == TYPE_F32 ? v.real : (double)v.integer);
    return;
  }
  double some[SAMPLES];
  int count = samples(t->kind[k], known[slot_of(t, k)], some);
  for (int n = 0; n < count; n++) {
    bool real = t->kind[k] == 'f';
    element[slot_of(t, k)] = real ? (value){.real = some[n]}
                                  : (value){.integer = (int64_t)some[n]};
    each_value(t, k + 1, wide, see);
  }
}

static interval compiled(const bounds_trial *t) {
  expr_box box = {.i0 = 0, .i1 = 7, .j0 = 0, .j1 = 7, .range = slot_range};
  return expr_bounds(t->tree, &box);
}

static interval now; /* the interval that values are held against */
static const char *side;

static void refuse(const bounds_trial *t, double v, const char *what) {
  char where[300] = "";
  for (int k = 0; k < t->count; k++) {
    interval x = known[slot_of(t, k)];
    size_t used = strlen(where);
    snprintf(where + used, sizeof where - used, " [%g, %g]%s", x.low, x.high,
             x.nan ? " or NaN" : "");
  }
  ck_abort_msg("%s: %s (%.*s) of%s is wrong at the %s %.9g", side,
               expr_op_text(t->op), t->count, t->kind, where, what, v);
}

static void must_hold(const bounds_trial *t, double v) {
  bool inside = isnan(v) ? now.nan : now.low <= v && v <= now.high;
  if (!inside) refuse(t, v, "value");
}

static void look_compiler(const bounds_trial *t) {
  now = compiled(t);
  each_value(t, 0, false, must_hold);
  each_value(t, 0, true, must_hold);
}

START_TEST(compiler_rules) {
  make_trials();
  side = "expr_bounds.c";
  for (int k = 0; k < trial_count; k++)
    each_choice(&trials[k], 0, look_compiler);
}
END_TEST

/* ---- a GPU --------------------------------------------------------------- */

static FILE *written;

/* What gpu/emit/cover.c writes with. */
void put(source_text *s, const char *format, ...) {
  va_list list;
  (void)s;
  va_start(list, format);
  vfprintf(written, format, list);
  va_end(list);
}

static const char prologue[] =
    "#include \"templates/shared/spans.cuh\"\n"
    "struct side { double low, high; int nan; };\n"
    "struct any {\n"
    "  side x;\n"
    "  operator dil_reals() const { return {(float)x.low, (float)x.high,"
    " x.nan != 0}; }\n"
    "  operator dil_range() const { return {(long long)x.low,"
    " (long long)x.high}; }\n"
    "};\n"
    "#define r_read_f32(x, ...) ((dil_reals)(x))\n"
    "#define r_read_i32(x, ...) ((dil_range)(x))\n"
    "static side out(dil_reals x) { return {x.low, x.high, x.nan}; }\n"
    "static side out(dil_range x) {"
    " return {(double)x.low, (double)x.high, 0}; }\n"
    "struct inputs { any input[8]; };\n"
    "extern \"C\" __global__ void bounds(int k, const inputs &at, side *to) {\n"
    "  dil_range i = {0, 7};\n"
    "  switch (k) {\n";

typedef struct gpu_side { double low, high; int nan; } gpu_side;
static void (*gpu_bounds)(int, const gpu_side *, gpu_side *);

static void write_rules(const char *path) {
  pattern inputs = {.input_count = SLOTS};
  plan p = {.pattern = &inputs};
  for (int k = 0; k < SLOTS; k++) {
    bool real = k < KINDS || k == REAL_LIMIT;
    inputs.input[k] = (dil_input){.rank = 1, .dtype = real ? DIL_F32 : DIL_I32};
  }
  written = fopen(path, "w");
  ck_assert_ptr_nonnull(written);
  fputs(prologue, written);
  for (int k = 0; k < trial_count; k++) {
    if (trials[k].scores) continue;
    fprintf(written, "  case %d: *to = out(", k);
    put_condition_range(NULL, &p, trials[k].tree);
    fputs("); break;\n", written);
  }
  fputs("  }\n}\n", written);
  ck_assert_int_eq(fclose(written), 0);
}

static bool load_rules(void) {
  char folder[] = "/tmp/dil-bounds-XXXXXX", path[64], made[64], line[400];
  if (system("c++ --version >/dev/null 2>&1")) return false;
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/rules.cu", folder);
  snprintf(made, sizeof made, "%s/rules.so", folder);
  write_rules(path);
  snprintf(line, sizeof line,
           "c++ -x c++ -std=c++17 -w -fPIC -shared -ffp-contract=off -I. "
           "-include tests/emulator/chip.h %s -o %s -lm", path, made);
  ck_assert_int_eq(system(line), 0);
  void *library = dlopen(made, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
  void *found = dlsym(library, "bounds");
  memcpy(&gpu_bounds, &found, sizeof found);
  unlink(path), unlink(made), rmdir(folder);
  return true;
}

static void look_gpu(const bounds_trial *t) {
  gpu_side at[SLOTS] = {{0, 0, 0}}, to = {0, 0, 0};
  for (int k = 0; k < SLOTS; k++)
    at[k] = (gpu_side){known[k].low, known[k].high, known[k].nan};
  gpu_bounds((int)(t - trials), at, &to);
  now = (interval){to.low, to.high, to.nan};
  each_value(t, 0, false, must_hold);
}

START_TEST(gpu_rules) {
  make_trials();
  side = "cover.cuh";
  if (!load_rules()) {
    printf("skipped: no C++ compiler\n");
    return;
  }
  for (int k = 0; k < trial_count; k++)
    if (!trials[k].scores) each_choice(&trials[k], 0, look_gpu);
}
END_TEST

/* ---- a processor --------------------------------------------------------- */

/* Masks of one trial: is its value at least, at most, exactly the limit? */
enum { AT_LEAST, AT_MOST, EXACTLY, QUESTIONS, TRIALS_ONCE = 16 };
static code_case made;
static code_loaded loaded;
static int first_trial;

static void env_range(const dil_env *env, int32_t index, int32_t axis,
                      const int32_t *at, int32_t first, int32_t last,
                      double *low, double *high) {
  (void)env, (void)axis, (void)at, (void)first, (void)last;
  *low = known[index].low;
  *high = known[index].high;
}

static int32_t verdict(const bounds_trial *t, int question, double limit) {
  dil_env env = {.B = 1, .N = 8, .M = 8, .scale = 1, .range = env_range};
  int place = QUESTIONS * ((int)(t - trials) - first_trial) + question;
  known[REAL_LIMIT] = known[WHOLE_LIMIT] = (interval){limit, limit, false};
  return loaded.code.cover(place, &env, 0, 7, 0, 7);
}

static void must_be_possible(const bounds_trial *t, double v) {
  bool holds = isnan(v) ? verdict(t, AT_LEAST, -INFINITY) != DIL_FULL
                        : verdict(t, EXACTLY, v) != DIL_EMPTY;
  if (!holds) refuse(t, v, "value");
}

static void look_processor(const bounds_trial *t) {
  interval x = compiled(t);
  each_value(t, 0, false, must_be_possible);
  if (x.nan) return;
  if (verdict(t, AT_LEAST, x.low) != DIL_FULL) refuse(t, x.low, "low end");
  if (verdict(t, AT_MOST, x.high) != DIL_FULL) refuse(t, x.high, "high end");
}

/* A condition counts as 0 or 1. */
static expr *number_of(expr *e) {
  if (e->type != TYPE_CONDITION) return e;
  return make_expr(memory, EXPR_CHOOSE, TYPE_I32, 3, e, make_int(memory, 1),
                   make_int(memory, 0));
}

static void make_questions(int first, int end) {
  static const expr_op asks[] = {EXPR_GE, EXPR_LE, EXPR_EQ};
  code_case_open(&made, 8, 8, DIL_F32);
  made.pattern.input_count = made.plan.table.input_count = SLOTS;
  for (int k = 0; k < SLOTS; k++) {
    bool real = k < KINDS || k == REAL_LIMIT;
    made.pattern.input[k] =
        (dil_input){.rank = 1, .dtype = real ? DIL_F32 : DIL_I32};
    made.pattern.dimension[k][0] = make_int(memory, 8);
  }
  made.plan.table.predicate_count = QUESTIONS * (end - first);
  for (int p = 0; p < QUESTIONS * (end - first); p++) {
    expr *x = number_of(trials[first + p / QUESTIONS].tree);
    expr *limit = slot(x->type == TYPE_F32 ? REAL_LIMIT : WHOLE_LIMIT);
    made.predicate[p] =
        (dil_predicate){DIL_ENDLESS, DIL_ENDLESS, true, 0, 0, 0, 0};
    made.mask[p] = make_condition(memory, asks[p % QUESTIONS], x, limit);
  }
}

START_TEST(processor_rules) {
  if (lacks("avx2")) return;
  make_trials();
  side = "cpu/bounds.c";
  int count = 0;
  for (int k = 0; k < trial_count; k++)
    if (!trials[k].scores) trials[count++] = trials[k];
  for (first_trial = 0; first_trial < count; first_trial += TRIALS_ONCE) {
    int end = first_trial + TRIALS_ONCE;
    make_questions(first_trial, end < count ? end : count);
    loaded = code_make(&made, "avx2", DIL_ROWS, false);
    for (int k = first_trial; k < end && k < count; k++)
      each_choice(&trials[k], 0, look_processor);
    code_drop(&loaded);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cpu bounds");
  TCase *cases = tcase_create("rules");
  tcase_add_checked_fixture(cases, open_memory, close_memory);
  tcase_set_timeout(cases, 120);
  tcase_add_test(cases, compiler_rules);
  tcase_add_test(cases, gpu_rules);
  tcase_add_test(cases, processor_rules);
  suite_add_tcase(suite, cases);
  return suite_run(suite, CK_FORK_GETENV);
}
