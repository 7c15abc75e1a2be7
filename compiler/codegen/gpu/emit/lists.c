/* lists.c - conditions on blocks that become lists of kept blocks, once a call.
 *
 * In: a plan whose masks read inputs by block numbers, as `keep from` does, or
 * mix these numbers, as `keep hash(bi, bj) ...` does. Out: the same plan without
 * these conditions, and each of them as a function of CUDA C. A kernel evaluates
 * it once for each pair of blocks and leaves a bit for each
 * (templates/hopper/hopper_lists.cuh). The planner then knows the kept blocks of a
 * tile without asking the mask. */
#include "emit.h"
#include <string.h>

static bool reads(const expr *e, expr_op leaf) {
  bool found = e->op == leaf;
  for (int32_t k = 0; k < e->count && !found; k++)
    found = reads(e->arg[k], leaf);
  return found;
}

static bool same(const expr *a, const expr *b) {
  bool alike = a->op == b->op && a->type == b->type && a->count == b->count &&
               a->integer == b->integer &&
               !memcmp(&a->real, &b->real, sizeof a->real);
  for (int32_t k = 0; k < a->count && alike; k++)
    alike = same(a->arg[k], b->arg[k]);
  return alike;
}

/* ---- conditions on blocks ------------------------------------------------ */

/* The sizes of the blocks by which a condition reads i and j. 0: not yet. */
typedef struct block_sizes {
  int64_t query_block, block;
  bool whole; /* i or j stands somewhere beside its block number */
  bool hard;   /* intervals of block numbers would not decide it */
} block_sizes;

static bool is_quotient(const expr *e, expr_op leaf) {
  return e->op == EXPR_DIV && e->type == TYPE_I32 && e->arg[0]->op == leaf &&
         e->arg[1]->op == EXPR_INT && e->arg[1]->integer > 0;
}

static void sizes_meet(int64_t *size, int64_t other, bool *whole) {
  *whole |= *size && *size != other;
  *size = other;
}

/* Remainders and hashes of both i and j. */
static bool mixes(const expr *e) {
  return (e->op == EXPR_MOD || e->op == EXPR_HASH) && reads(e, EXPR_I_) &&
         reads(e, EXPR_J_);
}

static void sizes_read(const expr *e, block_sizes *sizes) {
  if (is_quotient(e, EXPR_I_)) {
    sizes_meet(&sizes->query_block, e->arg[1]->integer, &sizes->whole);
    return;
  }
  if (is_quotient(e, EXPR_J_)) {
    sizes_meet(&sizes->block, e->arg[1]->integer, &sizes->whole);
    return;
  }
  sizes->whole |= e->op == EXPR_I_ || e->op == EXPR_J_ || e->op == EXPR_S_;
  sizes->hard |= e->op == EXPR_INPUT || mixes(e);
  for (int32_t k = 0; k < e->count; k++) sizes_read(e->arg[k], sizes);
}

/* Returns whether a condition has one value for all pairs of two blocks, and no
 * interval arithmetic over them decides it. */
static bool is_of_some_blocks(const expr *e, block_sizes *sizes) {
  *sizes = (block_sizes){0};
  sizes_read(e, sizes);
  return !sizes->whole && sizes->hard && sizes->query_block > 0 &&
         sizes->block > 0 && sizes->query_block < 1 << 20 &&
         sizes->block < 1 << 20;
}

/* The same of blocks that are large enough. */
static bool is_of_blocks(const expr *e, block_sizes *sizes) {
  return is_of_some_blocks(e, sizes) &&
         sizes->query_block >= BLOCK_LIST_LEAST &&
         sizes->block >= BLOCK_LIST_LEAST;
}

bool is_condition_of_blocks(const expr *e, int32_t *query_block,
                            int32_t *block) {
  block_sizes sizes;
  bool is = is_of_some_blocks(e, &sizes) &&
            (sizes.query_block >= BLOCK_LIST_LEAST ||
             sizes.block >= BLOCK_LIST_LEAST);
  *query_block = is ? (int32_t)sizes.query_block : 0;
  *block = is ? (int32_t)sizes.block : 0;
  return is;
}

/* ---- taking them out of a plan ------------------------------------------- */

static expr *joined(block_lists *l, expr *a, expr *b) {
  if (!a || !b) return a ? a : b;
  int32_t n = l->node_count++;
  l->argument[n][0] = a;
  l->argument[n][1] = b;
  l->node[n] = (expr){.op = EXPR_AND, .type = TYPE_CONDITION, .at = a->at,
                      .count = 2, .arg = l->argument[n]};
  return &l->node[n];
}

/* The two halves of a mask: what is of blocks of one size, and the rest. */
typedef struct mask_halves {
  expr *kept, *rest;
  block_sizes sizes;
  bool full; /* there were not nodes enough */
} mask_halves;

static void halves_add(block_lists *l, expr *e, mask_halves *h) {
  block_sizes sizes;
  if (e->op == EXPR_AND) {
    halves_add(l, e->arg[0], h);
    halves_add(l, e->arg[1], h);
    return;
  }
  h->full |= l->node_count == BLOCK_LIST_NODES;
  if (h->full) return;
  bool taken = is_of_blocks(e, &sizes) &&
               (!h->kept || (sizes.block == h->sizes.block &&
                             sizes.query_block == h->sizes.query_block));
  if (!taken) {
    h->rest = joined(l, h->rest, e);
  } else {
    h->kept = joined(l, h->kept, e);
    h->sizes = sizes;
  }
}

/* The table of bits of which a condition reads nothing but the element of its
 * batch row, head and blocks: TABLE[b, h, bi, bj] != 0. -1: there is none. */
static int32_t table_of(const plan *p, const expr *kept) {
  static const expr_op axes[] = {EXPR_B_, EXPR_H_};
  const expr *read = kept->arg[0], *zero = kept->arg[1];
  if (kept->op != EXPR_NE || read->op != EXPR_INPUT ||
      zero->op != EXPR_INT || zero->integer)
    return -1;
  int32_t rank = read->count, leading = rank - 2;
  if (!dil_input_is_bits(&p->pattern->input[read->integer])) return -1;
  for (int32_t k = 0; k < leading; k++)
    if (read->arg[k]->op != axes[k + 2 - leading]) return -1;
  bool blocks = is_quotient(read->arg[rank - 2], EXPR_I_) &&
                is_quotient(read->arg[rank - 1], EXPR_J_);
  return blocks ? (int32_t)read->integer : -1;
}

/* The number of the list of a condition, new or known; -1: there are too many. */
static int32_t list_of(const plan *p, block_lists *l, const mask_halves *h) {
  int32_t n = 0;
  while (n < l->count && !same(l->list[n].kept, h->kept)) n++;
  if (n == BLOCK_LISTS_MOST) return -1;
  if (n == l->count) l->count++;
  l->list[n] = (block_list){
      .kept = h->kept,
      .query_block = (int32_t)h->sizes.query_block,
      .block = (int32_t)h->sizes.block,
      .heads = reads(h->kept, EXPR_H_),
      .batches = reads(h->kept, EXPR_B_) || reads(h->kept, EXPR_M_),
      .table = table_of(p, h->kept)};
  return n;
}

/* With a dilation, rows and keys of a tile lie apart in their blocks. */
static bool is_dense(const dil_table *t) {
  for (int32_t b = 0; b < t->branch_count; b++)
    if (t->branches[b].dilation != 1) return false;
  return true;
}

static void take_predicate(const plan *p, block_lists *l, int32_t k) {
  mask_halves h = {0};
  if (!p->predicate[k]) return;
  halves_add(l, p->predicate[k], &h);
  if (!h.kept || h.full) return;
  l->of[k] = list_of(p, l, &h);
  if (l->of[k] < 0) return;
  l->predicate[k] = h.rest;
  l->row[k].masked = h.rest != NULL;
}

void block_lists_take(const plan *p, block_lists *l) {
  int32_t count = p->table.predicate_count;
  memset(l, 0, sizeof *l);
  l->rest = *p;
  for (int32_t k = 0; k < count; k++) {
    l->of[k] = -1;
    l->predicate[k] = p->predicate[k];
    l->row[k] = p->table.predicates[k];
  }
  for (int32_t k = 0; k < count && is_dense(&p->table); k++)
    take_predicate(p, l, k);
  l->rest.predicate = l->predicate;
  l->rest.table.predicates = l->row;
}

/* ---- as CUDA C ----------------------------------------------------------- */

static void put_list_tables(source_text *s, const block_lists *l) {
  int32_t predicates = l->rest.table.predicate_count;
  put(s, "__constant__ dil_list_row dil_lists[LISTS] = {\n");
  for (int32_t n = 0; n < l->count; n++)
    put(s, "  {%d, %d, %d, %d},\n", l->list[n].query_block, l->list[n].block,
        l->list[n].heads, l->list[n].batches);
  put(s, "};\n__constant__ int dil_list_of[%d] = {", predicates);
  for (int32_t k = 0; k < predicates; k++) put(s, "%d, ", l->of[k]);
  put(s, "};\n");
}

void put_block_lists(source_text *s, const block_lists *l) {
  put(s, "#define LISTS %d\n", l->count);
  if (!l->count) return;
  put(s, "#include \"templates/shared/list_row.cuh\"\n"
         "#line 1 \"lists of %s\"\n", l->rest.table.name);
  put_list_tables(s, l);
  put(s, "DIL_INLINE bool dil_listed(int list, int i, int j, "
         "const dil_pair &at) {\n  switch (list) {\n");
  for (int32_t n = 0; n < l->count; n++) {
    put(s, "  case %d: return ", n);
    put_condition(s, &l->rest, l->list[n].kept);
    put(s, ";\n");
  }
  put(s, "  default: return true;\n  }\n}\n");
}
