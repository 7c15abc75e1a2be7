/* numeric_error.c - how far a kernel's output is from the oracle's answer. In: a
 * call that has run, with its answer. Out: errors, the bounds they may have, and
 * a text about the row that is farthest off. */
#include "gpu.h"
#include "compiler/cli/rounding.h"
#include <math.h>

/* Relative L2 of o and absolute error of lse that a dtype may have. No element
 * may be off by five times as much of its size and its row's. Where that is
 * exceeded, the rounding of scores may explain more of a row (rounding.h), but
 * never more than half of the output. */
static const struct { double o, lse; } bounds[DIL_DTYPE_COUNT] = {
    [DIL_F32] = {2e-6, 2e-5},
    [DIL_BF16] = {4e-3, 1e-4},
    [DIL_F16] = {1e-3, 1e-4},
};

static int64_t row_count(const data *d) {
  return d->shape.batch * d->shape.queries * d->pattern->heads;
}

/* f32 on a GPU is a sum of tf32 products. */
static double base_bound(const data *d) {
  if (gpu_wanted() && d->pattern->dtype == DIL_F32) return 1e-5;
  return bounds[d->pattern->dtype].o;
}
double o_bound(const data *d) {
  double explained = 0, whole = 0, least = base_bound(d);
  if (!d->explained) return least;
  for (int64_t row = 0; row < row_count(d); row++)
    explained += d->explained[row].output * d->explained[row].output;
  for (int64_t e = 0; e < row_count(d) * d->pattern->value_dim; e++)
    if (isfinite(d->o[e])) whole += d->o[e] * d->o[e];
  if (explained == 0) return least;
  return fmax(least, fmin(sqrt(explained / whole), 0.5));
}
static double element_bound(const data *d) { return 5 * base_bound(d); }

static double o_element(const data *d, int64_t row, int64_t x) {
  int64_t H = d->pattern->heads, N = d->shape.queries;
  int64_t at[4] = {row / (N * H), row / H % N, row % H, x};
  return dil_element_read(d->call.o.data, d->call.o.dtype,
                          tensor_index(&d->call.o, at));
}

static double lse_element(const data *d, int64_t e) {
  return dil_element_read(d->call.lse.data, DIL_F32, e);
}

/* Differences that no tolerance covers: NaN or infinity on one side only. */
static bool odd_pair(double mine, double right) {
  if (isnan(mine) || isnan(right)) return isnan(mine) != isnan(right);
  if (isinf(mine) || isinf(right)) return mine != right;
  return false;
}

static double explained_lse(const data *d, int64_t row) {
  return d->explained ? d->explained[row].lse : 0;
}
double lse_bound(const data *d) {
  return bounds[d->pattern->dtype].lse + explained_lse(d, d->lse_row);
}

/* How far the lse of a row is off; infinitely where one side is not finite. */
static double lse_off(const data *d, int64_t row) {
  int64_t N = d->shape.queries, H = d->pattern->heads;
  int64_t e = (row / (N * H) * H + row % H) * N + row / H % N;
  double mine = lse_element(d, e), right = d->lse[e];
  if (odd_pair(mine, right)) return INFINITY;
  return isfinite(right) ? fabs(mine - right) : 0;
}

double data_error(data *d, double *lse_error) {
  int64_t rows = row_count(d);
  int64_t width = d->pattern->value_dim;
  double square = 0, whole = 0;
  for (int64_t e = 0; e < rows * width; e++) {
    double mine = o_element(d, e / width, e % width), right = d->o[e];
    if (odd_pair(mine, right)) square = INFINITY;
    if (!isfinite(mine) || !isfinite(right)) continue;
    double off = rounding_beyond_storage(d->call.o.dtype, mine, right);
    square += off * off;
    whole += right * right;
  }
  *lse_error = 0;
  for (int64_t row = 0; d->call.lse.data && row < rows; row++) {
    double off = lse_off(d, row), most = *lse_error;
    if (off - explained_lse(d, row) <= most - explained_lse(d, d->lse_row))
      continue;
    d->lse_row = row;
    *lse_error = off;
  }
  return square == 0 ? 0 : sqrt(square / whole);
}

/* The row that is farthest off, for the person who looks for the fault. */
static void say_worst(const data *d, char *text, size_t size) {
  int64_t H = d->pattern->heads, N = d->shape.queries, worst = 0, where = 0;
  int64_t width = d->pattern->value_dim;
  double largest = -1;
  for (int64_t row = 0; row < d->shape.batch * N * H; row++)
    for (int64_t x = 0; x < width; x++) {
      double mine = o_element(d, row, x), right = d->o[row * width + x];
      double error = odd_pair(mine, right) ? INFINITY : fabs(mine - right);
      if (error > largest) largest = error, worst = row, where = x;
    }
  int64_t b = worst / (N * H), n = worst / H % N, h = worst % H;
  double lse = d->call.lse.data ? lse_element(d, (b * H + h) * N + n) : NAN;
  snprintf(text, size,
           "worst at b %d row %d h %d element %d: o %.9g, oracle %.9g; "
           "lse %.9g, oracle %.9g", (int)b, (int)n, (int)h, (int)where,
           o_element(d, worst, where), d->o[worst * width + where], lse,
           d->lse[(b * H + h) * N + n]);
}

/* Root of the mean square, of finite ones; rows that see nothing are 0, and make
 * those that do no smaller. */
static double size_of(const double *x, int64_t count) {
  double square = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(x[i]) || x[i] == 0) continue;
    square += x[i] * x[i];
    counted++;
  }
  return counted ? sqrt(square / (double)counted) : 0;
}

double data_element_error(const data *d) {
  int64_t rows = row_count(d);
  int64_t width = d->pattern->value_dim;
  double largest = 0, whole = size_of(d->o, rows * width);
  for (int64_t row = 0; row < rows; row++) {
    const double *right = d->o + row * width;
    double size = size_of(right, width);
    if (width < 16) size = fmax(size, whole); /* too few to tell */
    for (int64_t x = 0; x < width; x++) {
      double off = rounding_beyond_storage(d->call.o.dtype, o_element(d, row, x),
                                           right[x]);
      if (d->explained) off -= d->explained[row].output;
      double all = fabs(right[x]) + size;
      if (off > largest * all) largest = off / all;
    }
  }
  return largest;
}

const char *data_compare(data *d) {
  static char text[900];
  char worst[400];
  double lse_error, error = data_error(d, &lse_error);
  double element = data_element_error(d);
  if (error <= o_bound(d) && lse_error <= lse_bound(d) &&
      element <= element_bound(d))
    return "";
  if (!d->explained && !isinf(error) && !isinf(lse_error)) {
    data_explain(d);
    return data_compare(d);
  }
  say_worst(d, worst, sizeof worst);
  snprintf(text, sizeof text, "o off by %.3g (bound %.3g), an element by %.3g "
           "(%.3g), lse by %.3g (%.3g); %s", error, o_bound(d), element,
           element_bound(d), lse_error, lse_bound(d), worst);
  return text;
}
