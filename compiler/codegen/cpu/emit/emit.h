/* emit.h - a small vocabulary for building LLVM IR, so that a kernel reads like
 * the arithmetic it is. Everything appends at the end of the current block.
 *
 * A value is a scalar or a vector of `width` lanes; where two values meet, the
 * scalar one is spread over the lanes as late as that. Float or integer is
 * taken from the type of the values. No operation carries fast-math flags. */
#ifndef DIL_COMPILER_CODEGEN_CPU_EMIT_EMIT_H
#define DIL_COMPILER_CODEGEN_CPU_EMIT_EMIT_H

#include <llvm-c/Core.h>
#include <llvm-c/DebugInfo.h>
#include <llvm-c/TargetMachine.h>
#include <stdbool.h>
#include <stdint.h>

typedef LLVMValueRef ref;
typedef LLVMTypeRef ref_type;

typedef struct emit {
  LLVMContextRef context;
  LLVMModuleRef module;
  LLVMBuilderRef builder;
  const char *family; /* not NULL: functions are the module's own, and this
                         stands before their names */
  ref function;                                   /* the one being written */
  const char *processor, *features, *vector_bits; /* attributes of all */
  int width; /* lanes of a vector register */
  ref_type nothing, i1, i8, i16, i32, i64, f16, f32, f64, pointer;
  LLVMDIBuilderRef lines; /* NULL: no debug information */
  LLVMMetadataRef file, unit, scope;
  unsigned line, column; /* of the pattern in the .dil file */
} emit;

/* ---- functions ----------------------------------------------------------- */

/* By a letter: p pointer, l i64, w i32, f f32, v nothing. */
ref_type emit_type(const emit *e, char letter);
/* Starts a function that the loader finds by name; types by letters. */
void emit_function(emit *e, const char *name, char result,
                   const char *parameters);
/* The function of the current family; NULL: there is none such. */
ref emit_find(const emit *e, const char *name);
ref emit_parameter(const emit *e, int index);
/* Says that no other pointer reaches what this parameter points to. */
void emit_noalias(emit *e, int index);
void emit_return(emit *e, ref result); /* NULL: nothing */

/* ---- constants and types ------------------------------------------------- */

ref emit_long(const emit *e, int64_t number);
ref emit_word(const emit *e, int64_t number);
ref emit_real(const emit *e, double number);
ref emit_double(const emit *e, double number);
ref emit_truth(const emit *e, bool truth);
ref emit_zero(ref_type type);
ref_type emit_vector(ref_type element, int lanes);
bool emit_is_vector(ref value);
bool emit_is_float(ref value); /* its elements */
ref_type emit_element(ref_type type);
/* `element`, or the vector of it that `like` is. */
ref_type emit_type_like(ref_type element, ref like);
ref emit_iota(const emit *e); /* i32 0, 1, ... width - 1 */

/* ---- memory -------------------------------------------------------------- */

ref emit_at(const emit *e, ref base, ref bytes);
ref emit_offset(const emit *e, ref base, int64_t bytes);
ref emit_load(const emit *e, ref_type type, ref place, unsigned align);
void emit_store(const emit *e, ref value, ref place, unsigned align);
/* Room on the stack; only in a function's first block. */
ref emit_room(const emit *e, ref_type type, int64_t count, unsigned align);
/* Lanes where `mask` holds; the others are not touched and read as 0. */
ref emit_load_masked(emit *e, ref_type type, ref place, ref mask,
                     unsigned align);
void emit_store_masked(emit *e, ref value, ref place, ref mask, unsigned align);

/* ---- arithmetic ---------------------------------------------------------- */

typedef enum emit_relation {
  IS_EQUAL,
  IS_UNEQUAL,
  IS_LESS,
  IS_LESS_EQUAL,
  IS_GREATER,
  IS_GREATER_EQUAL,
  RELATION_COUNT
} emit_relation;

ref emit_splat(const emit *e, ref scalar, int lanes);
/* Makes both the same shape. */
void emit_match(const emit *e, ref *a, ref *b);
ref emit_add(const emit *e, ref a, ref b);
ref emit_sub(const emit *e, ref a, ref b);
ref emit_mul(const emit *e, ref a, ref b);
ref emit_divide(const emit *e, ref a, ref b); /* floats */
ref emit_and(const emit *e, ref a, ref b);
ref emit_or(const emit *e, ref a, ref b);
ref emit_xor(const emit *e, ref a, ref b);
ref emit_not(const emit *e, ref a);
ref emit_shift_left(const emit *e, ref a, int bits);
ref emit_shift_right(const emit *e, ref a, int bits);      /* zeros in */
ref emit_shift_arithmetic(const emit *e, ref a, int bits); /* sign in */
/* Integers as signed numbers; any relation to a NaN but IS_UNEQUAL fails. */
ref emit_compare(const emit *e, emit_relation relation, ref a, ref b);
ref emit_below(const emit *e, ref a, ref b); /* as unsigned numbers */
ref emit_select(const emit *e, ref condition, ref yes, ref no);
/* a > b ? a : b, so that a NaN in a gives b. */
ref emit_greater(const emit *e, ref a, ref b);
ref emit_lesser(const emit *e, ref a, ref b);              /* a < b ? a : b */
ref emit_fma(emit *e, ref a, ref b, ref c);                /* a * b + c */
ref emit_bits(const emit *e, ref value, ref_type element); /* same size */
ref emit_convert(const emit *e, LLVMOpcode how, ref value, ref_type element);
ref emit_shuffle(const emit *e, ref a, ref b, const int *lane, int count);
ref emit_lane(const emit *e, ref vector, int lane);
/* Of an intrinsic that takes and gives the type of its first argument. */
ref emit_unary(emit *e, const char *intrinsic, ref a);
/* Floats to the i32 at or below them, within its range; 0 of NaN. */
ref emit_whole(emit *e, ref a);
ref emit_intrinsic(emit *e, const char *name, ref_type *overload,
                   unsigned overload_count, ref *argument, unsigned count);
ref emit_lanes_word(const emit *e, ref mask); /* i64: a bit a lane */
/* Of all lanes, by halves: the order is fixed. */
ref emit_sum(const emit *e, ref vector);
ref emit_largest(const emit *e, ref vector);

/* ---- control ------------------------------------------------------------- */

/* Goes on in a new block. */
void emit_block(emit *e, const char *name);

enum { LOOP_CARRIED_MAX = 64 };

/* for (index = first; index < end; index += step), signed. Values that each
 * turn hands to the next stand in carried[]; after loop_end they are final. */
typedef struct loop {
  LLVMBasicBlockRef header, done;
  ref index, carried[LOOP_CARRIED_MAX];
  int64_t step;
  int count;
} loop;

void loop_begin(emit *e, loop *l, const char *name, ref first, ref end,
                int64_t step, ref const *start, int count);
void loop_end(emit *e, loop *l, ref const *next);

/* if (condition) { ... } else { ... }; branch_else may be left out. */
typedef struct branch_block {
  LLVMBasicBlockRef before, yes, no, done;
} branch_block;

void branch_begin(emit *e, branch_block *b, const char *name, ref condition);
void branch_else(emit *e, branch_block *b);
void branch_end(emit *e, branch_block *b);
/* After branch_end: `yes` came from the first arm, `no` from the second or
 * from before. Ask for all merges before emitting anything else. */
ref branch_merge(emit *e, const branch_block *b, ref yes, ref no);

/* Code of this function from here on has this place of the file. */
void emit_locate(emit *e, unsigned line, unsigned column);

#endif
