/* expr_rules.h - what the files of expr share: the rule of each operator. */
#ifndef DIL_COMPILER_PATTERN_EXPR_RULES_H
#define DIL_COMPILER_PATTERN_EXPR_RULES_H

#include "expr.h"

typedef enum expr_rule {
  RULE_ARITH, RULE_INTEGER, RULE_COMPARE, RULE_LOGIC, RULE_CHOOSE,
  RULE_FLOAT, RULE_ROUND, RULE_WHOLE, RULE_HASH, RULE_LEAF
} expr_rule;

expr_rule expr_rule_of(expr_op op);

/* A 64-bit sum brought back to 32-bit two's complement. */
int64_t expr_wrap(int64_t x);
/* The two results on integers in range; b is not 0 in the second. */
int64_t expr_floor_mod(int64_t a, int64_t b);
int64_t expr_floor_div(int64_t a, int64_t b);
/* int(x): the integer at or below x, within 32 bits; 0 of NaN. */
int64_t expr_whole(double x);
/* One step of hash(): x ^= a and the mixing (page "hash" of the language). */
uint32_t expr_hash_step(uint32_t x, uint32_t a);
enum { EXPR_HASH_START = 0x9E3779B9 };

/* A float that reads back as the same float64, with digits on both sides of
 * the point; or `inf`. */
void expr_print_real(double x, FILE *out);

#endif
