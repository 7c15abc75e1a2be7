/* exchange_cost.c - what a topology costs: bytes between ranks, work of each, a
 * predicted time. In: a plan's table, a topology, sizes. Out: a cost. */
#include "exchange.h"
#include "compiler/base/quantity.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <jansson.h>
#include <math.h>

/* ---- the cost ------------------------------------------------------------ */

enum { STRETCHES = 64, REASON = 128 };

/* One share of the heads: what travels of all batch rows. */
static dil_status count_share(arena *a, const ring_shape *r, int64_t B,
                              int64_t *bytes, bool *exact) {
  int32_t pairs = r->ranks * r->ranks;
  int64_t *rows = ARENA_ARRAY(a, int64_t, pairs);
  dil_status status = exchange_rows(r, rows, exact);
  for (int32_t i = 0; i < pairs && !status; i++)
    bytes[i] += rows[i] * B * route_row_bytes(r->table);
  return status;
}

/* Bytes into and out of a place. */
static int64_t most_of(const ring_shape *r, const int64_t *bytes) {
  int64_t most = 0;
  for (int32_t i = 0; i < r->ranks; i++) {
    int64_t in = 0, out = 0;
    for (int32_t k = 0; k < r->ranks; k++) {
      in += bytes[k * r->ranks + i];
      out += bytes[i * r->ranks + k];
    }
    most = maximum(most, maximum(in, out));
  }
  return most;
}

/* K/V heads that several ranks need travel to each of them. */
static dil_status count_bytes(arena *a, const ring_shape *whole, int64_t B,
                              exchange_cost *cost) {
  const mesh *m = &cost->mesh;
  int64_t pairs = (int64_t)m->ring * m->ring;
  int64_t batch = (B + m->batch - 1) / m->batch;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < m->heads && !status; i++) {
    const dil_table *all = whole->table;
    head_partition share =
        partition_heads(all->heads, all->kv_heads, m->heads, i);
    dil_table mine = head_partition_table(
        all, share, arena_take(a, 1, head_partition_size(all)));
    partition_mask mask = whole->mask ? *whole->mask : (partition_mask){0};
    int64_t *bytes = ARENA_ARRAY(a, int64_t, pairs);
    ring_shape r = *whole;
    r.table = &mine;
    mask.head = share.head;
    if (whole->mask) r.mask = &mask;
    status = count_share(a, &r, B, bytes, &cost->exact);
    if (!status && cost->backward)
      status = exchange_gradients_count(a, &r, B, bytes, cost);
    for (int64_t k = 0; k < pairs; k++) cost->bytes[k] += bytes[k];
    double most = (double)most_of(&r, bytes) * (double)batch / (double)B;
    cost->most = B ? fmax(cost->most, most) : 0;
  }
  return status;
}

static int64_t received(const exchange_cost *b, int32_t rank) {
  int64_t sum = 0;
  for (int32_t from = 0; from < b->mesh.ring; from++)
    sum += b->bytes[from * b->mesh.ring + rank];
  return sum;
}

static int64_t sent(const exchange_cost *b, int32_t rank) {
  int64_t sum = 0;
  for (int32_t to = 0; to < b->mesh.ring; to++)
    sum += b->bytes[rank * b->mesh.ring + to];
  return sum;
}

/* ---- a prediction -------------------------------------------------------- */

/* The busiest rank's share of the whole call's seconds. */
static void predict(exchange_cost *b, double seconds) {
  double all = 0, most = 0;
  for (int32_t i = 0; i < b->mesh.ring; i++) {
    all += b->pairs[i];
    most = fmax(most, b->pairs[i]);
  }
  b->compute =
      all > 0 ? seconds * most / all / (b->mesh.heads * b->mesh.batch) : 0;
  double speed = b->choice.speed.bytes;
  b->transfer = speed > 0 ? b->most / speed : 0;
}

static void count_rows(arena *a, const ring_shape *r, int64_t B,
                       exchange_cost *cost) {
  positions whole = {1, {{0, 1, r->M}}};
  cost->queries = ARENA_ARRAY(a, int64_t, r->ranks);
  cost->keys = ARENA_ARRAY(a, int64_t, r->ranks);
  cost->pairs = ARENA_ARRAY(a, double, r->ranks);
  for (int32_t i = 0; i < r->ranks; i++) {
    positions asking = partition_queries(r, i), owned = partition_keys(r, i);
    cost->queries[i] = positions_count(&asking);
    cost->keys[i] = positions_count(&owned);
    cost->pairs[i] =
        (double)B * exchange_pairs(r->table, &asking, &whole, STRETCHES);
  }
}

dil_status exchange_cost_of(arena *a, const plan *of, const mesh *on,
                            const topology *t, int64_t B, int64_t N, int64_t M,
                            double seconds, bool on_gpu, bool backward,
                            exchange_cost *cost) {
  mask_bounds bounds = {of, B, N, M};
  partition_mask mask = mask_bounds_of(&bounds);
  *cost = (exchange_cost){.topology = t, .plan = of, .exact = true,
                          .mesh = *on, .backward = backward};
  mesh *m = &cost->mesh;
  dil_status status =
      exchange_choose(a, &of->table, m, t, on_gpu, B, N, M, &cost->choice);
  if (status) return status;
  m->gathered = cost->choice.gathered;
  cost->bytes = ARENA_ARRAY(a, int64_t, m->ring * m->ring);
  ring_shape r = {.table = &of->table, .layout = m->layout, .ranks = m->ring,
                  .N = N, .M = M, .mask = mask.bounds ? &mask : NULL,
                  .gathered = m->gathered};
  count_rows(a, &r, B, cost);
  if (backward) exchange_gradients_begin(a, cost);
  status = count_bytes(a, &r, B, cost);
  predict(cost, seconds);
  if (backward) exchange_gradients_end(cost, B);
  return status;
}

/* ---- text ---------------------------------------------------------------- */

/* The bytes from each rank to each rank: the columns receive. */
static void print_table(const exchange_cost *b, FILE *out) {
  enum { WIDE = 16 };
  char text[QUANTITY_TEXT];
  int32_t ranks = b->mesh.ring;
  if (ranks > WIDE) return;
  fprintf(out, "\nfrom \\ to ");
  for (int32_t to = 0; to < ranks; to++) fprintf(out, "%11d", to);
  for (int32_t from = 0; from < ranks; from++) {
    fprintf(out, "\n%9d ", from);
    for (int32_t to = 0; to < ranks; to++) {
      int64_t bytes = b->bytes[from * ranks + to];
      fprintf(out, "%11s", bytes ? quantity_bytes((double)bytes, text) : "-");
    }
  }
  fprintf(out, "\n");
}

/* Bytes into the busiest rank, step by step. */
static void print_steps(const exchange_cost *b, FILE *out) {
  char text[QUANTITY_TEXT];
  int32_t ranks = b->mesh.ring;
  fprintf(out, "steps      ");
  for (int32_t step = 1; step < ranks; step++) {
    int64_t most = 0;
    for (int32_t to = 0; to < ranks; to++)
      most = maximum(most,
                     b->bytes[(to - step + ranks) % ranks * ranks + to]);
    fprintf(out, "%s%s", step > 1 ? ", " : "",
            quantity_bytes((double)most, text));
  }
  fprintf(out, ": the most that a rank receives in each\n");
}

static void print_ranks(const exchange_cost *b, double mean, FILE *out) {
  char in[QUANTITY_TEXT], away[QUANTITY_TEXT];
  fprintf(out, "%8s %11s %11s %11s %11s %9s\n", "rank", "queries", "keys",
          "sends", "receives", "work");
  for (int32_t i = 0; i < b->mesh.ring; i++)
    fprintf(out, "%8d %11lld %11lld %11s %11s %8.1f%%\n", i,
            (long long)b->queries[i], (long long)b->keys[i],
            quantity_bytes((double)sent(b, i), away),
            quantity_bytes((double)received(b, i), in),
            mean > 0 ? 100 * b->pairs[i] / mean : 0);
}

const char *exchange_branch_name(const exchange_cost *b, int32_t index,
                                 char text[QUANTITY_TEXT]) {
  const pattern *p = b->plan->pattern;
  const char *name = index < p->branch_count ? p->branch[index].name : NULL;
  if (!name) snprintf(text, QUANTITY_TEXT, "branch %d", index);
  return name ? name : text;
}

static bool gathers(const exchange_cost *b, int32_t index) {
  return b->mesh.gathered >> index & 1;
}

static const char *why(const exchange_cost *b, exchange_reason reason,
                       char text[REASON]) {
  char room[QUANTITY_TEXT];
  static const char *const reasons[] = {
      [EXCHANGE_NOTHING] = "none of its rows travel",
      [EXCHANGE_FORCED] = "the topology says so",
      [EXCHANGE_GAIN] = "all under way at once",
      [EXCHANGE_NO_GAIN] = "gathering saves no time",
      [EXCHANGE_TOO_LARGE] = "gathering takes more than "};
  snprintf(text, REASON, "%s%s", reasons[reason],
           reason == EXCHANGE_TOO_LARGE ? quantity_bytes(b->choice.room, room)
                                     : "");
  return text;
}

/* Prints how fast the links are, and where that is known from. */
static void print_speed(const exchange_speed *s, FILE *out) {
  char rate[QUANTITY_TEXT], late[QUANTITY_TEXT];
  if (!(s->bytes > 0)) return;
  fprintf(out, "links      %s: %sB/s each way, %s; a message is there after "
               "%s\n", s->name, quantity_scaled(s->bytes, rate), s->source,
          quantity_time(s->latency, late));
}

/* Which branch goes which way, and why. */
static void print_choice(const exchange_cost *b, FILE *out) {
  char name[QUANTITY_TEXT], bytes[QUANTITY_TEXT], text[REASON];
  for (int32_t i = 0; i < b->choice.branch_count; i++) {
    const exchange_branch *of = &b->choice.branch[i];
    fprintf(out, "%-11s%-10s ", i ? "" : "exchange",
            exchange_branch_name(b, i, name));
    if (of->reason != EXCHANGE_NOTHING)
      fprintf(out, "%-6s %10s in %d message%s: ",
              gathers(b, i) ? "gather" : "ring",
              quantity_bytes(of->bytes, bytes), of->messages,
              of->messages == 1 ? "" : "s");
    fprintf(out, "%s\n", why(b, of->reason, text));
  }
  if (b->choice.saved > 0)
    fprintf(out, "           gathering saves %s of %s by the speeds of such "
                 "links\n",
            quantity_time(b->choice.saved, text),
            quantity_time(b->choice.seconds + b->choice.saved, bytes));
}

void exchange_cost_print(const exchange_cost *b, FILE *out) {
  char compute[QUANTITY_TEXT], transfer[QUANTITY_TEXT], all[QUANTITY_TEXT];
  double sum = 0;
  for (int32_t i = 0; i < b->mesh.ring; i++) sum += b->pairs[i];
  fprintf(out, "\ntopology   %s: ", b->topology->name);
  place_print_mesh(&b->mesh, b->topology, out);
  fprintf(out, "\n");
  if (b->mesh.ring > 1) print_speed(&b->choice.speed, out);
  print_choice(b, out);
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
          quantity_time(fmax(b->compute, b->transfer), all),
          quantity_time(b->compute, compute),
          quantity_time(b->transfer, transfer), 100 * hidden);
  if (b->backward) exchange_gradients_print(b, out);
}

static json_t *choice_json(const exchange_cost *b) {
  json_t *branches = json_array();
  for (int32_t i = 0; i < b->choice.branch_count; i++) {
    const exchange_branch *of = &b->choice.branch[i];
    char name[QUANTITY_TEXT], text[REASON];
    json_array_append_new(
        branches,
        json_pack("{s:s, s:s, s:f, s:i, s:s}", "branch",
                  exchange_branch_name(b, i, name), "way",
                  gathers(b, i) ? "gather" : "ring", "bytes", of->bytes,
                  "messages", of->messages, "why", why(b, of->reason, text)));
  }
  return branches;
}

static json_t *rank_json(const exchange_cost *b, int32_t i) {
  json_t *rank = json_pack("{s:I, s:I, s:I, s:I, s:f}", "queries",
                           (json_int_t)b->queries[i], "keys",
                           (json_int_t)b->keys[i], "sends",
                           (json_int_t)sent(b, i), "receives",
                           (json_int_t)received(b, i), "pairs", b->pairs[i]);
  if (!b->backward) return rank;
  json_object_set_new(rank, "backward_sends",
                      json_integer(exchange_backward_sends(b, i)));
  json_object_set_new(
      rank, "backward_receives",
      json_integer(exchange_backward_receives(b, i)));
  return rank;
}

json_t *exchange_cost_json(const exchange_cost *b) {
  json_t *ranks = json_array();
  for (int32_t i = 0; i < b->mesh.ring; i++)
    json_array_append_new(ranks, rank_json(b, i));
  json_t *all = json_pack("{s:s, s:i, s:i, s:i, s:f, s:o, s:o, s:b, s:f, s:f}", "name",
                   b->topology->name, "ring", b->mesh.ring, "heads",
                   b->mesh.heads, "batch", b->mesh.batch, "link_bytes_second",
                   b->choice.speed.bytes, "exchange", choice_json(b), "ranks",
                   ranks, "exact", b->exact, "compute_seconds", b->compute,
                   "transfer_seconds", b->transfer);
  if (b->backward)
    json_object_set_new(all, "backward", exchange_gradients_json(b));
  return all;
}
