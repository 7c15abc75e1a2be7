/* command_explain.c - `dil explain FILE --seq N`: what a pattern costs, counted
 * exactly, and how long it would take here, which is a prediction. */
#include "call_setup.h"
#include "gradient_estimate.h"
#include "session_stream.h"
#include "compiler/analysis/cost.h"
#include "compiler/exchange/exchange.h"
#include "runtime/base/status.h"
#include "runtime/cpu/peak.h"
#include <jansson.h>
#include <string.h>

typedef struct cost_report {
  const pattern *pattern;
  const char *kernel, *isa;
  char variant[16];
  int64_t B, N, M;
  int32_t threads, tile_keys;
  bool causal;
  cover_count count; /* of all batch rows */
  cost_case spot;    /* on the processor */
  double flops, bytes;
  double dense, dense_causal; /* pairs */
  double peak, seconds;
  double dense_seconds;       /* of dense attention; the processor alone */
  cost_reason slower;         /* than that, and why */
  const char *made_up[DIL_INPUT_MAX]; /* inputs of random elements that decide
                                         which pairs are kept */
  int32_t made_up_count;
  exchange_cost *topology;       /* NULL: one device */
  gpu_estimate *gpu;             /* NULL: the processor */
  bool streamed;              /* by --stream */
  stream_shape shape;
  stream_facts stream;
  bool backward; /* by --backward, or by the kernel itself */
  gradient_estimate gradients;
} cost_report;

static bool all_causal(const pattern *p) {
  for (int32_t i = 0; i < p->branch_count; i++)
    if (!p->branch[i].causal && p->branch[i].right != 0) return false;
  return true;
}

/* Dense attention of this shape, causal where the pattern is. */
static void predict_dense(const call_setup *b, const compilation *c,
                          const cost_case *spot, cost_report *r) {
  cover_count count;
  call_setup beside = *b;
  cost_case one = *spot;
  beside.pattern = cost_beside(c->arena, r->pattern, r->causal);
  one.rows = r->N < DIL_TILE_ROWS_LEAST;
  one.dedup = false;
  one.count = &count;
  one.tile_keys = c->plan->table.tile_keys;
  measure_cover(&beside, COST_TILE_ROWS, one.tile_keys, &count);
  cost_parts own = cost_split(c->plan->pattern, spot);
  cost_parts dense = cost_split(beside.pattern, &one);
  r->dense_seconds = cost_seconds(beside.pattern, &one);
  r->slower = cost_slower(&own, &dense);
}

/* The prediction needs the peak of this machine, and to know what would run:
 * a kernel says so before any code is made. */
static dil_status explain_cpu(const call_setup *b, compilation *c,
                              cost_report *r) {
  dil_kernel *made;
  dil_sizes sizes = {r->B, r->N, r->M};
  kernel_code code = {0};
  code_request request = driver_code_request(c, b->context);
  dil_status status = driver_code(c, &request, &code);
  if (!status) status = dil_kernel_make(b->context, &code.source, &made);
  if (status) return status;
  status = dil_kernel_variant(made, &sizes, r->variant, sizeof r->variant);
  dil_kernel_free(made);
  kernel_code_free(&code);
  if (!status) status = measure_peak(b, r->isa, 0.05, &r->peak);
  r->spot = (cost_case){.threads = r->threads,
                        .count = &r->count,
                        .tile_keys = r->tile_keys,
                        .B = r->B,
                        .N = r->N,
                        .M = r->M,
                        .rows = !strcmp(r->variant, "rows"),
                        .dedup = c->plan->table.dedup,
                        .peak = r->peak,
                        .products = measure_products(r->pattern, r->isa)};
  r->seconds = cost_seconds(c->plan->pattern, &r->spot);
  predict_dense(b, c, &r->spot, r);
  return status;
}

/* Keys that are judged full, partial or empty at once: a tile of the plan, or
 * the pieces of one where masks decide. */
static int32_t explained_tile_keys(const dil_table *table) {
  for (int32_t i = 0; i < table->predicate_count; i++)
    if (table->predicates[i].masked) return COVER_SUBTILE;
  return table->tile_keys;
}

static dil_status explain_gpu(const call_setup *b, compilation *c,
                              cost_report *r) {
  dil_status status = DIL_OK;
  if (!b->options->cuda) status = gpu_estimate_device(b, c, r->gpu);
  if (!status) status = gpu_estimate_make(b, c, r->flops, r->gpu);
  r->seconds = r->gpu->seconds;
  return status;
}

/* Inputs that only scores read have no elements here. */
static void find_made_up(const call_setup *b, cost_report *r) {
  for (int32_t i = 0; i < b->options->input.count; i++) {
    const char *name = b->options->input.pair[i].name;
    if (strcmp(b->options->input.pair[i].value, "random")) continue;
    for (int32_t k = 0; k < b->pattern->input_count; k++)
      if (!strcmp(b->pattern->input[k].name, name) &&
          call_input_decides(b->pattern, k))
        r->made_up[r->made_up_count++] = name;
  }
}

static dil_status fill_report(const call_setup *b, compilation *c,
                              cost_report *r) {
  const pattern *p = b->pattern;
  int64_t B = b->size[CALL_B], N = b->size[CALL_N], M = b->size[CALL_M];
  r->pattern = p;
  r->kernel = c->kernel->name;
  r->B = B, r->N = N, r->M = M;
  r->isa = b->options->cpu ? b->options->cpu : dil_host_isa();
  if (!r->isa && !r->gpu)
    return dil_fail(DIL_ENVIRONMENT, "this processor lacks AVX2, FMA or F16C");
  r->threads = dil_threads_count(b->threads);
  r->causal = all_causal(p);
  find_made_up(b, r);
  r->tile_keys = explained_tile_keys(&c->plan->table);
  /* As it runs: masks may have become branches (normalise.c). */
  call_setup planned = *b;
  planned.pattern = c->plan->pattern;
  if (r->gpu) measure_rows(&planned, &r->count);
  else measure_cover(&planned, COST_TILE_ROWS, r->tile_keys, &r->count);
  r->flops = cost_flops(p, r->count.pairs);
  r->bytes = (double)B * cost_bytes(p, N, M);
  r->dense = (double)B * cost_dense(p, N, M, false);
  r->dense_causal = (double)B * cost_dense(p, N, M, true);
  return r->gpu ? explain_gpu(b, c, r) : explain_cpu(b, c, r);
}

/* ---- for people ---------------------------------------------------------- */

static double percent_of(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

static const char *plural_ending(int64_t count) {
  return count == 1 ? "" : "s";
}

static void print_pattern(const cost_report *r) {
  const pattern *p = r->pattern;
  printf("pattern    %s: %d branch%s, %lld heads", p->name, p->branch_count,
         p->branch_count == 1 ? "" : "es", (long long)p->heads);
  if (p->kv_heads != p->heads) printf(" on %lld", (long long)p->kv_heads);
  printf(" of %lld", (long long)p->head_dim);
  if (p->value_dim != p->head_dim) printf(" / %lld", (long long)p->value_dim);
  printf(", %s\n", dil_dtype_name(p->dtype));
  printf("size       %lld quer%s, %lld key%s, %lld batch row%s\n",
         (long long)r->N, r->N == 1 ? "y" : "ies", (long long)r->M,
         plural_ending(r->M), (long long)r->B, plural_ending(r->B));
}

static void print_counts(const cost_report *r) {
  char text[QUANTITY_TEXT];
  const cover_count *n = &r->count;
  printf("pairs      %.0f, %.3g %% of them repeat a key of another branch\n",
         n->pairs, percent_of(n->pairs - n->distinct, n->pairs));
  printf("density    %.0f distinct pairs, %.3g %% of dense", n->distinct,
         percent_of(n->distinct, r->dense));
  if (r->causal)
    printf(", %.3g %% of dense causal",
           percent_of(n->distinct, r->dense_causal));
  double rows = (double)r->B * (double)r->N * (double)r->pattern->heads;
  if (n->estimated)
    printf("\n           estimates: some places of many were looked at");
  printf("\nuncovered  %.0f of %.0f rows have no key\n", n->uncovered, rows);
  printf("work       %sFLOP by the definition, %.3g %% of dense\n",
         quantity_scaled(r->flops, text), percent_of(n->pairs, r->dense));
  printf("bytes      %s of q, k, v and o\n", quantity_bytes(r->bytes, text));
}

static void print_made_up(const cost_report *r) {
  char names[DIAG_LIST];
  if (r->made_up_count == 0) return;
  printf("inputs     random elements of %s decide which pairs are kept:\n"
         "           another call has other counts and another time\n",
         diag_list(r->made_up, r->made_up_count, names));
}

static void print_processor(const cost_report *r) {
  char time[QUANTITY_TEXT], rate[QUANTITY_TEXT];
  const cover_count *n = &r->count;
  printf("tiles      of %d x %d: %.0f full, %.0f partial, %.0f empty\n",
         COST_TILE_ROWS, r->tile_keys, n->full, n->partial, n->empty);
  printf("predicted  %s by %s on %d thread%s with %s,\n"
         "           a guess from the peak measured now: %sFLOP/s\n",
         quantity_time(r->seconds, time), r->variant, r->threads,
         plural_ending(r->threads), r->isa, quantity_scaled(r->peak, rate));
  if (!r->slower.text) return;
  printf("slower     than dense attention, which is predicted to take %s:\n"
         "           most of it is %s\n",
         quantity_time(r->dense_seconds, time), r->slower.text);
  if (r->slower.hint) printf("           hint: %s\n", r->slower.hint);
}

static void print_report(arena *a, const cost_report *r) {
  print_pattern(r);
  print_counts(r);
  print_made_up(r);
  if (r->backward) gradient_estimate_print(&r->gradients, stdout);
  if (r->gpu)
    gpu_estimate_print(a, r->gpu, stdout);
  else
    print_processor(r);
  if (r->streamed)
    report_stream_text(&r->shape.chunks, &r->stream, true, "streamed   ",
                       stdout);
  if (r->topology) exchange_cost_print(r->topology, stdout);
}

/* ---- for programs -------------------------------------------------------- */

typedef struct named_number {
  const char *name;
  double number;
} named_number;

/* Counts, which are integers as long as they can be. */
static void add_numbers(json_t *o, const named_number *list, size_t count) {
  for (size_t i = 0; i < count; i++) {
    double number = list[i].number;
    json_object_set_new(o, list[i].name,
                        number < 0x1p53 ? json_integer((json_int_t)number)
                                        : json_real(number));
  }
}
#define ADD_NUMBERS(o, list) \
  add_numbers((o), (list), sizeof(list) / sizeof *(list))

static void add_counts(json_t *o, const cost_report *r) {
  const cover_count *n = &r->count;
  const named_number numbers[] = {
      {"batch", (double)r->B},
      {"queries", (double)r->N},
      {"keys", (double)r->M},
      {"pairs", n->pairs},
      {"distinct_pairs", n->distinct},
      {"dense_pairs", r->dense},
      {"dense_causal_pairs", r->dense_causal},
      {"uncovered_rows", n->uncovered},
      {"flops", r->flops},
      {"bytes", r->bytes},
  };
  ADD_NUMBERS(o, numbers);
}

static void add_tiles_json(json_t *o, const cost_report *r) {
  const named_number numbers[] = {
      {"tile_rows", COST_TILE_ROWS},   {"tile_keys", r->tile_keys},
      {"tiles_full", r->count.full},   {"tiles_partial", r->count.partial},
      {"tiles_empty", r->count.empty}, {"threads", r->threads},
  };
  ADD_NUMBERS(o, numbers);
}

static void add_processor(json_t *o, const cost_report *r) {
  json_object_set_new(o, "variant", json_string(r->variant));
  json_object_set_new(o, "isa", json_string(r->isa));
  json_object_set_new(o, "peak_flops", json_real(r->peak));
  json_object_set_new(o, "predicted_seconds", json_real(r->seconds));
  json_object_set_new(o, "dense_seconds", json_real(r->dense_seconds));
  json_object_set_new(o, "slower_because",
                      r->slower.text ? json_string(r->slower.text)
                                     : json_null());
}

static void print_explain_json(arena *a, const cost_report *r) {
  json_t *o = json_object();
  json_object_set_new(o, "kernel", json_string(r->kernel));
  add_counts(o, r);
  if (!r->gpu) add_tiles_json(o, r);
  json_object_set_new(o, "density",
                      json_real(percent_of(r->count.distinct, r->dense) / 100));
  json_object_set_new(o, "estimated", json_boolean(r->count.estimated));
  json_t *made_up = json_array();
  for (int32_t i = 0; i < r->made_up_count; i++)
    json_array_append_new(made_up, json_string(r->made_up[i]));
  json_object_set_new(o, "random_inputs", made_up);
  if (r->backward)
    json_object_set_new(o, "gradients", gradient_estimate_json(&r->gradients));
  if (r->gpu)
    json_object_set_new(o, "cuda", gpu_estimate_json(a, r->gpu));
  else
    add_processor(o, r);
  if (r->streamed)
    json_object_set_new(o, "stream",
                        report_stream_json(&r->shape.chunks, &r->stream, true));
  if (r->topology)
    json_object_set_new(o, "topology", exchange_cost_json(r->topology));
  json_dumpf(o, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
  putchar('\n');
  json_decref(o);
}

static dil_status count_stream(const call_setup *b, const compilation *c,
                               cost_report *r) {
  int64_t memory = r->gpu ? r->gpu->facts.memory : 0;
  r->streamed = true;
  if (r->gpu && !memory && !b->options->stream)
    return dil_fail(DIL_USAGE, "how much memory the chip of --cuda has is not "
                    "known: --stream=BYTES says what may be taken of it");
  dil_status status = session_stream_plan(
      b, &c->plan->table, r->gpu ? 0 : r->threads, memory, &r->shape);
  return status ? status : stream_count(&r->shape, &r->stream);
}

/* Refuses options that the chosen machine has no use for. */
static dil_status check_machine(const options *o) {
  bool device = o->device.word == DEVICE_CUDA;
  const char *idle = o->seen[OPTION_CPU]       ? "--cpu"
                     : o->seen[OPTION_THREADS] ? "--threads"
                                               : NULL;
  if (o->device.word == DEVICE_ORACLE)
    return message_error(DIL_USAGE, "it is the definition, in plain loops",
                         "`dil explain` does not describe the oracle");
  if (o->cuda && o->seen[OPTION_DEVICE])
    return message_error(DIL_USAGE, NULL,
                         "--cuda names a chip, --device the machine at hand: "
                         "say one of them");
  if ((o->cuda || device) && idle)
    return message_error(DIL_USAGE, NULL,
                         "%s is for the processor, not for %s", idle,
                         o->cuda ? "--cuda" : "--device cuda");
  return DIL_OK;
}

/* The prediction knows runs forward alone: it asks for a forward plan. */
static const plan *turn_forward(compilation *c) {
  const plan *backward = c->plan;
  plan *forward = ARENA_NEW(c->arena, plan);
  *forward = *backward;
  forward->direction = DIL_FORWARD;
  c->plan = forward;
  return backward;
}

static dil_status explain_ring(arena *a, const compilation *c, cost_report *r) {
  mesh on = place_mesh(c->pattern, c->topology);
  return exchange_cost_of(a, c->plan, &on, c->topology, r->B, r->N, r->M,
                          r->seconds,
                          r->gpu || c->topology->link == LINK_NCCL, r->backward,
                          r->topology = ARENA_NEW(a, exchange_cost));
}

static dil_status explain_kernel(arena *a, const options *o, compilation *c,
                                 cost_report *r, call_setup *b) {
  r->backward = c->direction == DIL_BACKWARD;
  const plan *backward = r->backward ? turn_forward(c) : NULL;
  dil_status status = call_setup_open(a, o, c->pattern, b);
  if (!status) status = call_setup_shapes(b, -1);
  if (!status) status = fill_report(b, c, r);
  if (!status && r->backward)
    status =
        r->gpu ? gradient_estimate_gpu(b, c, backward, r->gpu, &r->gradients)
               : gradient_estimate_cpu(b, c, backward, &r->spot, &r->gradients);
  if (!status && c->topology) status = explain_ring(a, c, r);
  if (!status && o->seen[OPTION_STREAM]) status = count_stream(b, c, r);
  return status;
}

dil_status command_explain(arena *a, const options *o) {
  compilation c = {.arena = a, .diag = diag_new(a)};
  driver_request request = command_request(o, 0);
  call_setup b = {0};
  cost_report r = {0};
  dil_status status = check_machine(o);
  bool gpu = o->cuda || o->device.word == DEVICE_CUDA;
  if (gpu) r.gpu = ARENA_NEW(a, gpu_estimate);
  if (!status && o->cuda) status = gpu_estimate_chip(a, o, r.gpu);
  if (status) return status;
  request.last = STAGE_plan;
  request.device = gpu ? KNOB_CUDA : request.device;
  status = driver_compile(&request, &c);
  if (status) return message_compiled(o, &c, status);
  status = explain_kernel(a, o, &c, &r, &b);
  if (!status && o->json)
    print_explain_json(a, &r);
  else if (!status)
    print_report(a, &r);
  call_setup_free(&b);
  return message_compiled(o, &c, status);
}
