/* command_inspect.c - `dil inspect FILE...`: what is in a kernel library. In: a
 * .so, .a or .o of `dil build`; nothing of it is run. Out: its description. */
#include "command.h"
#include "compiler/library/library.h"

static void print_words(const char *label, json_t *list) {
  size_t index;
  json_t *word;
  if (json_array_size(list) == 0) return;
  printf("  %s:", label);
  json_array_foreach(list, index, word)
      printf("%s %s", index ? "," : "", json_string_value(word));
  puts("");
}

static void print_inputs(json_t *list) {
  size_t index;
  json_t *in;
  json_array_foreach(list, index, in) printf(
      "  input %s: %s [%s]%s\n", json_string_value(json_object_get(in, "name")),
      json_string_value(json_object_get(in, "dtype")),
      json_string_value(json_object_get(in, "shape")),
      json_is_true(json_object_get(in, "gradient")) ? ", gradient" : "");
}

static void print_codes(json_t *list) {
  size_t index;
  json_t *code;
  char size[QUANTITY_TEXT];
  json_array_foreach(list, index, code)
      printf("  %s: %s, %s\n", json_string_value(json_object_get(code, "arch")),
             json_string_value(json_object_get(code, "variant")),
             quantity_bytes(
                 (double)json_integer_value(json_object_get(code, "bytes")),
                 size));
}

static void print_code_text(const char *text) {
  for (bool start = true; *text; text++) {
    if (start) fputs("    ", stdout);
    putchar(*text);
    start = *text == '\n';
  }
}

static dil_status print_kernel(const char *path, json_t *entry) {
  library_kernel_facts f;
  dil_status status = library_about_kernel(path, entry, &f);
  if (status) return status;
  const char *direction =
      json_string_value(json_object_get(entry, "direction"));
  printf("kernel %s%s\n  pattern %s: %s, heads %d kv %d, head_dim %d value %d, "
         "combine %s%s%s\n",
         f.name, direction ? ", with gradients" : "", f.pattern, f.dtype,
         f.heads, f.kv_heads, f.head_dim, f.value_dim, f.combine,
         f.lse ? "" : ", no lse", f.dropout > 0 ? ", dropout" : "");
  printf("  plan %s, %d pass%s\n", f.plan_hash, f.passes,
         f.passes == 1 ? "" : "es");
  print_inputs(f.inputs);
  print_words("processors", f.isas);
  print_codes(f.codes);
  print_code_text(f.text);
  return DIL_OK;
}

static dil_status print_library(const char *path, json_t *described) {
  size_t index;
  json_t *entry;
  library_facts f;
  dil_status status = library_about(path, described, &f);
  if (status) return status;
  printf("%s: library %s, %s, abi %d, hash %s\nbuilt by dil %s%s%s%s%s\n", path,
         f.name, f.standalone ? "standalone" : "wants libdilrt", f.abi, f.hash,
         f.version, f.cpu ? ", " : "", f.cpu ? f.cpu : "", f.cuda ? ", " : "",
         f.cuda ? f.cuda : "");
  json_array_foreach(f.kernels, index, entry) {
    if (!status) status = print_kernel(path, entry);
  }
  return status;
}

static dil_status inspect_library(arena *a, const options *o,
                                  const char *path) {
  json_t *described;
  dil_status status = library_read(a, path, &described);
  if (status) return status;
  if (o->json) {
    json_dumpf(described, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
  } else {
    status = print_library(path, described);
  }
  json_decref(described);
  return status;
}

/* The first failure's status; every file is looked at. */
dil_status command_inspect(arena *a, const options *o) {
  dil_status first = DIL_OK;
  for (int32_t i = 0; i < o->file_count; i++) {
    dil_status status = inspect_library(a, o, o->file[i]);
    if (status) message_error(status, NULL, "%s", dil_last_error());
    if (!first) first = status;
  }
  return first;
}
