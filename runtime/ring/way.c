/* way.c - counts the bytes of both ways; see way.h. In: the shape of a ring. Out:
 * bytes of each branch, and the branches whose queries come. */
#include "way.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>

/* ---- bytes of a row ------------------------------------------------------ */

int64_t way_query_bytes(const dil_table *t) {
  return route_row_bytes(t) + 2 * backward_states(t) * (int64_t)sizeof(float);
}

int64_t way_key_back(const dil_table *t) {
  return (t->head_dim + t->value_dim) * (int64_t)sizeof(float);
}

int64_t way_query_back(const dil_table *t) {
  return t->head_dim * (int64_t)sizeof(float);
}

/* ---- shapes -------------------------------------------------------------- */

ring_shape way_keys(const ring_shape *r, uint64_t queries) {
  ring_shape of = *r;
  of.left_out = queries & partition_branches(r->table);
  return of;
}

ring_shape way_queries(const ring_shape *r, uint64_t queries) {
  ring_shape of = *r;
  of.left_out = ~queries & partition_branches(r->table);
  of.queries = true;
  return of;
}

/* ---- counts -------------------------------------------------------------- */

enum { RECEIVERS_MOST = 8 };

/* Rows of one list that all ranks send to one. */
static dil_status count_into(const ring_shape *r, int32_t to, int32_t list,
                             double *rows) {
  dil_status status = DIL_OK;
  for (int32_t from = 0; from < r->ranks && !status; from++) {
    int64_t count = 0;
    bool exact;
    if (from == to) continue;
    status = partition_count(r, from, to, list, EXCHANGE_ROTATED, &count,
                             &exact);
    *rows += (double)count;
  }
  return status;
}

static dil_status count_list(const ring_shape *r, int32_t list, double *rows) {
  int32_t some = r->ranks < RECEIVERS_MOST ? r->ranks : RECEIVERS_MOST;
  dil_status status = DIL_OK;
  *rows = 0;
  for (int32_t i = 0; i < some && !status; i++)
    status = count_into(r, i * r->ranks / some, list, rows);
  *rows = *rows * r->ranks / some;
  return status;
}

/* A branch alone: phases differ from head to head, and numbers of rows hardly. */
static dil_status count_branch(const ring_shape *r, int32_t b, double batch,
                               way_bytes *of) {
  const dil_table *t = r->table;
  const dil_branch *branch = &t->branches[b];
  uint64_t alone = (uint64_t)1 << b;
  ring_shape keys = way_keys(r, ~alone), queries = way_queries(r, alone);
  int32_t group = t->heads / t->kv_heads;
  double rows = 0;
  *of = (way_bytes){0};
  if (branch->head_first > branch->head_last) return DIL_OK;
  int32_t first = branch->head_first / group, last = branch->head_last / group;
  keys.gathered = queries.gathered = 0;
  keys.mask = queries.mask = NULL;
  dil_status status = count_list(&keys, first, &rows);
  if (status) return status;
  of->keys = rows * (last - first + 1) * batch *
             (double)(route_row_bytes(t) + way_key_back(t));
  status = count_list(&queries, branch->head_first, &rows);
  if (status == DIL_UNSUPPORTED) {
    of->queries = INFINITY; /* no list of these queries: the keys come */
    return DIL_OK;
  }
  of->queries = rows * (branch->head_last - branch->head_first + 1) * batch *
                (double)(way_query_bytes(t) + way_query_back(t));
  return status;
}

dil_status way_count(const ring_shape *r, int64_t B,
                     way_bytes bytes[DIL_BRANCH_MAX]) {
  dil_status status = DIL_OK;
  for (int32_t b = 0; b < r->table->branch_count && !status; b++)
    status = count_branch(r, b, (double)B, &bytes[b]);
  return status;
}

/* ---- the choice ---------------------------------------------------------- */

static bool goes_together(const dil_table *t) {
  return t->combine == DIL_COMBINE_UNION;
}

uint64_t way_settle(const dil_table *t, uint64_t queries) {
  queries &= partition_branches(t);
  return queries && goes_together(t) ? partition_branches(t) : queries;
}

uint64_t way_cheaper(const dil_table *t,
                     const way_bytes bytes[DIL_BRANCH_MAX]) {
  way_bytes all = {0};
  uint64_t queries = 0;
  for (int32_t b = 0; b < t->branch_count; b++) {
    all.keys += bytes[b].keys;
    all.queries += bytes[b].queries;
    if (bytes[b].queries < bytes[b].keys) queries |= (uint64_t)1 << b;
  }
  if (!goes_together(t)) return queries;
  return all.queries < all.keys ? partition_branches(t) : 0;
}
