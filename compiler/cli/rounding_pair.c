/* rounding_pair.c - how far f32 rounding, and that of a storage type, may move
 * what a pair of a row and a key gives to gradients.
 *
 * In: what the oracle knows of a pair. Out: errors of P and dS, each from the
 * sizes of the terms that it is made of, since terms that cancel leave their
 * errors. The score moves by the rounding of q . k and of its chain, and P with
 * it; dP and delta move by the rounding of their sums, and delta also by that
 * of the o that the forward run stored. */
#include "rounding.h"
#include <math.h>

const double rounding_unit[DIL_DTYPE_COUNT] = {
    [DIL_F32] = 0x1p-22, [DIL_BF16] = 0x1p-9, [DIL_F16] = 0x1p-12};
/* Of an element of o that is stored, relative. */
static const double stored_unit[DIL_DTYPE_COUNT] = {
    [DIL_F32] = 0x1p-25, [DIL_BF16] = 0x1p-9, [DIL_F16] = 0x1p-12};

/* Returns how far rounding may move score - lse. */
static double below_error(const pair_rounding *r, const oracle_pair *pair,
                          double product) {
  double made = fmax(pair->sizes, fabs(pair->score));
  double lse = fabs(pair->score - pair->below);
  double error = fabs(pair->chain) * product + made * ROUNDING_REWRITING;
  if (r->remade) error *= 2;
  return isfinite(lse) ? error + lse * ROUNDING_REWRITING : error;
}

static double weight_error(double below, double error) {
  double weight = exp(fmin(below, 0));
  return fmax(exp(fmin(below + error, 0)) - weight,
              weight - exp(fmin(below - error, 0)));
}

/* Infinities and NaN are no question of rounding: a comparison
 * notices them by itself. */
static bool is_finite_pair(const oracle_pair *pair) {
  return isfinite(pair->sizes) && isfinite(pair->products) &&
         isfinite(pair->deltas) && !isnan(pair->below);
}

/* Returns how far the row's delta may move. Elements of o, and the weights that
 * they are sums of where o is made again, are rounded each by itself. */
static double delta_error(const pair_rounding *r, const oracle_pair *pair,
                          double below) {
  const pattern *p = r->p;
  double error = rounding_of_dot(r->exactness, p->value_dim, pair->deltas);
  if (r->stored) error += stored_unit[p->dtype] * sqrt(pair->squares);
  if (r->remade) error += fmin(below, 1) * pair->deltas;
  return error;
}

oracle_error rounding_of_pair(const void *context, const oracle_pair *pair) {
  const pair_rounding *r = context;
  const pattern *p = r->p;
  if (!is_finite_pair(pair)) return (oracle_error){0};
  double own = rounding_unit[r->inputs ? DIL_F32 : p->dtype] + r->exactness.product +
               ROUNDING_ADDITION * sqrt(r->terms);
  double product = rounding_of_dot(r->exactness, p->head_dim, pair->sizes);
  double below = below_error(r, pair, product);
  double weight = exp(fmin(pair->below, 0));
  double error =
      ROUNDING_SURENESS * (weight * own + weight_error(pair->below, below));
  double noise =
      weight * rounding_of_dot(r->exactness, p->value_dim, pair->products);
  return (oracle_error){
      .weight = error,
      .slope = error * fabs(pair->product - pair->delta) +
               ROUNDING_SURENESS * noise,
      .score = ROUNDING_SURENESS * product,
      .shared = ROUNDING_SURENESS * weight * delta_error(r, pair, below),
      .noise = noise};
}
