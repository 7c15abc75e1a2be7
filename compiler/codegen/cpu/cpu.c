/* cpu.c - the provider: a plan and an instruction set in, an object file out.
 * It lists which functions of dil_code each of the two families has; every
 * other file writes one kind of them. */
#include "cpu.h"
#include "interface.h"
#include "runtime/cpu/peak.h"
#include <dlfcn.h>
#include <llvm/Config/llvm-config.h>

/* Matrix products with queries in the lanes. */
static void write_tiles(build *b) {
  tile_qk(b);
  tile_softmax(b, false);
  if (b->plan->table.dropout > 0) tile_softmax(b, true);
  tile_pv(b);
  for (int chain = 0; chain < b->plan->table.chain_count; chain++)
    tile_modify(b, chain);
}

/* One query at a time, for few of them. */
static void write_rows(build *b) {
  row_qk(b);
  row_softmax(b, false);
  if (b->plan->table.dropout > 0) row_softmax(b, true);
  row_pv(b);
  for (int chain = 0; chain < b->plan->table.chain_count; chain++)
    row_modify(b, chain);
}

static void write_questions(build *b) {
  if (b->plan->table.predicate_count > 0) cover_function(b);
  if (b->plan->table.input_count > 0) dimension_function(b);
}

/* Whole register blocks of keys, so that only a last tile has a tail; but the
 * plan's own number where it follows the blocks of a mask, down to whole pairs:
 * a tile cannot begin at the odd half of one. */
static int tile_keys(const build *b) {
  const dil_table *table = &b->plan->table;
  for (int p = 0; p < table->predicate_count; p++)
    if (table->predicates[p].masked)
      return table->tile_keys - table->tile_keys % b->pack;
  return table->tile_keys - table->tile_keys % b->isa->key_block;
}

static void describe(const build *b, dil_code *code) {
  *code = (dil_code){.lanes = b->lanes,
                     .pack = b->pack,
                     .key_block = b->isa->key_block,
                     .tile_keys = tile_keys(b)};
}

void build_variant(build *b, dil_variant variant, dil_code *code) {
  if (variant == DIL_TILES)
    write_tiles(b);
  else
    write_rows(b);
  write_questions(b);
  describe(b, code);
}

static dil_status compile(const backend_request *request, backend_code *out) {
  build b = {0};
  const char *name = request->isa != NULL ? request->isa : dil_host_isa();
  const isa *set = name != NULL ? isa_find(name) : NULL;
  if (set == NULL) return dil_isa_check(name);
  dil_status status = build_open(&b, request->plan->table.name, set);
  if (status == DIL_OK) {
    build_aim(&b, request->plan, set);
    if (request->debug) build_lines(&b);
    build_variant(&b, request->variant, &out->code);
    status = build_object(&b, request->ir, request->assembly, out);
  }
  build_close(&b);
  return status;
}

static const char *host(void) {
  const char *name = dil_host_isa();
  if (name == NULL) dil_isa_check(NULL);
  return name;
}

static const char *versions(void) {
  return "LLVM " LLVM_VERSION_STRING;
}

static const char *origin(void) {
  Dl_info info;
  return dladdr((void *)LLVMContextCreate, &info) ? info.dli_fname : NULL;
}

DIL_API const backend *dil_backend_init(void);
const backend *dil_backend_init(void) {
  static const backend table = {.version = DIL_INTERFACE,
                                .name = "cpu",
                                .host = host,
                                .can = dil_isa_check,
                                .compile = compile,
                                .library = library_build,
                                .isas = isa_list,
                                .versions = versions,
                                .origin = origin};
  return &table;
}
