/* packed.c - calls whose batch row holds documents one after the other.
 *
 * In: a run whose call has documents, its offsets checked. Out: o and lse; and,
 * for whoever works on documents, each of them as a run of its own. What a
 * document gets has the bits of a call of its own: how documents share threads
 * decides nothing. A document with much work has all threads to itself, the
 * others have a thread each, those with most work first. */
#include "cpu_run.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include "runtime/observe/watch.h"
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- one document -------------------------------------------------------- */

cpu_run packed_document(const cpu_run *r, int64_t b, dil_call *call) {
  cpu_run one = *r;
  *call = documents_take(r->call, b);
  call->watch = NULL; /* the packed run counts the rows */
  one.call = call;
  one.packed = r;
  one.document = b;
  one.B = 1;
  one.N = call->q.shape[1];
  one.M = call->k.shape[1];
  return one;
}

unsigned packed_variants(const cpu_run *r) {
  unsigned mask = 0;
  for (int64_t b = 0; b < r->call->packed.count; b++) {
    dil_call call;
    cpu_run one = packed_document(r, b, &call);
    if (one.N) mask |= cpu_run_variants(&one);
  }
  return mask ? mask : 1u << DIL_TILES;
}

/* ---- documents share the threads ----------------------------------------- */

enum {
  WIDE_ROWS = 64,    /* of all heads, a thread: enough for every one */
  WIDE_SHARE = 4,    /* a document of less than 1 / (4 threads) of the work is
                        done by one thread */
  COST_CLASSES = 128 /* powers of two of the work */
};

/* The order of the documents: wide ones, then the others by work. */
typedef struct packed_order {
  const packed_work *of;
  double total;       /* work of all */
  int32_t *document;  /* [count], NULL while bytes are counted */
  int64_t wide, count;
  char *memory;       /* behind the order */
  int64_t bytes;      /* of one thread's share of it */
  _Atomic int32_t status;
} packed_order;

static int64_t rows_of(const int32_t *offsets, int64_t b) {
  return (int64_t)offsets[b + 1] - offsets[b];
}

static double cost_of(const cpu_run *r, int64_t b) {
  const dil_packed *p = &r->call->packed;
  double queries = (double)rows_of(p->queries, b);
  double keys = (double)rows_of(p->keys, b);
  return (queries + 1) * (keys + 1) - 1;
}

static double cost_of_all(const cpu_run *r) {
  double total = 0;
  for (int64_t b = 0; b < r->call->packed.count; b++) total += cost_of(r, b);
  return total;
}

static bool is_wide(const cpu_run *r, int64_t b, double total) {
  double threads = dil_threads_count(r->threads);
  double rows = (double)rows_of(r->call->packed.queries, b) * r->table->heads;
  return cost_of(r, b) * WIDE_SHARE * threads > total &&
         rows > WIDE_ROWS * threads;
}

static bool has_all_threads(const packed_work *w, int64_t b, double total) {
  return w->in_turn || is_wide(w->run, b, total);
}

/* Of documents without a row nothing is done. */
static bool is_empty(const cpu_run *r, int64_t b) { return cost_of(r, b) == 0; }

static cpu_run document_on_threads(const cpu_run *r, int64_t b, bool wide,
                                   dil_call *call) {
  cpu_run one = packed_document(r, b, call);
  if (!wide) one.threads = NULL;
  return one;
}

static int64_t order_bytes(const packed_work *w) {
  return round_up(w->run->call->packed.count * (int64_t)sizeof(int32_t), 64);
}

/* The most bytes that a wide document, and another one, needs. */
static void most_bytes(const packed_work *w, int64_t *wide, int64_t *narrow) {
  const cpu_run *r = w->run;
  double total = cost_of_all(r);
  *wide = *narrow = 0;
  for (int64_t b = 0; b < r->call->packed.count; b++) {
    dil_call call;
    if (is_empty(r, b)) continue;
    bool alone = has_all_threads(w, b, total);
    cpu_run one = document_on_threads(r, b, alone, &call);
    int64_t bytes = round_up(w->bytes(w, &one, b), 64);
    int64_t *most = alone ? wide : narrow;
    *most = maximum(*most, bytes);
  }
}

int64_t packed_share_bytes(const packed_work *w) {
  int64_t wide, narrow;
  most_bytes(w, &wide, &narrow);
  return order_bytes(w) +
         maximum(wide, narrow * dil_threads_count(w->run->threads));
}

/* Large classes first: -log2 of the work, and wide ones before all. */
static int32_t class_of(const packed_work *w, int64_t b, double total) {
  if (has_all_threads(w, b, total)) return 0;
  return COST_CLASSES - 1 - (int32_t)fmin(log2(cost_of(w->run, b)), 100);
}

/* A counting sort: it takes no memory and keeps the order of a class. */
static void order_documents(packed_order *o) {
  const cpu_run *r = o->of->run;
  int64_t count = r->call->packed.count, first[COST_CLASSES + 1] = {0};
  for (int64_t b = 0; b < count; b++)
    if (!is_empty(r, b)) first[class_of(o->of, b, o->total) + 1]++;
  o->wide = first[1];
  for (int32_t c = 0; c < COST_CLASSES; c++) first[c + 1] += first[c];
  o->count = first[COST_CLASSES];
  for (int64_t b = 0; b < count; b++)
    if (!is_empty(r, b))
      o->document[first[class_of(o->of, b, o->total)]++] = (int32_t)b;
}

static dil_status work_on(const packed_order *o, int64_t index, char *memory) {
  dil_call call;
  const cpu_run *r = o->of->run;
  int64_t b = o->document[index];
  cpu_run one = document_on_threads(r, b, index < o->wide, &call);
  dil_status status = o->of->work(o->of, &one, b, memory);
  watch_add(r->call->watch, one.N);
  return status;
}

static void narrow_item(void *context, int64_t index, int32_t worker) {
  packed_order *o = context;
  dil_status status =
      work_on(o, o->wide + index, o->memory + worker * o->bytes);
  if (status) atomic_store(&o->status, (int32_t)status);
}

dil_status packed_share(const packed_work *w, char *memory) {
  packed_order o = {.of = w, .total = cost_of_all(w->run)};
  int64_t wide;
  dil_status status = DIL_OK;
  most_bytes(w, &wide, &o.bytes);
  o.document = (int32_t *)memory;
  o.memory = memory + order_bytes(w);
  order_documents(&o);
  for (int64_t i = 0; i < o.wide && !status; i++)
    status = work_on(&o, i, o.memory);
  if (!status)
    status =
        dil_threads_run(w->run->threads, o.count - o.wide, narrow_item, &o);
  return status ? status : (dil_status)atomic_load(&o.status);
}

/* ---- rows of nobody ------------------------------------------------------ */

typedef struct clear_work {
  const dil_tensor *tensor;
  int64_t from;
} clear_work;

static void clear_row(void *context, int64_t index, int32_t worker) {
  const clear_work *w = context;
  const dil_tensor *t = w->tensor;
  int64_t n = w->from + index / t->shape[2], h = index % t->shape[2];
  size_t size = dil_dtype_size(t->dtype);
  (void)worker;
  memset((char *)t->data +
             (n * t->stride[1] + h * t->stride[2]) * (int64_t)size,
         0, (size_t)t->shape[3] * size);
}

dil_status packed_clear_rows(const cpu_run *r, const dil_tensor *t,
                             int64_t from) {
  clear_work w = {t, from};
  if (!t->data) return DIL_OK;
  return dil_threads_run(r->threads, (t->shape[1] - from) * t->shape[2],
                         clear_row, &w);
}

void packed_clear_lse(const dil_tensor *t, int64_t from) {
  if (!t->data) return;
  for (int64_t h = 0; h < t->shape[1]; h++)
    for (int64_t n = from; n < t->shape[2]; n++)
      ((float *)t->data)[h * t->stride[1] + n * t->stride[2]] = -INFINITY;
}

/* ---- forward ------------------------------------------------------------- */

static int64_t forward_bytes(const packed_work *w, cpu_run *document,
                             int64_t b) {
  (void)w;
  (void)b;
  return document->N ? cpu_run_bytes(document) : 0;
}

/* A document without queries has no rows to write. */
static dil_status forward_work(const packed_work *w, cpu_run *document,
                               int64_t b, char *memory) {
  (void)w;
  (void)b;
  return document->N ? cpu_run_passes(document, memory) : DIL_OK;
}

static packed_work forward_of(const cpu_run *r) {
  return (packed_work){
      .run = r, .bytes = forward_bytes, .work = forward_work};
}

int64_t packed_bytes(const cpu_run *r) {
  packed_work w = forward_of(r);
  return round_up(input_bounds_bytes(r), 64) + packed_share_bytes(&w);
}

dil_status packed_passes(cpu_run *r, char *memory) {
  packed_work w = forward_of(r);
  const dil_packed *p = &r->call->packed;
  int64_t bounds = round_up(input_bounds_bytes(r), 64);
  if (bounds) input_bounds_fill(r, memory);
  if (r->call->watch) {
    atomic_store(&r->call->watch->done, 0);
    atomic_store(&r->call->watch->total, p->queries[p->count]);
  }
  dil_status status = packed_share(&w, memory + bounds);
  if (!status)
    status = packed_clear_rows(r, &r->call->o, p->queries[p->count]);
  packed_clear_lse(&r->call->lse, p->queries[p->count]);
  return status;
}
