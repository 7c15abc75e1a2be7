/* cpu_code.c - compiles and loads what cpu_code.h describes. */
#include "cpu_code.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static expr *no_scores[1];

void code_case_open(code_case *c, int head_dim, int value_dim,
                    dil_dtype dtype) {
  memset(c, 0, sizeof *c);
  c->pattern.name = "case";
  c->plan.pattern = &c->pattern;
  c->plan.predicate = c->mask;
  c->plan.chain = c->chain;
  c->chain[0] = no_scores;
  c->plan.table = (dil_table){.name = "case",
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = head_dim,
                              .value_dim = value_dim,
                              .dtype = dtype,
                              .tile_keys = 128,
                              .chain_count = 1,
                              .predicates = c->predicate,
                              .inputs = c->pattern.input};
}

static void find_entries(code_loaded *l) {
  const struct {
    const char *name;
    void *entry;
  } wanted[] = {
      {"qk", &l->code.qk},
      {"softmax", &l->code.softmax},
      {"softmax_drop", &l->code.softmax_drop},
      {"pv", &l->code.pv},
      {"cover", &l->code.cover},
      {"dimension", &l->code.dimension},
      {"dropout_words", &l->code.dropout_words},
      {"sink", &l->code.sink},
      {"row_qk", &l->code.row_qk},
      {"row_softmax", &l->code.row_softmax},
      {"row_softmax_drop", &l->code.row_softmax_drop},
      {"row_pv", &l->code.row_pv},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *entry = dil_object_symbol(l->object, wanted[i].name);
    memcpy(wanted[i].entry, &entry, sizeof entry);
  }
  for (int i = 0; i < DIL_PART_MAX; i++) {
    char name[32];
    snprintf(name, sizeof name, "modify%d", i);
    void *tile = dil_object_symbol(l->object, name);
    snprintf(name, sizeof name, "row_modify%d", i);
    void *row = dil_object_symbol(l->object, name);
    memcpy(&l->code.modify[i], &tile, sizeof tile);
    memcpy(&l->code.row_modify[i], &row, sizeof row);
  }
}

static void require_ok(dil_status status) {
  if (status == DIL_OK) return;
  fprintf(stderr, "%s: %s\n", dil_status_text(status), dil_last_error());
  abort();
}

const cpu_backend *linked_backend(void) {
  return (const cpu_backend *)dil_backend_init();
}

code_loaded code_make(const code_case *c, const char *isa, dil_variant variant,
                      bool debug) {
  cpu_request request = {.common = {&c->plan},
                         .isa = isa,
                         .variant = variant,
                         .debug = debug};
  cpu_code made = {0};
  code_loaded loaded = {0};
  require_ok(linked_backend()->common.compile(&request.common, &made));
  loaded.code = made.code;
  require_ok(dil_object_load(made.bytes, made.size, "case", &loaded.object));
  free(made.bytes);
  find_entries(&loaded);
  return loaded;
}

void code_drop(code_loaded *loaded) {
  dil_object_free(loaded->object);
}

void *room_of(size_t count, size_t size) {
  size_t bytes = (count * size + 63) / 64 * 64 + 64;
  void *room = aligned_alloc(64, bytes);
  if (room == NULL) abort();
  memset(room, 0xff, bytes);
  return room;
}

void *room_at_wall(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t inside = (bytes + page - 1) / page * page;
  char *room = mmap(NULL, inside + page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED || mprotect(room + inside, page, PROT_NONE) != 0)
    abort();
  return room + inside - bytes;
}

bool lacks(const char *isa) {
  return linked_backend()->runs(isa) != DIL_OK;
}

float noise(void) {
  static uint32_t x = 1;
  x = x * 1664525u + 1013904223u;
  return (float)(int32_t)x * 0x1p-31f;
}
