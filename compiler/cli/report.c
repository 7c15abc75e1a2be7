/* report.c - writes what a run or a benchmark found. */
#include "report.h"
#include <jansson.h>
#include <math.h>
#include <string.h>

/* "fuse,dedup"; "" for none. */
static const char *force_text(unsigned force, char text[64]) {
  static const struct {
    unsigned bit;
    const char *name;
  } names[] = {
      {FORCE_FUSE, "fuse"},       {FORCE_CHAIN, "chain"},
      {FORCE_DEDUP, "dedup"},     {FORCE_MULTISET, "multiset"},
      {FORCE_GENERAL, "general"},
  };
  *text = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (force & names[i].bit) {
      if (*text) strcat(text, ",");
      strcat(text, names[i].name);
    }
  return text;
}

static json_t *number_or_null(double number) {
  return isfinite(number) ? json_real(number) : json_null();
}

static json_t *integer_or_null(double number) {
  return isfinite(number) ? json_integer((json_int_t)number) : json_null();
}

static json_t *text_or_null(const char *text) {
  return text && *text ? json_string(text) : json_null();
}

/* NaN: the run has done only the rest of its work. */
static double report_gflops(const report *r) {
  if (r->streamed && r->stream.resumed) return NAN;
  return r->flops / r->seconds * 1e-9;
}

struct json_t *report_stream_json(const stream_chunks *c, const stream_facts *f,
                                  bool counted) {
  json_t *o = json_pack("{s:[III], s:I, s:I, s:I}", "chunk_rows", c->batch,
                        c->queries, c->keys, "chunks", f->chunks, "skipped",
                        f->skipped, "loaded_bytes", f->loaded);
  if (counted) return o;
  json_object_set_new(o, "resumed", json_integer(f->resumed));
  json_object_set_new(o, "stored_bytes", json_integer(f->stored));
  json_object_set_new(o, "waited_seconds", json_real(f->waited));
  json_object_set_new(o, "computed_seconds", json_real(f->computed));
  return o;
}

static void add_ring_json(json_t *o, const report *r) {
  json_object_set_new(o, "ranks", json_integer(r->ranks));
  json_object_set_new(o, "gathered_branches", json_integer(r->gathered));
  json_object_set_new(o, "bytes_moved", integer_or_null(r->moved));
  json_object_set_new(o, "waited_seconds", json_real(r->waited));
  if (r->rank_bytes > 0)
    json_object_set_new(o, "rank_bytes", integer_or_null(r->rank_bytes));
}

static void add_backward_json(json_t *o, const report *r) {
  json_object_set_new(o, "direction", json_string("backward"));
  json_object_set_new(o, "gradient_kernels", text_or_null(r->gradient_kernels));
  json_object_set_new(o, "gradient_reason", text_or_null(r->gradient_reason));
  json_object_set_new(o, "gradients",
                      r->gradients ? gradient_accuracy_json(r->gradients)
                                   : json_null());
}

void report_json(const report *r, FILE *out) {
  char force[64], hash[17], text[KNOBS_TEXT];
  const accuracy *v = r->accuracy;
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->plan_hash);
  json_t *o = json_object();
  json_object_set_new(o, "kernel", text_or_null(r->kernel));
  json_object_set_new(o, "device", text_or_null(r->device));
  json_object_set_new(o, "variant", text_or_null(r->variant));
  json_object_set_new(o, "force", text_or_null(force_text(r->force, force)));
  json_object_set_new(o, "schedule", text_or_null(knobs_text(&r->knobs, text)));
  json_object_set_new(o, "remembered", json_boolean(r->recalled));
  json_object_set_new(o, "plan_hash", text_or_null(r->planned ? hash : NULL));
  json_object_set_new(o, "seconds", number_or_null(r->seconds));
  json_object_set_new(o, "flops", number_or_null(r->flops));
  if (r->estimated)
    json_object_set_new(o, "flops_estimated", json_true());
  json_object_set_new(o, "gflops", number_or_null(report_gflops(r)));
  json_object_set_new(o, "peak_share", number_or_null(r->share));
  json_object_set_new(o, "rel_error", number_or_null(v ? v->rel_error : NAN));
  json_object_set_new(o, "lse_error", number_or_null(v ? v->lse_error : NAN));
  json_object_set_new(o, "checked_rows",
                      integer_or_null(v ? (double)v->rows : NAN));
  json_object_set_new(o, "nan_rows",
                      integer_or_null(v ? (double)v->nan_rows : NAN));
  json_object_set_new(o, "workspace_bytes", integer_or_null(r->workspace));
  json_object_set_new(o, "compile_seconds", number_or_null(r->compile_seconds));
  json_object_set_new(o, "open_seconds", number_or_null(r->open_seconds));
  if (r->backward) add_backward_json(o, r);
  if (r->ranks) add_ring_json(o, r);
  if (r->streamed)
    json_object_set_new(o, "stream",
                        report_stream_json(&r->chunks, &r->stream, false));
  json_dumpf(o, out, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
  fputc('\n', out);
  json_decref(o);
}

void report_stream_text(const stream_chunks *c, const stream_facts *f,
                        bool counted, const char *label, FILE *out) {
  char bytes[QUANTITY_TEXT], wait[QUANTITY_TEXT];
  fprintf(out, "%schunks of %lld queries and %lld keys: %lld passes, %lld "
          "skipped", label, (long long)c->queries, (long long)c->keys,
          (long long)f->chunks, (long long)f->skipped);
  if (f->resumed)
    fprintf(out, ", after %lld of a former run", (long long)f->resumed);
  fprintf(out, ",\n%*s%s in", (int)strlen(label), "",
          quantity_bytes((double)f->loaded, bytes));
  if (!counted)
    fprintf(out, ", %s out, waited %s",
            quantity_bytes((double)f->stored, bytes),
            quantity_time(f->waited, wait));
  fputc('\n', out);
}

static void print_device(const report *r, FILE *out) {
  char force[64], text[KNOBS_TEXT];
  force_text(r->force, force);
  fprintf(out, "kernel  %s on %s", r->kernel, r->device);
  if (r->isa) fprintf(out, " (%s)", r->isa);
  if (r->variant) fprintf(out, ", variant %s", r->variant);
  if (r->backward) fprintf(out, ", gradients");
  if (*force) fprintf(out, ", forced %s", force);
  if (r->planned)
    fprintf(out, ", plan %016llx", (unsigned long long)r->plan_hash);
  fputc('\n', out);
  if (r->gradient_kernels)
    fprintf(out, "grads   by %s\n", r->gradient_kernels);
  if (r->gradient_reason)
    fprintf(out, "        not by the Hopper kernels: %s\n", r->gradient_reason);
  if (r->knobs.given)
    fprintf(out, "knobs   %s%s\n", knobs_text(&r->knobs, text),
            r->recalled ? " (remembered)" : "");
}

/* Prints where the code came from, and the memory that a run takes beside its
 * tensors. */
static void print_code(const report *r, FILE *out) {
  char time[QUANTITY_TEXT];
  if (!isfinite(r->compile_seconds)) return;
  fprintf(out, "code    %s in %s", r->kept ? "from the cache" : "compiled",
          quantity_time(r->compile_seconds, time));
  if (r->open_seconds > 0)
    fprintf(out, ", the compiler loaded in %s",
            quantity_time(r->open_seconds, time));
  if (isfinite(r->workspace))
    fprintf(out, ", workspace %s", quantity_bytes(r->workspace, time));
  fputc('\n', out);
}

void report_text(const report *r, FILE *out) {
  char time[QUANTITY_TEXT], work[QUANTITY_TEXT], bytes[QUANTITY_TEXT];
  print_device(r, out);
  fprintf(out, "time    %s", quantity_time(r->seconds, time));
  if (strcmp(r->device, "cuda"))
    fprintf(out, " on %d thread%s", r->threads, r->threads == 1 ? "" : "s");
  fprintf(out, ", %s%sFLOP of the definition", r->estimated ? "about " : "",
          quantity_scaled(r->flops, work));
  if (r->seconds > 0 && !isnan(report_gflops(r)))
    fprintf(out, ", %.1f GFLOP/s", report_gflops(r));
  if (isfinite(r->share)) fprintf(out, ", %.1f %% of the peak", 100 * r->share);
  fputc('\n', out);
  print_code(r, out);
  if (r->ranks)
    fprintf(out, "ring    %d ranks, %s between them, the longest wait %s",
            r->ranks, quantity_bytes(r->moved, bytes),
            quantity_time(r->waited, time));
  if (r->ranks && r->rank_bytes > 0)
    fprintf(out, ", %s on the GPU of each",
            quantity_bytes(r->rank_bytes, bytes));
  if (r->ranks) fputc('\n', out);
  if (r->streamed)
    report_stream_text(&r->chunks, &r->stream, false, "stream  ", out);
  if (r->accuracy) accuracy_print(r->accuracy, out);
  if (r->gradients) gradient_accuracy_print(r->gradients, out);
}

/* In a table's row: of the output, or of gradients the largest. */
static double report_error(const report *r) {
  return r->gradients ? gradient_accuracy_error(r->gradients)
                      : r->accuracy->rel_error;
}

static bool report_good(const report *r) {
  return (!r->accuracy || accuracy_is_good(r->accuracy)) &&
         (!r->gradients || r->gradients->good);
}

void report_heading(FILE *out) {
  fprintf(out, "%-28s %-10s %7s %10s %9s %7s %9s %9s\n", "case", "variant",
          "threads", "time", "GFLOP/s", "peak", "error", "lse");
}

void report_row(const report *r, FILE *out) {
  char force[64], name[96], time[QUANTITY_TEXT], part[16] = "-";
  force_text(r->force, force);
  snprintf(name, sizeof name, "%s%s%s%s", r->kernel,
           r->backward ? " backward" : "", *force ? " " : "", force);
  if (isfinite(r->share))
    snprintf(part, sizeof part, "%.1f %%", 100 * r->share);
  fprintf(out, "%-28s %-10s %7d %10s %9.1f %7s", name,
          r->variant ? r->variant : "-", r->threads,
          quantity_time(r->seconds, time), report_gflops(r), part);
  if (r->accuracy) fprintf(out, " %9.2g", report_error(r));
  if (r->accuracy && !isnan(r->accuracy->lse_error))
    fprintf(out, " %9.2g", r->accuracy->lse_error);
  if (r->accuracy && r->accuracy->nan_rows)
    fprintf(out, "  %lld rows NaN in both", (long long)r->accuracy->nan_rows);
  fprintf(out, "%s\n", report_good(r) ? "" : "  BAD");
  if (r->gradient_kernels) fprintf(out, "  gradients by %s\n", r->gradient_kernels);
  if (r->gradient_reason)
    fprintf(out, "  not by the Hopper kernels: %s\n", r->gradient_reason);
}
