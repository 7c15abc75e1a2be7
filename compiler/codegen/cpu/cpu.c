/* cpu.c - the provider: a plan and an instruction set in, an object file out.
 * It lists which functions of dil_code each variant has; every
 * other file writes one kind of them. */
#include "cpu.h"
#include "interface.h"
#include "runtime/base/status.h"
#include "runtime/cpu/peak.h"
#include <dlfcn.h>
#include <llvm/Config/llvm-config.h>
#include <stdlib.h>

static bool has_gradients(const plan *p) {
  for (int i = 0; i < p->table.input_count; i++)
    if (p->table.inputs[i].gradient) return true;
  return false;
}

/* Matrix products with queries in the lanes. */
static void write_tiles(build *b) {
  tile_qk(b, "qk", b->plan->table.head_dim);
  tile_softmax(b, false);
  if (b->plan->table.dropout > 0) tile_softmax(b, true);
  tile_pv(b, "pv", b->plan->table.value_dim);
  for (int chain = 0; chain < b->plan->table.chain_count; chain++)
    tile_modify(b, chain, false);
  if (b->plan->table.grid.axes) tile_hide(b);
}

/* The products of the gradients without those that the run time takes from
 * elsewhere. */
static void write_products(build *b) {
  const dil_table *table = &b->plan->table;
  tile_outer(b, "dk", table->head_dim);
  if (dil_code_shares(table->head_dim, table->value_dim)) return;
  tile_qk(b, "dp", table->value_dim);
  tile_pv(b, "dq", table->head_dim);
  tile_outer(b, "dv", table->value_dim);
}

/* A backward kernel has these functions besides those of the tiles. */
static void write_gradients(build *b) {
  const dil_table *table = &b->plan->table;
  tile_ds(b, false);
  if (table->dropout > 0) tile_ds(b, true);
  write_products(b);
  if (table->sink_branches) sink_function(b, "branch_sink", false);
  if (table->sinks && has_gradients(b->plan)) sink_inputs(b);
  for (int chain = 0; chain < table->chain_count; chain++) {
    if (table->scored) tile_modify(b, chain, true);
    if (has_gradients(b->plan)) tile_inputs(b, chain);
  }
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

static bool choice_asks(const dil_table *t) {
  for (int32_t c = 0; c < t->choice_count; c++)
    if (t->choices[c].asks) return true;
  return false;
}

static void write_questions(build *b) {
  if (b->plan->table.predicate_count > 0) cover_function(b);
  if (pattern_reads(b->plan->pattern) > 0) dimension_function(b);
  if (choice_asks(&b->plan->table)) keeps_function(b);
}

/* The walk calls these functions once a row or a key. */
static void write_begins(build *b) {
  if (b->plan->table.dropout > 0) dropout_words(b);
  if (b->plan->table.sinks) sink_function(b, "sink", true);
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
  switch (variant) {
  case DIL_TILES: write_tiles(b); break;
  case DIL_ROWS: write_rows(b); break;
  case DIL_GRADIENTS: write_gradients(b); break;
  default: abort();
  }
  if (variant != DIL_GRADIENTS) {
    write_questions(b);
    write_begins(b);
  }
  describe(b, code);
}

/* The instruction set of a request; NULL with the reason in *status. */
static const isa *cpu_isa(const cpu_request *request, dil_status *status) {
  const char *name = request->isa != NULL ? request->isa : dil_host_isa();
  const isa *set = name != NULL ? isa_find(name) : NULL;
  *status = set != NULL ? DIL_OK : dil_isa_check(name);
  return set;
}

static dil_status cpu_can(const backend_request *asked) {
  dil_status status;
  cpu_isa((const cpu_request *)asked, &status);
  return status;
}

static dil_status cpu_compile(const backend_request *asked, void *codes) {
  const cpu_request *request = (const cpu_request *)asked;
  cpu_code *out = codes;
  build b = {0};
  const plan *p = asked->plan;
  dil_status status;
  const isa *set = cpu_isa(request, &status);
  if (set == NULL) return status;
  status = build_open(&b, p->table.name, set);
  if (status == DIL_OK) {
    build_aim(&b, p, set);
    if (request->debug) build_lines(&b);
    build_variant(&b, request->variant, &out->code);
    status = build_object(&b, request->ir, request->assembly,
                          request->texts_only ? NULL : out);
  }
  build_close(&b);
  return status;
}

static const char *cpu_host(void) {
  const char *name = dil_host_isa();
  if (name == NULL) dil_isa_check(NULL);
  return name;
}

static const char *cpu_versions(void) {
  return "LLVM " LLVM_VERSION_STRING;
}

static const char *cpu_origin(void) {
  Dl_info info;
  return dladdr((void *)LLVMContextCreate, &info) ? info.dli_fname : NULL;
}

DIL_API const backend *dil_backend_init(void);
const backend *dil_backend_init(void) {
  static const cpu_backend table = {.common = {.version = DIL_INTERFACE,
                                               .name = "cpu",
                                               .compiler = "llvm",
                                               .can = cpu_can,
                                               .compile = cpu_compile,
                                               .versions = cpu_versions,
                                               .origin = cpu_origin},
                                    .host = cpu_host,
                                    .runs = dil_isa_check,
                                    .library = library_build,
                                    .isas = isa_list};
  return &table.common;
}
