/* spec.c - random patterns: draws one from a seed and prints it as .dil text.
 * Legal ones only: what the checker does not accept of these is a fault. */
#include "spec.h"
#include "spec_words.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define COUNT(table) ((int32_t)(sizeof(table) / sizeof(table)[0]))

/* ---- drawing ------------------------------------------------------------- */

static uint32_t draw_bits(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (uint32_t)(z >> 32);
}
static int32_t draw(uint64_t *state, int32_t low, int32_t high) {
  return low + (int32_t)(draw_bits(state) % (uint32_t)(high - low + 1));
}
static bool chance(uint64_t *state, int32_t percent) {
  return draw(state, 0, 99) < percent;
}
/* An index of a table, 0 in all but `percent` of the cases. */
static int32_t pick(uint64_t *state, int32_t percent, int32_t count) {
  return chance(state, percent) ? draw(state, 1, count - 1) : 0;
}

/* Mostly a common width, sometimes any. */
static int32_t draw_width(uint64_t *state) {
  if (chance(state, 80)) return widths[draw(state, 0, COUNT(widths) - 1)];
  return draw(state, 1, chance(state, 70) ? 64 : 256);
}

static void draw_window(uint64_t *state, int32_t percent, int32_t *left,
                        int32_t *right) {
  *left = *right = -1;
  if (!chance(state, percent)) return;
  *left = chance(state, 80) ? draw(state, 0, 60) : -1;
  *right = chance(state, 70) ? draw(state, 0, 40) : -1;
}

static spec_branch draw_branch(const spec *s, uint64_t *state) {
  spec_branch b = {.dilation = 1, .head_last = s->heads - 1};
  b.segment = chance(state, 75) ? draw(state, 1, 130) : 0;
  if (chance(state, 60)) b.dilation = draw(state, 1, 8);
  /* A union is one pass, whose common period has a limit. */
  if (s->combine != 1 && chance(state, 5)) b.dilation = draw(state, 9, 40);
  draw_window(state, 20, &b.left, &b.right);
  b.mask = pick(state, 15, COUNT(masks));
  if (s->combine != 1) b.score = pick(state, 12, COUNT(scores));
  b.phase = pick(state, 15, COUNT(phases));
  b.causal = chance(state, 10);
  if (!s->split && chance(state, 15)) {
    b.head_first = draw(state, 0, s->heads - 1);
    b.head_last = draw(state, b.head_first, s->heads - 1);
  }
  return b;
}

static void draw_sizes(spec *s, uint64_t *state) {
  s->batch = chance(state, 25) ? draw(state, 2, SPEC_BATCHES) : 1;
  s->queries = lengths[draw(state, 0, COUNT(lengths) - 1)];
  s->keys = chance(state, 60) ? s->queries
                              : lengths[draw(state, 0, COUNT(lengths) - 1)];
  if (chance(state, 20)) s->queries = draw(state, 1, 20);
  if (chance(state, 2)) s->keys = 0;
  if (s->heads <= 2 && chance(state, 8)) { /* several blocks and strips */
    s->keys = draw(state, 1000, 3500);
    if (chance(state, 50)) s->queries = s->keys - draw(state, 0, 300);
  }
  s->layout = draw(state, 0, 3);
  s->lengths = chance(state, 20);
  s->threads = draw(state, 1, 3);
  s->isa = draw(state, 0, 5);
  s->force = draw(state, 0, 4);
}

/* Drawn last, so that patterns without sinks stay those of their seeds. */
static void draw_sinks(spec *s, uint64_t *state) {
  if (!chance(state, 20)) return;
  s->sink = pick(state, 60, COUNT(sinks));
  for (int32_t i = 0; i < s->branch_count; i++)
    s->branch[i].sink = pick(state, 40, COUNT(sinks));
}

/* A grid whose cells are the queries and keys. `more`: longer axes. */
static void place_grid(spec *s, uint64_t *state, int32_t more) {
  bool solid = chance(state, 40);
  s->grid[0] = solid ? draw(state, 1, 7 + more / 4) : 0;
  s->grid[1] = draw(state, 1, solid ? 8 + more / 4 : 24 + more);
  s->grid[2] = draw(state, 1, solid ? 9 + more / 2 : 24 + more);
  s->queries = s->keys = (solid ? s->grid[0] : 1) * s->grid[1] * s->grid[2];
  s->lengths = s->phase = s->causal = 0;
  s->left = s->right = -1;
  for (int32_t i = 0; i < s->branch_count; i++) {
    spec_branch *b = &s->branch[i];
    b->segment = b->phase = b->causal = 0;
    b->dilation = 1;
    b->left = b->right = -1;
    b->reach = pick(state, 80, COUNT(reaches[0]));
  }
}

/* Drawn behind all that patterns without a grid have. */
static void draw_grid(spec *s, uint64_t *state) {
  if (chance(state, 12)) place_grid(s, state, 0);
}

/* Lists of keys, drawn last. */
static void draw_keys(spec *s, uint64_t *state) {
  if (!chance(state, 12)) return;
  for (int32_t i = 0; i < s->branch_count; i++)
    s->branch[i].keys = chance(state, 60);
}

spec spec_random(uint32_t seed) {
  uint64_t space = seed * 0x2545F4914F6CDD1Du + 77, *state = &space;
  spec s;
  memset(&s, 0, sizeof s); /* compared by bytes */
  s.seed = seed;
  s.kv_heads = draw(state, 1, 3);
  s.heads = s.kv_heads * draw(state, 1, 3);
  s.head_dim = draw_width(state);
  s.value_dim = chance(state, 70) ? s.head_dim : draw_width(state);
  s.dtype = draw(state, 0, 2);
  s.combine = chance(state, 50) ? 0 : draw(state, 1, 3);
  s.phase = pick(state, 40, COUNT(phases));
  s.causal = chance(state, 40);
  s.split = chance(state, 10);
  s.scale = pick(state, 20, COUNT(scales));
  s.dropout = chance(state, 8);
  s.mask = pick(state, 25, COUNT(masks));
  s.score = pick(state, 20, COUNT(scores));
  s.keep = pick(state, 12, COUNT(keeps));
  s.block = chance(state, 50) ? draw(state, 1, 5) * 8 : draw(state, 1, 130);
  draw_window(state, 12, &s.left, &s.right);
  s.branch_count = draw(state, 1, SPEC_BRANCHES);
  for (int32_t i = 0; i < s.branch_count; i++)
    s.branch[i] = draw_branch(&s, state);
  draw_sizes(&s, state);
  draw_sinks(&s, state);
  draw_grid(&s, state);
  draw_keys(&s, state);
  return s;
}

/* Of one branch mostly: several that share a softmax have no patches. */
spec spec_grids(uint32_t seed) {
  enum { MORE = 12 };
  uint64_t space = seed * 0x2545F4914F6CDD1Du + 80, *state = &space;
  spec s = spec_random(seed);
  if (chance(state, 60)) {
    s.branch_count = 1;
    memset(s.branch + 1, 0, (SPEC_BRANCHES - 1) * sizeof s.branch[0]);
  }
  place_grid(&s, state, MORE);
  return s;
}

/* ---- choices of blocks ---------------------------------------------------- */

/* Keeps beside a choice take whole blocks. */
static bool is_of_blocks(const char *keep) { return !strstr(keep, "i %"); }

spec spec_choices(uint32_t seed) {
  enum { MOST = 2 /* a choice takes three of the arrays that a pattern may read */ };
  uint64_t space = seed * 0x2545F4914F6CDD1Du + 79, *state = &space;
  spec s = spec_random(seed);
  memset(s.grid, 0, sizeof s.grid);
  if (s.branch_count > MOST) s.branch_count = MOST;
  memset(s.branch + MOST, 0, (SPEC_BRANCHES - MOST) * sizeof s.branch[0]);
  if (!is_of_blocks(keeps[s.keep])) s.keep = 0;
  if (chance(state, 50)) s.keep = 0;
  if (strstr(phases[s.phase], "each")) s.phase = 0;
  s.block = chance(state, 60) ? draw(state, 1, 5) * 8 : draw(state, 1, 60);
  for (int32_t i = 0; i < s.branch_count; i++) {
    spec_branch *b = &s.branch[i];
    b->reach = 0;
    if (strstr(phases[b->phase], "each")) b->phase = 0;
    b->choice = draw(state, i > 0 ? 0 : 1, COUNT(choices) - 1);
    b->shared = b->choice && chance(state, 30);
    if (chance(state, 50)) b->segment = 0;
    if (chance(state, 50)) b->dilation = 1;
  }
  return s;
}

bool spec_chooses(const spec *s) {
  for (int32_t i = 0; i < s->branch_count; i++)
    if (s->branch[i].choice) return true;
  return false;
}

/* ---- what the Hopper kernels take ----------------------------------------- */

static const int32_t even_widths[] = {64, 64, 64, 64, 64, 32, 32, 32, 128,
                                      40, 8, 96, 104, 192, 256};

/* Segments that grow by one factor, dilations by another. */
static void draw_nested(spec *s, uint64_t *state) {
  int32_t segment = draw(state, 0, 1) ? 64 << draw(state, 0, 3)
                                      : draw(state, 48, 400);
  int32_t wider = draw(state, 2, 4), sparser = draw(state, 1, 4), dilation = 1;
  if (chance(state, 20)) dilation = draw(state, 2, 5);
  for (int32_t i = 0; i < s->branch_count; i++) {
    s->branch[i].segment = segment;
    s->branch[i].dilation = dilation;
    segment *= segment < 3000 ? wider : 1;
    dilation *= dilation < 12 ? sparser : 1;
  }
}

static void draw_hopper_branch(spec *s, spec_branch *b, uint64_t *state) {
  b->segment = chance(state, 70) ? draw(state, 60, 1500) : 0;
  b->dilation = chance(state, 60) ? draw(state, 1, 12) : 1;
  if (b->segment && chance(state, 50)) /* a multiple of it */
    b->segment = (b->segment + b->dilation - 1) / b->dilation * b->dilation;
  if (s->branch_count == 1 && chance(state, 25))
    b->dilation = draw(state, 13, 200);
}

static void draw_hopper_sizes(spec *s, uint64_t *state) {
  s->queries = draw(state, 64, chance(state, 20) ? 1300 : 450);
  s->keys = s->queries;
  if (chance(state, 50))
    s->keys = draw(state, 1, chance(state, 30) ? 1300 : 500);
  s->batch = chance(state, 40) ? draw(state, 2, SPEC_BATCHES) : 1;
  s->lengths = chance(state, 35);
  s->layout = chance(state, 8) ? 2 : draw(state, 0, 1); /* few with holes */
  s->force = draw(state, 0, 3);
}

/* Windows, masks and scores are rarer: each mask is a kernel of its own. */
static void draw_hopper_conditions(spec *s, uint64_t *state) {
  bool plain = chance(state, 70), alike = chance(state, 60);
  if (plain) s->mask = s->score = s->keep = 0;
  if (chance(state, 80)) s->left = s->right = -1;
  for (int32_t i = 0; i < s->branch_count; i++) {
    spec_branch *b = &s->branch[i];
    if (plain) b->mask = b->score = 0;
    if (alike) b->left = b->right = -1;
    else if (b->left >= 0 && chance(state, 50)) b->left *= 9;
  }
}

spec spec_hopper(uint32_t seed) {
  uint64_t space = seed * 0x2545F4914F6CDD1Du + 78, *state = &space;
  spec s = spec_random(seed);
  memset(s.grid, 0, sizeof s.grid);
  for (int32_t i = 0; i < s.branch_count; i++) s.branch[i].reach = 0;
  s.dtype = draw(state, 1, 2);
  s.head_dim = even_widths[draw(state, 0, COUNT(even_widths) - 1)];
  s.value_dim = chance(state, 75)
                    ? s.head_dim
                    : even_widths[draw(state, 0, COUNT(even_widths) - 1)];
  for (int32_t i = 0; i < s.branch_count; i++) s.branch[i].sink = 0;
  if (s.scale > 3) s.scale = 0; /* none that is not positive */
  if (chance(state, 45)) draw_nested(&s, state);
  else
    for (int32_t i = 0; i < s.branch_count; i++)
      draw_hopper_branch(&s, &s.branch[i], state);
  draw_hopper_conditions(&s, state);
  draw_hopper_sizes(&s, state);
  return s;
}

spec spec_hopper_grids(uint32_t seed) {
  uint64_t space = seed * 0x2545F4914F6CDD1Du + 81, *state = &space;
  spec grid = spec_grids(seed), h = spec_hopper(seed);
  spec s = {.seed = seed, .heads = h.heads, .kv_heads = h.kv_heads, .dtype = h.dtype,
            .head_dim = h.head_dim % 136, .value_dim = h.value_dim % 136,
            .scale = h.scale, .left = -1, .right = -1, .branch_count = 1, .batch =
            h.batch, .force = h.force, .grid = {grid.grid[0], grid.grid[1]}};
  s.branch[0] = (spec_branch){.dilation = 1, .left = -1, .right = -1,
                              .head_last = s.heads - 1, .reach = draw(state, 1, 8)};
  s.grid[2] = 16 * draw(state, 1, 4) - draw(state, 0, 2);
  s.queries = s.keys = (s.grid[0] ? s.grid[0] : 1) * s.grid[1] * s.grid[2];
  s.sink = pick(state, 30, COUNT(sinks));
  return s;
}

spec spec_hopper_choices(uint32_t seed) {
  uint64_t space = seed * 0x2545F4914F6CDD1Du + 82, *state = &space;
  spec h = spec_hopper(seed);
  spec s = {.seed = seed, .heads = h.heads, .kv_heads = h.kv_heads, .dtype = h.dtype,
            .head_dim = h.head_dim % 136, .value_dim = h.value_dim % 136,
            .scale = h.scale, .left = -1, .right = -1, .branch_count = 1, .batch =
            h.batch, .layout = h.layout, .force = h.force,
            .lengths = h.lengths, .rows = 1};
  s.branch[0] = (spec_branch){.dilation = 1, .left = -1, .right = -1,
                              .head_last = s.heads - 1,
                              .choice = draw(state, 1, COUNT(choices) - 1),
                              .shared = chance(state, 30),
                              .causal = draw(state, 0, 1)};
  s.block = chance(state, 50) ? draw(state, 2, 16) * 8 : draw(state, 10, 200);
  s.keys = draw(state, 300, chance(state, 20) ? 1500 : 700);
  s.queries = chance(state, 60) ? s.keys : draw(state, 64, s.keys);
  s.sink = pick(state, 30, COUNT(sinks));
  return s;
}

/* ---- printing ------------------------------------------------------------ */

typedef struct spec_writer {
  char *text;
  size_t size, length;
} spec_writer;

static void __attribute__((format(printf, 2, 3))) put(spec_writer *w,
                                                      const char *format, ...) {
  va_list list;
  va_start(list, format);
  int added = vsnprintf(w->text + w->length, w->size - w->length, format, list);
  va_end(list);
  if (added > 0) w->length += (size_t)added;
  if (w->length >= w->size) w->length = w->size - 1;
}

static void put_window(spec_writer *w, int32_t left, int32_t right) {
  if (left < 0 && right < 0) return;
  put(w, " window ");
  if (left < 0) put(w, "inf, ");
  else put(w, "%d, ", left);
  if (right < 0) put(w, "inf;");
  else put(w, "%d;", right);
}

static void put_branch(spec_writer *w, const spec *s, const spec_branch *b) {
  put(w, "  branch {");
  if (b->segment) put(w, " segment %d;", b->segment);
  if (b->dilation != 1) put(w, " dilation %d;", b->dilation);
  if (b->head_first > 0 || b->head_last < s->heads - 1)
    put(w, " heads %d..%d;", b->head_first, b->head_last);
  if (b->phase) put(w, " phase %s;", phases[b->phase]);
  if (b->causal) put(w, " causal;");
  put_window(w, b->left, b->right);
  if (b->reach) put(w, " %s", reaches[s->grid[0] > 0][b->reach]);
  if (b->mask) put(w, " mask %s;", masks[b->mask]);
  if (b->keys) put(w, " keys vertical;");
  if (b->choice)
    put(w, " keep %s;%s", choices[b->choice], b->shared ? " shared kv;" : "");
  if (b->score) put(w, " score %s;", scores[b->score]);
  if (b->sink) put(w, " sink %s;", sinks[b->sink]);
  put(w, " }\n");
}

/* In a score or a sink. */
static bool spec_weighs(const spec *s, const char *words) {
  bool found = strstr(sinks[s->sink], words) || strstr(scores[s->score], words);
  for (int32_t i = 0; i < s->branch_count; i++)
    found |= strstr(sinks[s->branch[i].sink], words) ||
             strstr(scores[s->branch[i].score], words);
  return found;
}

bool spec_says(const spec *s, const char *words) {
  bool found = spec_weighs(s, words) || strstr(masks[s->mask], words);
  for (int32_t i = 0; i < s->branch_count; i++)
    found |= strstr(masks[s->branch[i].mask], words) != NULL;
  return found;
}

static const char *gradient_of(const spec *s, const char *words) {
  return s->seed % 2 && spec_weighs(s, words) ? " gradient" : "";
}

/* Tables of blocks, and lists: of all, of each head, of each batch row too. */
static void put_lists(spec_writer *w, const spec *s) {
  static const char *const leading[] = {"", "H, ", "B, H, "};
  const char *of = leading[s->seed % 3];
  if (strstr(keeps[s->keep], "rows"))
    put(w, "  input rows : i32[%snbq + 1];\n  input cols : i32[%s*];\n", of,
        of);
  if (strstr(keeps[s->keep], "kept"))
    put(w, "  input kept : u8[%snbq, nb];\n", of);
  bool keys = false, gate = false;
  for (int32_t i = 0; i < s->branch_count; i++) {
    keys |= s->branch[i].keys;
    gate |= strstr(choices[s->branch[i].choice], "gate") != NULL;
  }
  if (keys) put(w, "  input vertical : i32[%s*];\n", of);
  if (gate) put(w, "  input gate : f32[%snbq, nb];\n", of);
}

/* Blocks of queries and of keys have one size, or two where lists or a table
 * say which are kept. */
static void put_block(spec_writer *w, const spec *s) {
  bool two = s->seed % 2 && (s->keep ? strstr(keeps[s->keep], "from") != NULL
                                     : spec_chooses(s));
  if (s->rows) put(w, "  block 1, %d;", s->block);
  else if (two) put(w, "  block %d, %d;", 1 + s->block * 5 % 90, s->block);
  else put(w, "  block %d;", s->block);
}

static void put_inputs(spec_writer *w, const spec *s) {
  if (spec_says(s, "doc[")) put(w, "  input doc : i32[B, M];\n");
  if (spec_says(s, "slope["))
    put(w, "  input slope : f32[H]%s;\n", gradient_of(s, "slope["));
  if (spec_says(s, "flag[")) put(w, "  input flag : u8[7];\n");
  if (spec_says(s, "tab[")) put(w, "  input tab : u8[3, 5, 3];\n");
  if (spec_says(s, "wide["))
    put(w, "  input wide : bf16[H, N]%s;\n", gradient_of(s, "wide["));
  if (spec_says(s, "pair[")) put(w, "  input pair : f16[B, N, M];\n");
  put_lists(w, s);
}

void spec_print(const spec *s, char *text, size_t size) {
  spec_writer out = {text, size, 0}, *w = &out;
  put(w, "pattern fuzz {\n  heads %d kv %d; head_dim %d value %d; dtype %s;\n",
      s->heads, s->kv_heads, s->head_dim, s->value_dim, dtypes[s->dtype]);
  if (s->keep || spec_chooses(s)) put_block(w, s);
  if (s->keep) put(w, " keep %s;", keeps[s->keep]);
  put(w, "\n");
  put_inputs(w, s);
  if (s->grid[0]) put(w, "  grid %d x %d x %d;\n", s->grid[0], s->grid[1], s->grid[2]);
  else if (spec_has_grid(s)) put(w, "  grid any x %d;\n", s->grid[2]);
  if (s->combine) put(w, "  combine %s;\n", combines[s->combine]);
  if (s->split) put(w, "  heads split;\n");
  if (s->causal) put(w, "  causal;\n");
  if (s->phase) put(w, "  phase %s;\n", phases[s->phase]);
  if (s->scale) put(w, "  scale %s;\n", scales[s->scale]);
  if (s->dropout) put(w, "  dropout 0.25;\n");
  if (s->left >= 0 || s->right >= 0) {
    put(w, " ");
    put_window(w, s->left, s->right);
    put(w, "\n");
  }
  if (s->mask) put(w, "  mask %s;\n", masks[s->mask]);
  if (s->score) put(w, "  score %s;\n", scores[s->score]);
  if (s->sink) put(w, "  sink %s;\n", sinks[s->sink]);
  for (int32_t i = 0; i < s->branch_count; i++)
    put_branch(w, s, &s->branch[i]);
  put(w, "}\n");
}
