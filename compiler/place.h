/* place.h - pattern x topology: who owns which rows, which rows travel, and
 * what that costs. The arithmetic is the run time's (runtime/place.h); here
 * are the choices that a topology leaves open, the text form and the bill. */
#ifndef DIL_COMPILER_PLACE_H
#define DIL_COMPILER_PLACE_H

#include "../runtime/crew.h"
#include "all.h"

/* The mesh of a topology: layout, exchange and link as written, or chosen. */
mesh place_mesh(const pattern *p, const topology *t);
/* Refuses, where it stands, what this build has no link for. */
bool place_possible(diag *d, const topology *t);
/* Small transfers come all at once, large ones step by step behind the
 * passes: `exchange auto`. All ranks agree, for it is by M alone. */
dil_exchange place_exchange(const topology *t, const pattern *p, int64_t B,
                            int64_t M);

/* "4 ranks: ring 4, ..." */
void place_print_mesh(const mesh *m, const topology *t, FILE *out);
/* The text form of the stage, without sizes. */
void place_print(const pattern *p, const topology *t, FILE *out);

/* ---- place_judge.c ------------------------------------------------------- */

/* What the answers depend on; it must outlive the mask. */
typedef struct place_judge {
  const plan *plan;
  int64_t B, N, M;
} place_judge;
/* judge NULL: the plan has no mask that could be asked about. */
place_mask place_judge_masks(place_judge *judge);

/* ---- place_bill.c -------------------------------------------------------- */

/* What travels and what is computed, for one slice of heads and batch rows. */
typedef struct place_bill {
  const topology *topology;
  mesh mesh;
  int64_t *bytes;      /* [ring * ring], from * ring + to; of all heads here */
  int64_t *queries, *keys; /* [ring] rows owned */
  double *pairs;       /* [ring]; masks not looked at, long shards sampled */
  double compute, transfer; /* seconds of the busiest rank */
  bool exact;          /* the bytes are the least that the pattern needs */
} place_bill;

/* seconds: what the whole call takes on one device. */
dil_status place_count_up(arena *a, const plan *of, const topology *t,
                          int64_t B, int64_t N, int64_t M, double seconds,
                          place_bill *bill);
/* A line a rank, a table of who sends what, and the prediction. */
void place_bill_print(const place_bill *bill, FILE *out);
struct json_t *place_bill_json(const place_bill *bill);
#endif
