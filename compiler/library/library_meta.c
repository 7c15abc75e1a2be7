/* library_meta.c - the description of a library, one JSON object: what its
 * kernels compute, for which shapes, chips and processors, and what built it.
 * It lies in the library, in a section of its own, and is all that `dil
 * inspect` and `dil run --library` know. In: a library with its cubins. Out:
 * hash, prefix and meta of the library. */
#include "library.h"
#include "runtime/base/status.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void set_member(json_t *object, const char *key, json_t *member) {
  json_object_set_new(object, key, member);
}

static json_t *hex_json(uint64_t number) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)number);
  return json_string(text);
}

static void print_text(const pattern *p, int32_t index, FILE *out) {
  (void)index;
  pattern_print(p, out);
}

static json_t *inputs_of(const library *l, const pattern *p) {
  json_t *list = json_array();
  for (int32_t i = 0; i < p->input_count; i++) {
    json_t *in = json_object();
    set_member(in, "name", json_string(p->input[i].name));
    set_member(in, "dtype", json_string(dil_dtype_name(p->input[i].dtype)));
    set_member(
        in, "shape",
        json_string(library_printed(l->arena, pattern_print_shape, p, i)));
    if (p->input[i].gradient) set_member(in, "gradient", json_true());
    json_array_append_new(list, in);
  }
  return list;
}

static json_t *isas_of(const library *l) {
  json_t *list = json_array();
  for (int32_t i = 0; i < l->isa_count; i++)
    json_array_append_new(list, json_string(l->isa[i]));
  return list;
}

static json_t *codes_of(const library *l, const library_kernel *k) {
  json_t *list = json_array();
  for (int32_t i = 0; i < k->code_count; i++) {
    const dil_cuda_code *c = &k->code[i];
    json_t *code = json_object();
    set_member(code, "arch", json_string(library_arch_name(l->arena, c->arch)));
    set_member(code, "variant", json_string(c->variant));
    set_member(code, "bytes", json_integer((json_int_t)c->size));
    set_member(code, "hash", hex_json(XXH3_64bits(c->cubin, c->size)));
    json_array_append_new(list, code);
  }
  return list;
}

static json_t *kernel_of(const library *l, const library_kernel *k) {
  const pattern *p = k->plan->pattern;
  json_t *o = json_object();
  set_member(o, "name", json_string(k->name));
  set_member(o, "pattern", json_string(p->name));
  if (k->plan->direction == DIL_BACKWARD)
    set_member(o, "direction", json_string("backward"));
  set_member(o, "heads", json_integer(p->heads));
  set_member(o, "kv_heads", json_integer(p->kv_heads));
  set_member(o, "head_dim", json_integer(p->head_dim));
  set_member(o, "value_dim", json_integer(p->value_dim));
  set_member(o, "dtype", json_string(dil_dtype_name(p->dtype)));
  set_member(o, "combine", json_string(pattern_combine_text(p->combine)));
  set_member(o, "lse", json_boolean(pattern_has_lse(p)));
  set_member(o, "scale",
             p->scale_kind == SCALE_RUNTIME ? json_string("runtime")
                                            : json_real(p->scale));
  set_member(o, "dropout", json_real(p->dropout));
  set_member(o, "inputs", inputs_of(l, p));
  set_member(o, "passes", json_integer(k->plan->table.pass_count));
  set_member(o, "plan_hash", hex_json(plan_hash(k->plan)));
  set_member(o, "cpu", isas_of(l));
  set_member(o, "cuda", codes_of(l, k));
  set_member(o, "text",
             json_string(library_printed(l->arena, print_text, p, 0)));
  return o;
}

static json_t *compilers_of(const library *l) {
  json_t *o = json_object();
  set_member(o, "cpu",
             l->cpu ? json_string(l->cpu->common.versions()) : json_null());
  set_member(o, "cuda",
             l->gpu ? json_string(l->gpu->common.versions()) : json_null());
  return o;
}

static json_t *library_json(const library *l) {
  json_t *o = json_object(), *kernels = json_array();
  set_member(o, "library", json_string(l->name));
  set_member(o, "dil", json_string(DIL_VERSION));
  set_member(o, "abi", json_integer(DIL_LIBRARY_ABI));
  set_member(o, "standalone", json_boolean(l->standalone));
  set_member(o, "compilers", compilers_of(l));
  for (int32_t i = 0; i < l->kernel_count; i++)
    json_array_append_new(kernels, kernel_of(l, &l->kernel[i]));
  set_member(o, "kernels", kernels);
  return o;
}

dil_status library_describe(library *l) {
  const size_t flags = JSON_INDENT(1) | JSON_PRESERVE_ORDER;
  json_t *o = library_json(l);
  char *text = json_dumps(o, flags);
  if (text) {
    l->hash = XXH3_64bits(text, strlen(text));
    set_member(o, "hash", hex_json(l->hash));
    free(text);
    text = json_dumps(o, flags);
  }
  json_decref(o);
  if (!text) return dil_fail(DIL_MEMORY, "no memory for a description");
  l->meta = arena_print(l->arena, "%s\n", text);
  free(text);
  l->prefix = l->standalone
                  ? arena_print(l->arena, "%s_%016llx_", l->name,
                                (unsigned long long)l->hash)
                  : "";
  return DIL_OK;
}
