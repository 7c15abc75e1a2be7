/* check_topology.c - topologies, schedules and the kernels that bind them to
 * patterns. What no back end of a build has is refused later, by the plan. */
#include "checker.h"
#include <string.h>

enum { DEVICES_MAX = 1 << 20 };
#define TIMEOUT_DEFAULT 30.0 /* seconds */

/* ---- topology ------------------------------------------------------------ */

static layout_kind word_layout(word w) {
  switch (w) {
  case WORD_CONTIGUOUS: return LAYOUT_CONTIGUOUS;
  case WORD_ZIGZAG: return LAYOUT_ZIGZAG;
  case WORD_STRIPED: return LAYOUT_STRIPED;
  default: return LAYOUT_DEFAULT;
  }
}

static link_kind link_of(word w) {
  switch (w) {
  case WORD_THREAD: return LINK_THREAD;
  case WORD_MPI: return LINK_MPI;
  case WORD_PROCESS: return LINK_PROCESS;
  case WORD_NCCL: return LINK_NCCL;
  default: return LINK_DEFAULT;
  }
}

static exchange_kind word_exchange(word w) {
  switch (w) {
  case WORD_RING: return EXCHANGE_RING;
  case WORD_GATHER: return EXCHANGE_GATHER;
  default: return EXCHANGE_AUTO;
  }
}

static word choice_of(const statement *s) {
  return s ? s->choice : WORD_NONE;
}

/* One when the topology is silent. */
static bool check_ranks(const scope *s, const clauses *own, word w,
                        int64_t *count) {
  *count = 1;
  if (!own->of[w]) return true;
  scope inner = scope_at(s, CONTEXT_LET, word_text(w));
  return check_count(&inner, argument(own->of[w], 0), 1, DEVICES_MAX, NULL,
                     count);
}

/* A ring that is not written is what heads and batch leave. */
static void check_product(const scope *s, const statement *given,
                          const clauses *own, topology *t) {
  int64_t rest = t->heads * t->batch;
  if (!own->of[WORD_RING] && t->devices % rest == 0)
    t->ring = t->devices / rest;
  if (t->ring * rest == t->devices) return;
  const statement *devices = own->of[WORD_DEVICES];
  check_error(s->c, devices ? devices->at : given->name_at,
              arena_print(s->c->arena, "`devices %lld;`",
                          (long long)(t->ring * rest)),
              "ring %lld * heads %lld * batch %lld is %lld, not %lld devices",
              (long long)t->ring, (long long)t->heads, (long long)t->batch,
              (long long)(t->ring * rest), (long long)t->devices);
}

static double check_timeout(checker *c, const statement *given) {
  if (!given) return TIMEOUT_DEFAULT;
  const term *t = argument(given, 0);
  double number = t->kind == TERM_INT ? (double)t->integer : t->real;
  const char *unit = given->name, *hint = "`timeout 30s;` or `timeout 500ms;`";
  bool milli = unit && !strcmp(unit, "ms");
  if (!unit)
    check_error(c, t->at, hint, "timeout %g has no unit of time", number);
  else if (!milli && strcmp(unit, "s"))
    check_error(c, given->name_at, hint, "unknown unit of time '%s'", unit);
  if (number <= 0)
    check_error(c, t->at, NULL, "timeout must be above 0, got %g", number);
  return milli ? number / 1000 : number;
}

topology *check_topology(checker *c, const statement *s) {
  clauses own;
  clauses_collect(c, s->child, &own);
  topology *t = ARENA_NEW(c->arena, topology);
  t->name = s->name;
  t->at = s->name_at;
  scope outside = {.c = c};
  bool good = check_ranks(&outside, &own, WORD_DEVICES, &t->devices);
  good &= check_ranks(&outside, &own, WORD_RING, &t->ring);
  good &= check_ranks(&outside, &own, WORD_HEADS, &t->heads);
  good &= check_ranks(&outside, &own, WORD_BATCH, &t->batch);
  if (good) check_product(&outside, s, &own, t);
  t->timeout = check_timeout(c, own.of[WORD_TIMEOUT]);
  t->layout = word_layout(choice_of(own.of[WORD_LAYOUT]));
  t->link = link_of(choice_of(own.of[WORD_LINK]));
  t->exchange = word_exchange(choice_of(own.of[WORD_EXCHANGE]));
  return t;
}

/* ---- schedule ------------------------------------------------------------ */

static bool is_double(checker *c, const schedule *made, const statement *s) {
  for (int32_t i = 0; i < made->knob_count; i++) {
    if (made->knob[i].name != s->name) continue;
    check_error(c, s->name_at, NULL, "knob '%s' stands twice", s->name);
    return true;
  }
  return false;
}

/* The word that is a knob's value; NULL: its values are numbers. A name that a
 * `let` declares is a number. */
static const char *knob_word(const checker *c, const statement *s) {
  static const char *const words[] = {"general", "fixed", "any"};
  const term *only = s->args.count == 1 ? s->args.first : NULL;
  if (s->choice == WORD_FAST) return "fast";
  if (!only || only->kind != TERM_NAME ||
      symbol_find(c, SYMBOL_LET, only->name))
    return NULL;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strcmp(only->name, words[i])) return words[i];
  return NULL;
}

static void check_knob(checker *c, const statement *s, knob *k) {
  enum { VALUES = sizeof k->value / sizeof *k->value };
  k->name = s->name;
  k->at = s->name_at;
  k->word = knob_word(c, s);
  if (k->word) return;
  scope outside = {.c = c, .context = CONTEXT_LET, .what = s->name};
  if (s->args.count > VALUES) {
    check_error(c, s->name_at, NULL, "knob '%s' has %d values, at most %d",
                s->name, s->args.count, VALUES);
    return;
  }
  for (const term *t = s->args.first; t; t = t->next)
    check_count(&outside, t, INT64_MIN, INT64_MAX, NULL,
                &k->value[k->count++]);
}

schedule *check_schedule(checker *c, const statement *s) {
  schedule *made = ARENA_NEW(c->arena, schedule);
  made->name = s->name;
  made->at = s->name_at;
  int32_t count = 0;
  for (const statement *k = s->child; k; k = k->next) count++;
  made->knob = ARENA_ARRAY(c->arena, knob, count);
  for (const statement *k = s->child; k; k = k->next)
    if (!is_double(c, made, k))
      check_knob(c, k, &made->knob[made->knob_count++]);
  return made;
}

/* ---- kernel -------------------------------------------------------------- */

/* More ranks than heads would leave some without work. */
void check_share(checker *c, const kernel *k, span at) {
  if (!k->topology || !k->pattern || k->pattern->heads < 1) return;
  if (k->topology->heads <= k->pattern->heads) return;
  check_error(c, at, NULL,
              "topology '%s' splits heads over %lld ranks, pattern '%s' has "
              "%lld",
              k->topology->name, (long long)k->topology->heads,
              k->pattern->name, (long long)k->pattern->heads);
}

static void check_grid_ranks(checker *c, const kernel *k, span at) {
  if (!k->topology || !k->pattern || !k->pattern->grid.axes) return;
  if (k->topology->ring > 1)
    check_error(c, at, "a topology of `heads` or `batch` alone shares it out",
                "pattern '%s' has a grid, which has no ring",
                k->pattern->name);
}

kernel *check_kernel(checker *c, const statement *s) {
  kernel *k = ARENA_NEW(c->arena, kernel);
  k->name = s->name;
  k->at = s->name_at;
  k->backward = s->choice == WORD_BACKWARD;
  for (const statement *part = s->child; part; part = part->next) {
    const char *name = part->name;
    span at = part->name_at;
    if (part->word == WORD_PATTERN)
      k->pattern = symbol_resolve(c, SYMBOL_PATTERN, name, at);
    if (part->word == WORD_WITH)
      k->schedule = symbol_resolve(c, SYMBOL_SCHEDULE, name, at);
    if (part->word != WORD_ON) continue;
    k->topology = symbol_resolve(c, SYMBOL_TOPOLOGY, name, at);
    check_share(c, k, at);
    check_grid_ranks(c, k, at);
  }
  return k;
}
