/* emit.h - CUDA C as text: a growing source, the templates, and a plan's
 * expressions and numbers in it. In: a plan. Out: source text. */
#ifndef DIL_COMPILER_CODEGEN_GPU_EMIT_EMIT_H
#define DIL_COMPILER_CODEGEN_GPU_EMIT_EMIT_H

#include "compiler/codegen/gpu_backend.h"
#include "compiler/pattern/key_span.h"

/* ---- emit.c: growing source text ----------------------------------------- */

void put(source_text *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends a template, which was embedded when the module was built. A #line
 * directive stands before it, so that compiler errors name the template's own
 * lines. NVRTC resolves includes of other templates ("x.cuh") from the same
 * embedded set. */
void put_template(source_text *s, const char *name);

/* ---- expr.c, cover.c, bits.c, tables.c: shared by strategies ------------- */

/* Device functions for the plan's expressions, see templates/shared/pair.cuh:
 *
 *   bool  dil_mask(int predicate, int i, int j, const dil_pair &at)
 *         the masks of one predicate
 *   float dil_chain(int chain, float s, int i, int j, const dil_pair &at)
 *         the score after the chain, in natural units; s has its scale
 *   float dil_sink(int branch, int i, const dil_pair &at)
 *         the sum of a branch's sinks (of the pattern's: BRANCHES), where it has
 *         some */
void put_expressions(source_text *s, const plan *p);
/* The form of the plan's score chain, where it is the only one (compiler/pattern/score_form.h):
 * SCORE_FORM is SCORE_ANY, SCORE_LINEAR or SCORE_CAPPED.
 *   linear: SCORE_SLOPES, SCORE_ROWS: there are slopes, and addends of the row;
 *     SCORE_DISTANCE: DISTANCE_KEY, DISTANCE_AWAY or DISTANCE_SIZE
 *     float dil_slope(const dil_pair &at), of natural scores
 *     float dil_row_score(int i, const dil_pair &at)
 *   capped: SCORE_CAP and SCORE_RATE, as f32 */
void put_score_form(source_text *s, const plan *p);
score_kind score_kind_of(const plan *p);
/* Of a backward plan:
 *   float dil_chain_slope(int chain, float &s, int i, int j, const dil_pair &at)
 *         the derivative of a chain by its score; s becomes the chain's */
void put_slopes(source_text *s, const plan *p);
/* Of a backward plan, what pairs and rows give to the gradients of inputs. `to`
 * is an adder of templates/general/gradient_sums.cuh:
 *   void dil_chain_reads(int chain, float s, int i, int j, const dil_pair &at,
 *                        float plain, To &to)
 *         of one pair: s before the chain, `plain` the gradient of the score
 *         behind it
 *   void dil_chain_rows(int chain, int i, const dil_pair &at, To &to)
 *         ends the sums of a row's pairs
 *   void dil_sink_reads(bool own, unsigned long long branches, int i,
 *                       const dil_pair &at, float lse, float delta, To &to)
 *         of a row's sinks: the pattern's (own) and those of branches */
void put_reads(source_text *s, const plan *p);
/* Whether scores have a derivative by some input with a gradient. */
bool has_score_reads(const dil_table *t);
/*   dil_range dil_cover(int predicate, dil_range i, dil_range j, dil_range h,
 *                       const dil_pair &at)
 *         the masks over a whole tile by interval arithmetic; see
 *         templates/shared/cover.cuh */
void put_cover(source_text *s, const plan *p);
/*   dil_bits dil_mask_bits(int predicate, const dil_block &x,
 *                          const dil_pair &at)
 *         the masks over a block of keys, see templates/shared/bits.cuh
 *   unsigned dil_known(dil_range i, dil_range j, dil_range h,
 *                      const dil_pair &at)
 *         which mask terms have one value over these ranges */
void put_mask_bits(source_text *s, const plan *p);
/*   KEY_SPANS; where it is not 0:
 *   dil_range dil_keys_of(int predicate, dil_range i, dil_range h,
 *                         const dil_pair &at)
 *         the keys that the masks may keep for rows of a range */
void put_key_spans(source_text *s, const plan *p);
/* The input of i32 by which the first predicate's mask keeps documents apart, and
 * nothing else: `x[b, i] == x[b, j]` or `x[i] == x[j]`. -1: it is another mask. */
int32_t mask_documents(const plan *p);
/* A row's range of keys, as an expression over i; of SPAN_ALIKE, those of the first
 * and the last row of the range i. */
void put_row_span(source_text *s, const plan *p, const key_span *x);
void put_alike_spans(source_text *s, const plan *p, const key_span *x);
/* Conditions on blocks (lists.c), which a kernel turns into a bit for each pair
 * of a query block and a key block, once a call. Both sizes are at least
 * BLOCK_LIST_LEAST. */
enum {
  BLOCK_LISTS_MOST = 1,   /* distinct conditions; other ones stay masks */
  BLOCK_LIST_LEAST = 16,
  BLOCK_LIST_NODES = 128  /* of `&&` */
};
/* Whether a condition is one for all pairs of a query block and a key block, of which
 * one is that large, and the sizes of both; 0 where it is none. */
bool is_condition_of_blocks(const expr *e, int32_t *query_block, int32_t *block);
typedef struct block_list {
  const expr *kept;       /* reads i and j as i / query_block, j / block alone */
  int32_t query_block, block;
  bool heads, batches;    /* it differs between heads, between batch rows */
  int32_t table;          /* a table of bits that is the same condition; or -1 */
} block_list;
/* A plan without such conditions, and these. `rest` points into the struct. */
typedef struct block_lists {
  plan rest;
  int32_t count;
  block_list list[BLOCK_LISTS_MOST];
  int32_t of[DIL_PART_MAX]; /* the list of each predicate; -1: none */
  dil_predicate row[DIL_PART_MAX];
  expr *predicate[DIL_PART_MAX];
  int32_t node_count;
  expr node[BLOCK_LIST_NODES];
  expr *argument[BLOCK_LIST_NODES][2];
} block_lists;
void block_lists_take(const plan *p, block_lists *l);
/*   LISTS; where it is not 0:
 *   dil_list_row dil_lists[LISTS], int dil_list_of[predicates]
 *   bool dil_listed(int list, int i, int j, const dil_pair &at)
 *         the condition of the blocks that i and j are in */
void put_block_lists(source_text *s, const block_lists *l);
/*   CHOICES; where it is not 0, with CHOICES_WGMMA, whether the chip has wgmma:
 *   dil_choice_row dil_choices[CHOICES]
 *   bool dil_others_leave(int choice, int i, int j, const dil_pair &at)
 *         whether the other keeps of the choice's branch leave the blocks of i
 *         and j to it */
void put_choices(source_text *s, const plan *p, bool wgmma);
/* Append one condition as an expression of CUDA C: at one pair, or over ranges.
 * The functions above return these expressions. */
void put_condition(source_text *s, const plan *p, const expr *e);
/* The indices of a read of an input, each behind a comma. */
void put_indices(source_text *s, const plan *p, const expr *read);
/* Appends a number as an f32. */
void put_f32(source_text *s, const plan *p, const expr *e);
void put_condition_range(source_text *s, const plan *p, const expr *e);
/* The plan's numbers as macros and __constant__ tables
 * (templates/shared/plan.cuh): HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM, ELEMENT (0
 * f32, 1 bf16, 2 f16), branches, passes, predicates, phases. */
void put_tables(source_text *s, const plan *p);
/* Returns whether some predicate has a range of rows. */
bool has_row_ranges(const dil_table *t);
/* Returns whether a key that is visited once may count several times
 * (MULTIPLICITY). */
bool has_multiplicity(const dil_table *t);
/* Returns whether score chains may make a score -inf although s and the inputs
 * that do not depend on the key are finite. Chains can hide pairs that way
 * without a mask. */
bool is_hiding(const plan *p);
/* Returns whether scores or sinks read the number of their batch row, or its sizes. */
bool reads_batch_row(const plan *p);
/* Returns whether they read the positions of pairs. */
bool reads_positions(const plan *p);

#endif
