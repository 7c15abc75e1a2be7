/* plan_text.c - the text form of plans, out and in.
 *
 *     plan 1 longnet          the version of this form, and the pattern
 *     visit dedup             how keys of several branches are visited
 *     direction backward      gradients; without this line the plan is forward
 *     pass 0 1 2              the branches of each pass, in order
 *     pattern longnet { ... } the meaning, as canonical .dil text
 *
 * Comments tell what follows from these: classes, predicates, score chains. */
#include "planner.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- out ----------------------------------------------------------------- */

static void print_pass_branches(const plan *p, uint64_t branches, FILE *out) {
  for (const char *space = ""; branches; branches &= branches - 1) {
    int32_t b = __builtin_ctzll(branches);
    const char *name = p->pattern->branch[b].name;
    if (name) fprintf(out, "%s%s", space, name);
    else fprintf(out, "%s%d", space, b);
    space = " ";
  }
}

/* Returns whether a class before c has the same branches: where a branch has
 * every phase, each residue has a class. */
static bool is_told(const class_table *s, int32_t c) {
  for (int32_t d = 0; d < c; d++)
    if (s->branches[d] == s->branches[c]) return true;
  return false;
}

/* The keys that one class sees of the other classes of its own cell. */
static void print_class(const plan *p, const class_table *s, int32_t c,
                        FILE *out) {
  int32_t rows = 0;
  for (int32_t d = 0; d < s->count; d++)
    if (s->branches[d] == s->branches[c]) rows += s->first[d + 1] - s->first[d];
  fprintf(out, "#   %d/%lld of the rows: ", rows, (long long)s->period);
  print_pass_branches(p, s->branches[c], out);
  fprintf(out, "; keys of");
  const char *comma = " ";
  for (int32_t d = 0; d < s->count; d++) {
    uint64_t both = s->branches[c] & s->branches[d];
    if (!both || is_told(s, d)) continue;
    fprintf(out, "%s(", comma);
    print_pass_branches(p, s->branches[d], out);
    fprintf(out, ") x%d", __builtin_popcountll(both));
    comma = ", ";
  }
  fprintf(out, "\n");
}

/* The first head that the pass serves; false: `heads split` gave it none. */
static bool find_head(walk *w) {
  for (w->head = 0; w->head < w->table->heads; w->head++)
    if ((w->served = walk_served(w->table, w->pass, w->head))) return true;
  return false;
}

/* The classes of the first cell, for the first head that the pass serves. */
static void print_classes(arena *a, const plan *p, const dil_pass *pass,
                          FILE *out) {
  if (pass->period > DIL_PERIOD_MAX) return; /* one branch, one class */
  walk w = {.table = &p->table, .pass = pass, .round = 1};
  if (!find_head(&w)) return;
  void *memory = arena_take(a, 1, class_table_size(pass->period));
  class_table s;
  class_table_init(&s, pass->period, memory);
  segment_cell c = walk_cell(&w, 0, INT32_MAX);
  walk_classes(&w, c, &s);
  if (c.high == INT32_MAX) fprintf(out, "# head %d, one cell:\n", w.head);
  else
    fprintf(out, "# head %d, cell of %lld positions:\n", w.head,
            (long long)c.high);
  if (s.modulus > 1)
    fprintf(out, "#   each residue modulo %lld by itself:\n",
            (long long)s.modulus);
  for (int32_t i = 0; i < s.count; i++)
    if (s.branches[i] && !is_told(&s, i)) print_class(p, &s, i, out);
}

static void print_window_bound(int64_t bound, FILE *out) {
  if (bound == DIL_ENDLESS) fprintf(out, "inf");
  else fprintf(out, "%lld", (long long)bound);
}

/* Nothing where first and end are 0. */
static void print_range(const char *what, int64_t first, int64_t end,
                        FILE *out) {
  if (!first && !end) return;
  fprintf(out, "; %s %lld..", what, (long long)first);
  if (end) fprintf(out, "%lld", (long long)end - 1);
}

static void print_predicate(const plan *p, int32_t i, FILE *out) {
  const dil_predicate *x = &p->table.predicates[i];
  fprintf(out, "# predicate %d: window ", i);
  print_window_bound(p->table.predicates[i].left, out);
  fprintf(out, ", ");
  print_window_bound(p->table.predicates[i].right, out);
  print_range("keys", x->key_first, x->key_end, out);
  print_range("rows", x->row_first, x->row_end, out);
  if (p->predicate[i]) {
    fprintf(out, "; mask ");
    expr_print(p->predicate[i], p->pattern->input, out);
  }
  fprintf(out, "\n");
}

static void print_chain(const plan *p, int32_t c, FILE *out) {
  if (!p->chain[c][0]) return;
  fprintf(out, "# score chain %d:", c);
  for (expr **e = p->chain[c]; *e; e++) {
    fprintf(out, " s = ");
    expr_print(*e, p->pattern->input, out);
    fprintf(out, ";");
  }
  fprintf(out, "\n");
}

/* Windows as the walk of key tiles has them. */
static void print_turned_windows(const plan *p, FILE *out) {
  const dil_table *t = &p->table;
  for (int32_t i = 0; i < t->predicate_count; i++) {
    fprintf(out, "#          predicate %d turned round: window ", i);
    print_window_bound(t->predicates[i].right, out);
    fprintf(out, ", ");
    print_window_bound(t->predicates[i].left, out);
    fprintf(out, "\n");
  }
}

/* The passes of gradients that each pass below becomes. */
static void print_direction(const plan *p, FILE *out) {
  const dil_table *t = &p->table;
  bool remade = combine_is_additive(t) || t->detached;
  if (p->direction != DIL_BACKWARD) return;
  fprintf(out, "direction backward\n");
  fprintf(out, "# delta    query rows: delta from dO and %s\n",
          remade ? "each pass's own o, made again" : "o");
  fprintf(out, "# dkv      key tiles, over the query rows that see them: "
               "dK, dV\n");
  print_turned_windows(p, out);
  fprintf(out, "# dq       query tiles, over the keys that they see: dQ, "
               "unless dkv adds to it\n");
  for (int32_t i = 0; i < t->input_count; i++)
    if (t->inputs[i].gradient)
      fprintf(out, "# inputs   query rows: the gradient of %s\n",
              t->inputs[i].name);
}

static void print_within(arena *a, const plan *p, FILE *out) {
  const dil_table *t = &p->table;
  fprintf(out, "plan 1 %s\n", t->name);
  fprintf(out, "visit %s%s\n", t->dedup ? "dedup" : "multiset",
          t->general ? " general" : "");
  print_direction(p, out);
  for (int32_t i = 0; i < t->predicate_count; i++) print_predicate(p, i, out);
  for (int32_t c = 0; c < t->chain_count; c++) print_chain(p, c, out);
  for (int32_t i = 0; i < t->pass_count; i++) {
    fprintf(out, "pass");
    for (uint64_t rest = t->passes[i].branches; rest; rest &= rest - 1)
      fprintf(out, " %d", __builtin_ctzll(rest));
    fprintf(out, "  # period %lld\n", (long long)t->passes[i].period);
    print_classes(a, p, &t->passes[i], out);
  }
  pattern_print_within(a, p->pattern, out);
}

void plan_print(const plan *p, FILE *out) { print_within(p->arena, p, out); }

/* An arena of its own: several threads may write one plan. */
bool plan_write(const plan *p, FILE *out) {
  jmp_buf lost;
  arena *a = arena_new();
  if (!a) return false;
  arena_catch(a, &lost);
  bool whole = !setjmp(lost);
  if (whole) print_within(a, p, out);
  arena_free(a);
  return whole && !ferror(out);
}

uint64_t plan_hash(const plan *p) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) arena_lack(p->arena);
  bool whole = plan_write(p, out);
  if (fclose(out) || !whole) {
    free(text);
    arena_lack(p->arena);
  }
  uint64_t hash = XXH3_64bits(text, length);
  free(text);
  return hash;
}

/* ---- in ------------------------------------------------------------------ */

/* The lines above the pattern, word by word. */
typedef struct plan_reader {
  const source *source;
  diag *diag;
  const char *at, *end; /* the rest of the line */
  span word;
} plan_reader;

static bool read_word(plan_reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\t')) r->at++;
  const char *begin = r->at;
  while (r->at < r->end && !strchr(" \t#\n", *r->at)) r->at++;
  r->word = (span){r->source, (int32_t)(begin - r->source->text),
                   (int32_t)(r->at - r->source->text)};
  return begin < r->at;
}

static bool word_is(const plan_reader *r, const char *text) {
  size_t length = (size_t)(r->word.end - r->word.start);
  return length == strlen(text) &&
         !memcmp(r->source->text + r->word.start, text, length);
}

static void plan_text_complain(const plan_reader *r, const char *wanted) {
  diag_report(r->diag, SEVERITY_ERROR, r->word,
              "the form is: plan 1 NAME, visit MODE, pass BRANCH...",
              "expected %s in a plan, got '%.*s'", wanted,
              r->word.end - r->word.start,
              r->source->text + r->word.start);
}

static void read_plan_line(plan_reader *r) {
  if (!read_word(r) || !word_is(r, "1"))
    plan_text_complain(r, "version 1");
  else if (!read_word(r))
    plan_text_complain(r, "the pattern's name");
}

static void read_visit(plan_reader *r, unsigned *force) {
  while (read_word(r)) {
    if (word_is(r, "multiset")) *force |= FORCE_MULTISET;
    else if (word_is(r, "general")) *force |= FORCE_GENERAL;
    else if (!word_is(r, "dedup"))
      plan_text_complain(r, "`dedup`, `multiset` or `general`");
  }
}

static dil_direction read_direction(plan_reader *r) {
  if (read_word(r) && word_is(r, "backward")) return DIL_BACKWARD;
  if (!word_is(r, "forward")) plan_text_complain(r, "`forward` or `backward`");
  return DIL_FORWARD;
}

static uint64_t read_pass(plan_reader *r) {
  uint64_t branches = 0;
  while (read_word(r)) {
    char *stop;
    long b = strtol(r->source->text + r->word.start, &stop, 10);
    if (stop != r->source->text + r->word.end || b < 0 || b >= DIL_BRANCH_MAX)
      plan_text_complain(r, "a branch number");
    else branches |= 1ull << b;
  }
  if (!branches) plan_text_complain(r, "a branch number");
  return branches;
}

typedef struct plan_header {
  unsigned force;
  dil_direction direction;
  int32_t pass_count;
  uint64_t pass[DIL_BRANCH_MAX];
  size_t length; /* of the text above the pattern */
} plan_header;

static void read_text_line(plan_reader *r, plan_header *h) {
  if (!read_word(r)) return;
  if (word_is(r, "plan"))
    read_plan_line(r);
  else if (word_is(r, "visit")) read_visit(r, &h->force);
  else if (word_is(r, "direction"))
    h->direction = read_direction(r);
  else if (!word_is(r, "pass"))
    plan_text_complain(r, "`plan`, `visit`, `direction` or `pass`");
  else if (h->pass_count == DIL_BRANCH_MAX)
    plan_text_complain(r, "fewer passes");
  else h->pass[h->pass_count++] = read_pass(r);
}

static plan_header read_text_lines(diag *d, const source *s) {
  plan_header h = {0};
  const char *line = s->text, *end = s->text + s->length;
  while (line < end && strncmp(line, "pattern", 7)) {
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    if (!stop) stop = end;
    plan_reader r = {s, d, line, stop, {0}};
    read_text_line(&r, &h);
    line = stop < end ? stop + 1 : end;
  }
  h.length = (size_t)(line - s->text);
  return h;
}

/* The same text with the lines above the pattern blanked, so that places in
 * messages stay true. */
static const pattern *read_plan_pattern(arena *a, diag *d, const source *s,
                                        size_t skip) {
  char *text = arena_copy(a, s->text, s->length);
  for (size_t i = 0; i < skip; i++)
    if (text[i] != '\n') text[i] = ' ';
  program *p = program_parse(a, d, s->path, text, s->length, NULL, 0);
  if (!p) return NULL;
  if (p->pattern_count == 1) return p->pattern[0];
  diag_report(d, SEVERITY_ERROR, (span){s, (int32_t)skip, (int32_t)skip}, NULL,
              "a plan holds one pattern, got %d", p->pattern_count);
  return NULL;
}

/* Every branch in exactly one pass. */
static bool is_partition(const plan_header *h, int32_t branches) {
  uint64_t seen = 0;
  bool apart = true;
  for (int32_t i = 0; i < h->pass_count; i++) {
    apart &= !(seen & h->pass[i]);
    seen |= h->pass[i];
  }
  return apart && seen == (branches == 64 ? ~0ull : (1ull << branches) - 1);
}

plan *plan_parse(arena *a, diag *d, const char *path, const char *text,
                 size_t length) {
  int before = diag_errors(d);
  source *s = ARENA_NEW(a, source);
  *s = (source){.path = path, .text = arena_copy(a, text, length),
                .length = length};
  plan_header h = read_text_lines(d, s);
  span at = {s, 0, (int32_t)h.length};
  const pattern *p = read_plan_pattern(a, d, s, h.length);
  if (!p || diag_errors(d) > before) return NULL;
  planner pl = plan_begin(a, d, p, h.force);
  if (diag_errors(d) > before) return NULL;
  plan_direct(&pl, h.direction);
  if (!is_partition(&h, p->branch_count)) {
    diag_report(d, SEVERITY_ERROR, at,
                "`--from plan` reads what `dil print --after plan` printed",
                "the passes of a plan must hold each of the %d branches once",
                p->branch_count);
    return NULL;
  }
  dil_pass *passes = (dil_pass *)pl.plan->table.passes;
  pl.plan->table.pass_count = h.pass_count;
  for (int32_t i = 0; i < h.pass_count; i++)
    passes[i] = (dil_pass){h.pass[i], walk_period(&pl.plan->table, h.pass[i])};
  return plan_passes_fit(&pl, at) ? pl.plan : NULL;
}
