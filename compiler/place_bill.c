/* place_bill.c - what a topology costs: bytes between ranks, work of each, a
 * predicted time. In: a plan's table, a topology, sizes. Out: a bill. */
#include "command.h"
#include "place.h"
#include "../runtime/walk.h"
#include <jansson.h>
#include <math.h>

/* ---- the bill ------------------------------------------------------------ */

/* Keys that query t sees of a branch, masks aside. */
static double keys_of(const dil_table *table, const dil_branch *b, int32_t h,
                      int64_t t, int64_t M) {
  int64_t low = 0, high = M, base = 0;
  if (b->segment) {
    if (t < 0) return 0;
    base = low = t / b->segment * b->segment;
    high = minimum(high, low + b->segment);
  }
  if (floor_mod(t - base - b->phase[h], b->dilation)) return 0;
  if (b->predicate >= 0) {
    const dil_predicate *p = &table->predicates[b->predicate];
    if (p->left != DIL_ENDLESS) low = maximum(low, t - p->left);
    if (p->right != DIL_ENDLESS) high = minimum(high, t + p->right + 1);
  }
  int64_t origin = base + b->phase[h];
  int64_t first = low + floor_mod(origin - low, b->dilation);
  return first < high ? (double)((high - 1 - first) / b->dilation + 1) : 0;
}

static double row_pairs(const dil_table *t, int64_t at, int64_t M) {
  double sum = 0;
  for (int32_t h = 0; h < t->heads; h++)
    for (int32_t b = 0; b < t->branch_count; b++)
      if (t->branches[b].head_first <= h && h <= t->branches[b].head_last)
        sum += keys_of(t, &t->branches[b], h, at, M);
  return sum;
}

/* Neighbours differ by their residues, so a sample is made of stretches. */
static double comb_pairs(const dil_table *t, dil_comb c, int64_t M) {
  enum { STRETCH = 64, STRETCHES = 64 };
  int64_t taken = 0, gap = maximum(c.count / STRETCHES, STRETCH);
  double sum = 0;
  for (int64_t from = 0; from < c.count; from += gap)
    for (int64_t i = from; i < minimum(from + STRETCH, c.count); i++, taken++)
      sum += row_pairs(t, c.first + i * c.step, M);
  return taken ? sum * (double)c.count / (double)taken : 0;
}

static double shard_pairs(const dil_table *t, const shard *s, int64_t M) {
  double sum = 0;
  for (int32_t i = 0; i < s->count; i++) sum += comb_pairs(t, s->comb[i], M);
  return sum;
}

/* Bytes a second between two ranks, a guess for each link. */
static const double rates[] = {
    [LINK_DEFAULT] = 8e9, [LINK_THREAD] = 8e9, [LINK_MPI] = 4e9,
    [LINK_NCCL] = 345e9};

static dil_status count_bytes(const ring_shape *r, int64_t B,
                              place_bill *bill) {
  const dil_table *t = r->table;
  int64_t row = (t->head_dim + t->value_dim) * B *
                (int64_t)dil_dtype_size(t->dtype);
  for (int32_t from = 0; from < r->ranks; from++)
    for (int32_t to = 0; to < r->ranks; to++)
      for (int32_t kv = 0; kv < t->kv_heads && from != to; kv++) {
        int64_t count;
        bool exact;
        dil_status status = place_count(r, from, to, kv, &count, &exact);
        if (status) return status;
        bill->exact &= exact;
        bill->bytes[from * r->ranks + to] += count * row;
      }
  return DIL_OK;
}

static int64_t received(const place_bill *b, int32_t rank) {
  int64_t sum = 0;
  for (int32_t from = 0; from < b->mesh.ring; from++)
    sum += b->bytes[from * b->mesh.ring + rank];
  return sum;
}

static int64_t sent(const place_bill *b, int32_t rank) {
  int64_t sum = 0;
  for (int32_t to = 0; to < b->mesh.ring; to++)
    sum += b->bytes[rank * b->mesh.ring + to];
  return sum;
}

/* The busiest rank's share of the whole call's seconds. */
static void predict(const place_bill *b, double seconds, double *compute,
                    double *transfer) {
  double all = 0, most = 0;
  int64_t bytes = 0;
  for (int32_t i = 0; i < b->mesh.ring; i++) {
    all += b->pairs[i];
    most = fmax(most, b->pairs[i]);
    bytes = maximum(bytes, maximum(sent(b, i), received(b, i)));
  }
  *compute = all > 0 ? seconds * most / all / (b->mesh.heads * b->mesh.batch) : 0;
  *transfer = (double)bytes / rates[b->topology->link];
}

dil_status place_count_up(arena *a, const plan *of, const topology *t,
                          int64_t B, int64_t N, int64_t M, double seconds,
                          place_bill *bill) {
  const pattern *p = of->pattern;
  const dil_table *table = &of->table;
  place_judge judge = {of, B, N, M};
  place_mask mask = place_judge_masks(&judge);
  *bill = (place_bill){.topology = t, .mesh = place_mesh(p, t), .exact = true};
  mesh *m = &bill->mesh;
  m->exchange = place_exchange(t, p, B, M);
  bill->bytes = ARENA_ARRAY(a, int64_t, m->ring * m->ring);
  bill->queries = ARENA_ARRAY(a, int64_t, m->ring);
  bill->keys = ARENA_ARRAY(a, int64_t, m->ring);
  bill->pairs = ARENA_ARRAY(a, double, m->ring);
  ring_shape r = {table, m->layout, m->ring, N, M, mask.judge ? &mask : NULL};
  for (int32_t i = 0; i < m->ring; i++) {
    shard asking = place_queries(&r, i), owned = place_keys(&r, i);
    bill->queries[i] = shard_rows(&asking);
    bill->keys[i] = shard_rows(&owned);
    bill->pairs[i] = (double)B * shard_pairs(table, &asking, M);
  }
  dil_status status = count_bytes(&r, B, bill);
  predict(bill, seconds, &bill->compute, &bill->transfer);
  return status;
}

/* ---- text ---------------------------------------------------------------- */

/* Who sends what: the columns receive. */
static void print_table(const place_bill *b, FILE *out) {
  enum { WIDE = 16 };
  char text[MESSAGE_NUMBER];
  int32_t ranks = b->mesh.ring;
  if (ranks > WIDE) return;
  fprintf(out, "\nfrom \\ to ");
  for (int32_t to = 0; to < ranks; to++) fprintf(out, "%11d", to);
  for (int32_t from = 0; from < ranks; from++) {
    fprintf(out, "\n%9d ", from);
    for (int32_t to = 0; to < ranks; to++) {
      int64_t bytes = b->bytes[from * ranks + to];
      fprintf(out, "%11s", bytes ? message_bytes((double)bytes, text) : "-");
    }
  }
  fprintf(out, "\n");
}

/* Bytes into the busiest rank, step by step. */
static void print_steps(const place_bill *b, FILE *out) {
  char text[MESSAGE_NUMBER];
  int32_t ranks = b->mesh.ring;
  fprintf(out, "steps      ");
  for (int32_t step = 1; step < ranks; step++) {
    int64_t most = 0;
    for (int32_t to = 0; to < ranks; to++)
      most = maximum(most,
                     b->bytes[(to - step + ranks) % ranks * ranks + to]);
    fprintf(out, "%s%s", step > 1 ? ", " : "",
            message_bytes((double)most, text));
  }
  fprintf(out, ": the most that a rank receives in each\n");
}

static void print_ranks(const place_bill *b, double mean, FILE *out) {
  char in[MESSAGE_NUMBER], away[MESSAGE_NUMBER];
  fprintf(out, "%8s %11s %11s %11s %11s %9s\n", "rank", "queries", "keys",
          "sends", "receives", "work");
  for (int32_t i = 0; i < b->mesh.ring; i++)
    fprintf(out, "%8d %11lld %11lld %11s %11s %8.1f%%\n", i,
            (long long)b->queries[i], (long long)b->keys[i],
            message_bytes((double)sent(b, i), away),
            message_bytes((double)received(b, i), in),
            mean > 0 ? 100 * b->pairs[i] / mean : 0);
}

void place_bill_print(const place_bill *b, FILE *out) {
  char compute[MESSAGE_NUMBER], transfer[MESSAGE_NUMBER], all[MESSAGE_NUMBER];
  double sum = 0;
  for (int32_t i = 0; i < b->mesh.ring; i++) sum += b->pairs[i];
  fprintf(out, "\ntopology   %s: ", b->topology->name);
  place_print_mesh(&b->mesh, b->topology, out);
  fprintf(out, ", exchange %s\n", b->mesh.exchange == DIL_EXCHANGE_RING ? "ring" : "gather");
  print_ranks(b, sum / b->mesh.ring, out);
  print_table(b, out);
  if (b->mesh.ring > 1) print_steps(b, out);
  if (!b->exact)
    fprintf(out, "           an upper bound: some mask is not settled without "
                 "its inputs, or\n           not in reasonable time\n");
  double hidden = b->transfer > 0 ? fmin(1, b->compute / b->transfer) : 1;
  fprintf(out, "predicted  %s if each rank has a device like this one: %s of "
               "passes, %s of\n           transfers, of which up to %.0f %% "
               "behind the passes\n",
          message_time(fmax(b->compute, b->transfer), all),
          message_time(b->compute, compute),
          message_time(b->transfer, transfer), 100 * hidden);
}

json_t *place_bill_json(const place_bill *b) {
  json_t *ranks = json_array();
  for (int32_t i = 0; i < b->mesh.ring; i++)
    json_array_append_new(
        ranks, json_pack("{s:I, s:I, s:I, s:I, s:f}", "queries",
                         (json_int_t)b->queries[i], "keys",
                         (json_int_t)b->keys[i], "sends",
                         (json_int_t)sent(b, i), "receives",
                         (json_int_t)received(b, i), "pairs", b->pairs[i]));
  return json_pack("{s:s, s:i, s:i, s:i, s:o, s:b, s:f, s:f}", "name",
                   b->topology->name, "ring", b->mesh.ring, "heads",
                   b->mesh.heads, "batch", b->mesh.batch, "ranks", ranks,
                   "exact", b->exact,
                   "compute_seconds", b->compute, "transfer_seconds",
                   b->transfer);
}
