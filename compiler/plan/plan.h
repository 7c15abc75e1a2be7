/* plan.h - a pattern as a chain of passes. */
#ifndef DIL_COMPILER_PLAN_PLAN_H
#define DIL_COMPILER_PLAN_PLAN_H

#include "target.h"
#include "compiler/dil.h"
#include "compiler/front/program.h"
#include "compiler/pattern/pattern.h"
#include "compiler/pattern/score_form.h"
#include "compiler/schedule/schedule.h"

typedef enum plan_force {
  FORCE_FUSE = DIL_FORCE_FUSE, FORCE_CHAIN = DIL_FORCE_CHAIN,
  FORCE_DEDUP = DIL_FORCE_DEDUP, FORCE_MULTISET = DIL_FORCE_MULTISET,
  FORCE_GENERAL = DIL_FORCE_GENERAL
} plan_force;
enum { FORCE_ALL = 2 * FORCE_GENERAL - 1 };

/* "fuse and chain" of a set that asks for two things at once; NULL: it does
 * not. */
const char *plan_force_clash(unsigned set);

/* Rows of one period that the same branches of a pass select. */
typedef struct plan_class {
  uint64_t branches;
  int64_t rows;          /* of the period */
} plan_class;

/* A read of an input with a gradient, in expression `step` of a score chain or
 * of a list of sinks. */
typedef struct plan_read {
  int32_t step;
  const expr *element;   /* the INPUT node */
  expr *slope;           /* derivative of the expression by the element */
  bool paired;           /* the element follows from the key */
} plan_read;

/* The derivatives of a score chain, or of a list of sinks. */
typedef struct plan_slopes {
  expr **slope;          /* of each expression by the score before it; NULL: 0.
                          * Sinks have none */
  int32_t read_count;
  plan_read *read;       /* those whose derivative is not 0 */
} plan_slopes;

typedef struct plan {
  arena *arena;          /* that it lies in */
  const pattern *pattern;
  unsigned force;        /* plan_force bits */
  dil_direction direction;
  dil_table table;       /* the run time's form of the plan */
  /* expressions behind the table's numbers */
  expr **predicate;      /* [table.predicate_count]; NULL: window only */
  expr ***chain;         /* [table.chain_count], NULL-terminated lists */
  score_form *form;      /* [table.chain_count] */
  plan_slopes *slopes;   /* [table.chain_count]; NULL: the plan is forward */
  plan_slopes sinks;     /* of the pattern's sinks */
  plan_slopes *branch_sinks; /* [table.branch_count] of each branch's own */
} plan;

/* The pattern of which a plan is made: normalised, but as it was written where
 * what is forced speaks of the branches that a person wrote. */
const pattern *plan_normalise(arena *a, const pattern *p, unsigned force);
/* A plan of a normalised pattern, with its passes chosen. `target`: the
 * only kind of device that will run it, which decides which branches share a
 * pass; NULL: no kind decides. NULL when the pattern
 * has what no back end runs yet; the reason is in d. */
plan *plan_fuse(arena *a, diag *d, const pattern *normal, unsigned force,
                dil_direction direction, const plan_target *target);
/* Both at once; plan_make is forward and for processors. */
plan *plan_make(arena *a, diag *d, const pattern *p, unsigned force);
plan *plan_make_for(arena *a, diag *d, const pattern *p, unsigned force,
                    dil_direction direction, const plan_target *target);
/* A copy of the plan with the knobs that change it: the size of key tiles. */
plan *plan_apply_knobs(arena *a, const plan *p, const knobs *k);
void plan_print(const plan *p, FILE *out);
/* The same, by any number of threads at once; false when memory was lacking,
 * and then the text is cut short. */
bool plan_write(const plan *p, FILE *out);
void plan_verify(const plan *p);
/* Text form in; errors located in d. */
plan *plan_parse(arena *a, diag *d, const char *path, const char *text,
                 size_t length);
uint64_t plan_hash(const plan *p);

#endif
