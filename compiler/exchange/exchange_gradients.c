/* exchange_gradients.c - what a run backward moves between ranks: of each branch
 * keys and values come, or queries do (way.h), and their gradients go back in f32.
 * In: the shape of a share of the heads. Out: bytes, by place and by kind. */
#include "exchange.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <jansson.h>
#include <math.h>

/* ---- counts -------------------------------------------------------------- */

dil_status exchange_rows(const ring_shape *r, int64_t *rows, bool *exact) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < r->ranks * r->ranks && !status; i++) {
    int32_t from = i / r->ranks, to = i % r->ranks;
    rows[i] = 0;
    for (int32_t n = 0; n < EXCHANGE_PHASES * partition_lists(r) &&
                        from != to && !status; n++) {
      int64_t count = 0;
      bool known = true;
      status = partition_count(r, from, to, n / EXCHANGE_PHASES,
                               (exchange_phase)(n % EXCHANGE_PHASES), &count,
                               &known);
      *exact &= known;
      rows[i] += count;
    }
  }
  return status;
}

void exchange_gradients_begin(arena *a, exchange_cost *cost) {
  int32_t ring = cost->mesh.ring;
  cost->gradients.bytes = ARENA_ARRAY(a, int64_t, ring * ring);
}

/* Adds the rows of one way, `there` bytes of each and `back` bytes the other
 * way. */
static dil_status add_way(arena *a, const ring_shape *r, int64_t there,
                          int64_t back, double totals[2],
                          exchange_cost *cost) {
  int64_t *rows = ARENA_ARRAY(a, int64_t, r->ranks * r->ranks);
  int64_t *bytes = cost->gradients.bytes;
  dil_status status = exchange_rows(r, rows, &cost->exact);
  for (int32_t i = 0; i < r->ranks * r->ranks && !status; i++) {
    bytes[i] += rows[i] * there;
    bytes[i % r->ranks * r->ranks + i / r->ranks] += rows[i] * back;
    totals[0] += (double)(rows[i] * there);
    totals[1] += (double)(rows[i] * back);
  }
  return status;
}

/* The ways of each share; those of the first are shown. */
static dil_status choose_ways(const ring_shape *share, int64_t B,
                              exchange_gradients *g, uint64_t *queries) {
  way_bytes way[DIL_BRANCH_MAX];
  dil_status status = way_count(share, B, way);
  if (status) return status;
  *queries = way_cheaper(share->table, way);
  for (int32_t b = 0; b < share->table->branch_count; b++) {
    g->way[b].keys += way[b].keys;
    g->way[b].queries += way[b].queries;
  }
  g->queries |= *queries;
  return DIL_OK;
}

dil_status exchange_gradients_count(arena *a, const ring_shape *share, int64_t B,
                                    const int64_t *forward,
                                    exchange_cost *cost) {
  exchange_gradients *g = &cost->gradients;
  const dil_table *t = share->table;
  double keys[2] = {g->keys, g->dkv}, asking[2] = {g->asking, g->dq};
  uint64_t queries = 0;
  dil_status status = choose_ways(share, B, g, &queries);
  if (status) return status;
  for (int32_t i = 0; i < share->ranks * share->ranks; i++)
    if (backward_asks_states(t)) {
      g->bytes[i] += forward[i];
      g->states += (double)forward[i];
    }
  ring_shape come = way_keys(share, queries);
  status = add_way(a, &come, B * route_row_bytes(t), B * way_key_back(t), keys,
                   cost);
  come = way_queries(share, queries);
  if (!status)
    status = add_way(a, &come, B * way_query_bytes(t), B * way_query_back(t),
                     asking, cost);
  g->keys = keys[0];
  g->dkv = keys[1];
  g->asking = asking[0];
  g->dq = asking[1];
  return status;
}

/* The sums of a rank's own rows, and those of another rank's rows under way. */
void exchange_gradients_end(exchange_cost *b, int64_t B) {
  const dil_table *t = &b->plan->table;
  int64_t queries = 0, keys = 0;
  for (int32_t i = 0; i < b->mesh.ring; i++) {
    queries = maximum(queries, b->queries[i]);
    keys = maximum(keys, b->keys[i]);
  }
  head_partition share =
      partition_heads(t->heads, t->kv_heads, b->mesh.heads, 0);
  double batch = (double)((B + b->mesh.batch - 1) / b->mesh.batch);
  double rows = (double)queries * share.heads * (double)way_query_back(t);
  double own = (double)keys * share.kv_heads * (double)way_key_back(t);
  double others = (b->gradients.keys > 0 ? own : 0) +
                  (b->gradients.asking > 0 ? rows : 0);
  b->gradients.sums = batch * (rows + own + others);
}

int64_t exchange_backward_sends(const exchange_cost *b, int32_t rank) {
  int64_t sum = 0;
  for (int32_t to = 0; to < b->mesh.ring; to++)
    sum += b->gradients.bytes[rank * b->mesh.ring + to];
  return sum;
}

int64_t exchange_backward_receives(const exchange_cost *b, int32_t rank) {
  int64_t sum = 0;
  for (int32_t from = 0; from < b->mesh.ring; from++)
    sum += b->gradients.bytes[from * b->mesh.ring + rank];
  return sum;
}

/* ---- text ---------------------------------------------------------------- */

static bool queries_come(const exchange_cost *b, int32_t index) {
  return b->gradients.queries >> index & 1;
}

static bool travels(const exchange_cost *b, int32_t index) {
  return b->gradients.way[index].keys > 0 ||
         b->gradients.way[index].queries > 0;
}

/* Which way each branch goes, and what either way would move. */
static void print_ways(const exchange_cost *b, FILE *out) {
  char name[QUANTITY_TEXT], keys[QUANTITY_TEXT], queries[QUANTITY_TEXT];
  for (int32_t i = 0; i < b->plan->table.branch_count; i++) {
    const way_bytes *of = &b->gradients.way[i];
    fprintf(out, "%-11s%-10s ", i ? "" : "backward",
            exchange_branch_name(b, i, name));
    if (!travels(b, i)) {
      fprintf(out, "none of its rows travel\n");
      continue;
    }
    fprintf(out, "%s come: alone %s if keys come, %s if queries do\n",
            queries_come(b, i) ? "queries" : "keys",
            quantity_bytes(of->keys, keys),
            isfinite(of->queries) ? quantity_bytes(of->queries, queries)
                                  : "no list");
  }
}

static void print_moves(const exchange_cost *b, FILE *out) {
  const exchange_gradients *g = &b->gradients;
  char there[QUANTITY_TEXT], back[QUANTITY_TEXT];
  if (g->states > 0)
    fprintf(out, "           %s of k and v come first, for the states of "
                 "branches\n", quantity_bytes(g->states, there));
  if (g->keys > 0 || !(g->asking > 0))
    fprintf(out, "           %s of k and v come, %s of dk and dv go back in "
                 "f32\n",
            quantity_bytes(g->keys, there), quantity_bytes(g->dkv, back));
  if (g->asking > 0)
    fprintf(out, "           %s of q, do, lse and delta come, %s of dq go back "
                 "in f32\n",
            quantity_bytes(g->asking, there), quantity_bytes(g->dq, back));
  fprintf(out, "           sums of %s a rank\n",
          quantity_bytes(g->sums, there));
}

void exchange_gradients_print(const exchange_cost *b, FILE *out) {
  char in[QUANTITY_TEXT], away[QUANTITY_TEXT];
  print_ways(b, out);
  print_moves(b, out);
  if (b->mesh.ring < 2) return;
  fprintf(out, "%8s %11s %11s\n", "rank", "sends", "receives");
  for (int32_t i = 0; i < b->mesh.ring; i++)
    fprintf(out, "%8d %11s %11s\n", i,
            quantity_bytes((double)exchange_backward_sends(b, i), away),
            quantity_bytes((double)exchange_backward_receives(b, i), in));
}

json_t *exchange_gradients_json(const exchange_cost *b) {
  json_t *branches = json_array();
  for (int32_t i = 0; i < b->plan->table.branch_count; i++) {
    const way_bytes *of = &b->gradients.way[i];
    char name[QUANTITY_TEXT];
    json_array_append_new(
        branches,
        json_pack("{s:s, s:s, s:f, s:o}", "branch",
                  exchange_branch_name(b, i, name), "comes",
                  queries_come(b, i) ? "queries" : "keys", "keys_bytes",
                  of->keys, "queries_bytes",
                  isfinite(of->queries) ? json_real(of->queries)
                                        : json_null()));
  }
  return branches;
}
