/* gpu_estimate_print.c - prints a gpu_estimate as text and as JSON. */
#include "gpu_estimate.h"
#include <string.h>

static const dil_cuda_code *estimate_code(const gpu_estimate *f, int32_t pass) {
  return &f->codes.code[f->run.pass[pass].code];
}

/* "near + mid"; "branch 2" for a branch without a name. */
static const char *estimate_branches(arena *a, const gpu_estimate *f,
                                     int32_t pass) {
  const plan *p = f->compilation->plan;
  uint64_t left = p->table.passes[pass].branches;
  const char *text = "";
  for (; left; left &= left - 1) {
    int32_t b = __builtin_ctzll(left);
    const char *name = p->pattern->branch[b].name;
    if (!name) name = arena_print(a, "branch %d", b);
    text = arena_print(a, "%s%s%s", text, *text ? " + " : "", name);
  }
  return text;
}

/* Blocks of keys: exact by the kernel's tables, or else tiles that cover counts
 * for each branch. */
typedef struct blocks {
  double visited, masked, skipped, saved;
  bool exact, estimated;
} blocks;

static blocks estimate_blocks(const gpu_estimate *f, int32_t pass) {
  const dil_cuda_pass *run = &f->run.pass[pass];
  const cover_count *n = &f->pass[pass].count;
  bool dedup = f->compilation->plan->table.dedup;
  if (run->visited >= 0)
    return (blocks){run->visited, run->masked, run->skipped, run->saved, true,
                    run->estimated};
  return (blocks){(n->full + n->partial) / run->pack, n->partial / run->pack,
                  n->empty / run->pack, dedup ? n->pairs - n->distinct : 0,
                  false, n->estimated};
}

/* ---- for people ---------------------------------------------------------- */

static void estimate_print_reason(arena *a, const gpu_estimate_pass *own,
                                  FILE *out) {
  const char *place = diag_location(a, own->at);
  if (own->reason)
    fprintf(out, "           not by the Hopper kernel: %s%s%s\n", own->reason,
            *place ? ", " : "", place);
}

static void estimate_print_tiles(const dil_cuda_pass *run, FILE *out) {
  fprintf(out, "           %lld tile%s of up to %d rows", (long long)run->tiles,
          run->tiles == 1 ? "" : "s", run->tile_rows);
  if (run->classes)
    fprintf(out, ", %d class%s of rows", run->classes,
            run->classes == 1 ? "" : "es");
  if (run->patch[0]) {
    fprintf(out, ", patches of %d", run->patch[0]);
    for (int32_t k = 1; k < DIL_GRID_AXES && run->patch[k]; k++)
      fprintf(out, " x %d", run->patch[k]);
    fprintf(out, " cells");
  }
  if (run->pack > 1) fprintf(out, " of %d heads", run->pack);
  if (run->parts > 1) fprintf(out, ", keys in %d parts", run->parts);
  fprintf(out, "\n");
}

/* Returns whether a key may be counted once for each branch that reaches it. */
static bool estimate_by_branch(const gpu_estimate *f, int32_t pass) {
  uint64_t branches = f->compilation->plan->table.passes[pass].branches;
  return f->run.pass[pass].visited < 0 && (branches & (branches - 1));
}

static void estimate_print_blocks(const gpu_estimate *f, int32_t pass,
                                  FILE *out) {
  blocks n = estimate_blocks(f, pass);
  double pairs = f->pass[pass].count.pairs;
  fprintf(out,
          "           blocks of %d keys%s: %.0f visited, %.0f of them "
          "masked, %.0f skipped\n",
          estimate_code(f, pass)->tile_keys,
          estimate_by_branch(f, pass) ? ", by branch" : "", n.visited, n.masked,
          n.skipped);
  if (n.estimated)
    fprintf(out, "           estimates: some places of many were looked at\n");
  if (n.saved > 0)
    fprintf(out, "           %s%.0f pairs saved, %.3g %%: keys of several "
                 "branches are visited once\n",
            n.exact ? "" : "up to ", n.saved, 100 * n.saved / pairs);
}

static void estimate_print_pass(arena *a, const gpu_estimate *f, int32_t pass,
                                FILE *out) {
  char time[QUANTITY_TEXT];
  fprintf(out, "pass %-6d%s, by %s, %s\n", pass, estimate_branches(a, f, pass),
          estimate_code(f, pass)->variant,
          quantity_time(f->pass[pass].seconds, time));
  if (f->run.documents >= 0)
    fprintf(out, "           by %s where its input is sorted\n",
            f->codes.code[f->run.documents].variant);
  estimate_print_reason(a, &f->pass[pass], out);
  estimate_print_tiles(&f->run.pass[pass], out);
  estimate_print_blocks(f, pass, out);
}

static void estimate_print_states(const char *what, int64_t state,
                                  int64_t state_stride, FILE *out) {
  char bytes[QUANTITY_TEXT];
  fprintf(out, "%-11s%s of states", what, quantity_bytes((double)state, bytes));
  if (state_stride > 1)
    fprintf(out, ", of one row in %lld", (long long)state_stride);
}

static void estimate_print_ranks(const gpu_estimate *f, FILE *out) {
  if (!f->rank_state) return;
  estimate_print_states("ranks", f->rank_state, f->rank_state_stride, out);
  fprintf(out, ", on the one that holds most\n");
}

static void estimate_print_choices(const gpu_estimate *f, FILE *out) {
  char time[QUANTITY_TEXT];
  if (f->choices > 0)
    fprintf(out, "choices    %s: estimates of blocks, and lists of the best\n",
            quantity_time(f->choices, time));
}

static void estimate_print_chain(const gpu_estimate *f, FILE *out) {
  char time[QUANTITY_TEXT];
  if (!f->run.stateful) return;
  estimate_print_states("chain", f->run.state, f->run.state_stride, out);
  if (f->run.opening >= 0)
    fprintf(out, ", which pass %d begins", f->run.opening);
  fprintf(out, "; %s to move them\n", quantity_time(f->states, time));
}

static void estimate_print_time(const gpu_estimate *f, FILE *out) {
  char time[QUANTITY_TEXT], rate[QUANTITY_TEXT];
  const pattern *p = f->compilation->plan->pattern;
  fprintf(out, "predicted  %s", quantity_time(f->seconds, time));
  if (f->share >= 0)
    fprintf(out, ", %.3g %% of %sFLOP/s that its processors multiply",
            100 * f->share, quantity_scaled(cost_gpu_peak(p, &f->facts), rate));
  fprintf(out, ";\n           nothing is compiled for this: where ptxas spills "
               "registers, dil takes\n           another kernel, and `dil print "
               "--after ptxas` says so\n");
}

void gpu_estimate_print(arena *a, const gpu_estimate *f, FILE *out) {
  char bytes[QUANTITY_TEXT], text[KNOBS_TEXT];
  const knobs *k = &f->compilation->knobs;
  fprintf(out, "chip       %s, %s%s: %d processors\n", f->name,
          f->facts.name[0] ? "" : "as in an ", f->model, f->facts.processors);
  if (k->given) fprintf(out, "schedule   %s\n", knobs_text(k, text));
  estimate_print_choices(f, out);
  for (int32_t i = 0; i < f->compilation->plan->table.pass_count; i++)
    estimate_print_pass(a, f, i, out);
  estimate_print_chain(f, out);
  estimate_print_ranks(f, out);
  fprintf(out, "workspace  %s\n",
          quantity_bytes((double)f->run.workspace, bytes));
  estimate_print_time(f, out);
}

/* ---- for programs -------------------------------------------------------- */

static json_int_t estimate_whole(double count) {
  return (json_int_t)count;
}

static json_t *estimate_pass_json(arena *a, const gpu_estimate *f,
                                  int32_t pass) {
  const dil_cuda_pass *run = &f->run.pass[pass];
  const dil_cuda_code *code = estimate_code(f, pass);
  const gpu_estimate_pass *own = &f->pass[pass];
  const char *place = diag_location(a, own->at);
  blocks n = estimate_blocks(f, pass);
  json_t *o = json_pack(
      "{s:s, s:s, s:s, s:s?, s:s?, s:i, s:i, s:I, s:i, s:i, s:i}", "branches",
      estimate_branches(a, f, pass), "kernel", code->variant, "family",
      code->family, "reason", own->reason, "reason_at", *place ? place : NULL,
      "tile_rows", run->tile_rows, "tile_keys", code->tile_keys, "tiles",
      (json_int_t)run->tiles, "classes", run->classes, "heads", run->pack,
      "parts", run->parts);
  json_object_update_new(
      o, json_pack("{s:I, s:I, s:I, s:I, s:b, s:b, s:I, s:I, s:I, s:f}",
                   "blocks_visited", estimate_whole(n.visited), "blocks_masked",
                   estimate_whole(n.masked), "blocks_skipped",
                   estimate_whole(n.skipped), "pairs_saved",
                   estimate_whole(n.saved), "exact", n.exact, "estimated",
                   n.estimated, "pairs", estimate_whole(own->count.pairs),
                   "distinct_pairs", estimate_whole(own->count.distinct),
                   "workspace_bytes", (json_int_t)run->workspace,
                   "predicted_seconds", own->seconds));
  if (!run->patch[0]) return o;
  json_t *patch = json_array();
  for (int32_t k = 0; k < DIL_GRID_AXES && run->patch[k]; k++)
    json_array_append_new(patch, json_integer(run->patch[k]));
  json_object_set_new(o, "patch", patch);
  return o;
}

json_t *gpu_estimate_json(arena *a, const gpu_estimate *f) {
  char text[KNOBS_TEXT];
  const knobs *k = &f->compilation->knobs;
  json_t *passes = json_array();
  for (int32_t i = 0; i < f->compilation->plan->table.pass_count; i++)
    json_array_append_new(passes, estimate_pass_json(a, f, i));
  json_t *o = json_pack("{s:s, s:s, s:i, s:s?, s:o, s:b, s:o, s:I, s:I, s:I, "
                        "s:I, s:f, s:f}",
                        "chip", f->name, "model", f->model, "processors",
                        f->facts.processors, "schedule",
                        k->given ? knobs_text(k, text) : NULL, "passes", passes,
                        "chained", f->run.stateful, "opening_pass",
                        f->run.opening < 0 ? json_null()
                                           : json_integer(f->run.opening),
                        "state_bytes", (json_int_t)f->run.state,
                        "state_one_in", (json_int_t)f->run.state_stride,
                        "rank_state_bytes", (json_int_t)f->rank_state,
                        "workspace_bytes", (json_int_t)f->run.workspace,
                        "choice_seconds", f->choices, "predicted_seconds", f->seconds);
  int32_t documents = f->run.documents;
  json_object_set_new(o, "documents_kernel",
                      documents < 0 ? json_null()
                                    : json_string(f->codes.code[documents].variant));
  json_object_set_new(o, "share_of_peak",
                      f->share < 0 ? json_null() : json_real(f->share));
  return o;
}
