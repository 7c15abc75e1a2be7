/* attention.c - a kernel without a file: dil_attention of dil.h.
 *
 * In: sizes, branches or the name of a preset. Out: a kernel of the pattern
 * that says so in the language of dil; what is wrong with it is told by the
 * compiler, in that text. */
#include "compiler/front/program.h"
#include "runtime/api/kernel.h"
#include "runtime/api/usage.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

typedef dil_attention_options wishes;

/* ---- a preset ------------------------------------------------------------ */

/* The options that a preset decides itself. */
static dil_status refuse_own(const wishes *w) {
  const char *useless = w->branch_count ? "segments and dilations"
                        : w->window     ? "a window"
                        : w->combine    ? "a way to combine"
                                        : NULL;
  if (!useless) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "preset '%.40s' has branches of its own: it does "
                  "not take %s; its lets can be defined",
                  w->preset, useless);
}

/* Some presets say themselves what lies ahead of a query: they lack the let. */
static dil_status refuse_causal(const wishes *w) {
  const char *text = dil_preset_text(w->preset);
  if (!w->causal || !text || strstr(text, "let ahead ")) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "preset '%.40s' has a direction of its own: it "
                  "does not take causal",
                  w->preset);
}

/* Causality as a let of the preset, and the caller's own. */
static dil_status parse_preset(dil_context *context, const wishes *w,
                               dil_program **program_out) {
  dil_status status = refuse_own(w);
  if (!status) status = refuse_causal(w);
  if (status) return status;
  status =
      dil_usage_list("definitions", w->define_count, DEFINE_MAX, w->defines);
  if (status) return status;
  dil_define *defines = calloc((size_t)w->define_count + 1, sizeof *defines);
  if (!defines) return dil_fail(DIL_MEMORY, "no memory for definitions");
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  o.defines = defines;
  if (w->causal) defines[o.define_count++] = (dil_define){"ahead", "0"};
  for (int32_t i = 0; i < w->define_count; i++)
    defines[o.define_count++] = w->defines[i];
  char path[64];
  snprintf(path, sizeof path, "preset:%.40s", w->preset);
  status = dil_program_read(context, path, &o, program_out);
  free(defines);
  return status;
}

/* ---- branches ------------------------------------------------------------ */

static bool is_word(const char *text) {
  return *text && text[strspn(text, "abcdefghijklmnopqrstuvwxyz")] == 0;
}

static dil_status check_branches(const wishes *w) {
  dil_status status = dil_usage_list("segments of branches", w->branch_count,
                                     DIL_BRANCH_MAX, w->segments);
  if (!status)
    status = dil_usage_list("dilations of branches", w->branch_count,
                            DIL_BRANCH_MAX, w->dilations);
  if (status) return status;
  if (w->define_count)
    return dil_fail(DIL_USAGE, "definitions are for the lets of a preset, and "
                               "none is named");
  if (w->combine && !is_word(w->combine))
    return dil_fail(DIL_USAGE,
                    "branches are combined by softmax, union, mean "
                    "or sum, not by '%.40s'",
                    w->combine);
  if (w->heads == 0 || w->head_dim == 0)
    return dil_fail(DIL_USAGE, "heads and head_dim must be given");
  return DIL_OK;
}

static void print_bound(FILE *out, const char *before, int64_t keys) {
  if (keys == -1)
    fprintf(out, "%sinf", before);
  else
    fprintf(out, "%s%lld", before, (long long)keys);
}

static void print_branches(const wishes *w, FILE *out) {
  if (w->branch_count == 0) fputs("  branch { }\n", out);
  for (int32_t i = 0; i < w->branch_count; i++) {
    fputs("  branch { ", out);
    if (w->segments[i])
      fprintf(out, "segment %lld; ", (long long)w->segments[i]);
    fprintf(out, "dilation %lld; }\n", (long long)w->dilations[i]);
  }
}

static void print_wishes(const wishes *w, FILE *out) {
  fprintf(out, "pattern attention {\n  heads %d kv %d;\n", (int)w->heads,
          (int)(w->kv_heads ? w->kv_heads : w->heads));
  fprintf(out, "  head_dim %d value %d;\n  dtype f32;\n", (int)w->head_dim,
          (int)(w->value_dim ? w->value_dim : w->head_dim));
  if (w->causal) fputs("  causal;\n", out);
  if (w->window) {
    print_bound(out, "  window ", w->window[0]);
    print_bound(out, ", ", w->window[1]);
    fputs(";\n", out);
  }
  fprintf(out, "  combine %s;\n", w->combine ? w->combine : "softmax");
  print_branches(w, out);
  fputs("}\n", out);
}

static dil_status parse_branches(dil_context *context, const wishes *w,
                                 dil_program **program_out) {
  char *text = NULL;
  size_t length = 0;
  dil_status status = check_branches(w);
  if (status) return status;
  FILE *out = open_memstream(&text, &length);
  if (out) print_wishes(w, out);
  if (!out || fclose(out)) {
    free(text);
    return dil_fail(DIL_MEMORY, "no memory for a pattern");
  }
  status = dil_program_parse(context, "dil_attention", text, length, NULL,
                             program_out);
  free(text);
  return status;
}

/* ---- the call ------------------------------------------------------------ */

/* The first GPU; without one the processor, with the reason. */
static dil_status choose_device(dil_context **context) {
  char reason[256] = "the first GPU";
  dil_context_options gpu = DIL_CONTEXT_OPTIONS_INIT;
  gpu.device = "cuda";
  dil_status status = dil_context_new(&gpu, context);
  if (status == DIL_ENVIRONMENT) {
    snprintf(reason, sizeof reason, "no GPU: %s", dil_last_error());
    status = dil_context_new(NULL, context);
  }
  if (!status) dil_context_because(*context, reason);
  return status;
}

static dil_status make(dil_context *context, const wishes *w,
                       dil_kernel **kernel_out) {
  dil_program *parsed;
  dil_status status = w->preset ? parse_preset(context, w, &parsed)
                                : parse_branches(context, w, &parsed);
  if (status) return status;
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  o.dtype = w->dtype;
  o.backward = w->backward;
  if (w->preset) {
    o.heads = w->heads;
    o.kv_heads = w->kv_heads;
    o.head_dim = w->head_dim;
    o.value_dim = w->value_dim;
  }
  status = dil_program_kernel(parsed, NULL, &o, kernel_out);
  dil_program_free(parsed);
  return status;
}

dil_status dil_attention(dil_context *context,
                         const dil_attention_options *options,
                         dil_kernel **kernel_out) {
  wishes w;
  dil_context *chosen = NULL;
  dil_status status = dil_usage_given("place for the kernel", kernel_out, NULL);
  if (status) return status;
  *kernel_out = NULL;
  dil_call_begin();
  status = dil_struct_read(&w, sizeof w, options, "dil_attention_options");
  if (!status && !context) status = choose_device(&chosen);
  if (!status) status = make(context ? context : chosen, &w, kernel_out);
  dil_context_free(chosen);
  return dil_call_end(status);
}
