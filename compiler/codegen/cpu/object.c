/* object.c - from an empty module to the bytes of an object file: context and
 * target machine of one compilation, verification, machine code, and the text
 * forms that a user may ask for. No pass runs over the IR: it is written the
 * way the code generator wants it. */
#include "cpu.h"
#include "runtime/base/status.h"
#include <llvm-c/Analysis.h>
#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static LLVMTargetRef target; /* set once, by target_open */
static char *triple;

static void target_open(void) {
  char *message = NULL;
  host_arch.initialize();
  triple = LLVMNormalizeTargetTriple(host_arch.triple);
  if (LLVMGetTargetFromTriple(triple, &target, &message) != 0) target = NULL;
  LLVMDisposeMessage(message);
}

/* ---- diagnostics --------------------------------------------------------- */

/* Messages of LLVM are kept for dil_last_error, never printed. */
static void on_diagnostic(LLVMDiagnosticInfoRef info, void *context) {
  build *b = context;
  if (LLVMGetDiagInfoSeverity(info) != LLVMDSError || b->complaint != NULL)
    return;
  b->complaint = LLVMGetDiagInfoDescription(info);
}

static dil_status failed(const char *stage, const char *text) {
  return dil_fail(DIL_INTERNAL, "code generator: %s: %s", stage,
                  text != NULL ? text : "no reason given");
}

/* ---- opening ------------------------------------------------------------- */

static void open_types(emit *e) {
  LLVMContextRef c = e->context;
  e->nothing = LLVMVoidTypeInContext(c);
  e->i1 = LLVMInt1TypeInContext(c);
  e->i8 = LLVMInt8TypeInContext(c);
  e->i16 = LLVMInt16TypeInContext(c);
  e->i32 = LLVMInt32TypeInContext(c);
  e->i64 = LLVMInt64TypeInContext(c);
  e->f16 = LLVMHalfTypeInContext(c);
  e->f32 = LLVMFloatTypeInContext(c);
  e->f64 = LLVMDoubleTypeInContext(c);
  e->pointer = LLVMPointerTypeInContext(c, 0);
}

static void module_flag(emit *e, const char *name, unsigned number) {
  LLVMAddModuleFlag(e->module, LLVMModuleFlagBehaviorWarning, name,
                    strlen(name),
                    LLVMValueAsMetadata(LLVMConstInt(e->i32, number, false)));
}

/* The .dil file is the source that lines and columns speak of. */
static void open_lines(emit *e, const pattern *p) {
  const char *path = p->at.source != NULL ? p->at.source->path : p->name;
  e->lines = LLVMCreateDIBuilder(e->module);
  e->file = LLVMDIBuilderCreateFile(e->lines, path, strlen(path), ".", 1);
  e->unit = LLVMDIBuilderCreateCompileUnit(
      e->lines, LLVMDWARFSourceLanguageC11, e->file, "dil " DIL_VERSION,
      strlen("dil " DIL_VERSION), true, "", 0, 0, "", 0,
      LLVMDWARFEmissionLineTablesOnly, 0, false, false, "", 0, "", 0);
  module_flag(e, "Debug Info Version", LLVMDebugMetadataVersion());
  module_flag(e, "Dwarf Version", 4);
}

static void place_of(span at, unsigned *line, unsigned *column) {
  *line = *column = 1;
  if (at.source == NULL || at.source->text == NULL) return;
  for (int32_t i = 0; i < at.start && (size_t)i < at.source->length; i++) {
    bool end = at.source->text[i] == '\n';
    *line += end;
    *column = end ? 1 : *column + 1;
  }
}

static LLVMTargetMachineRef machine_new(const isa *set) {
  if (set == NULL) set = &host_arch.plain;
  return LLVMCreateTargetMachine(target, triple, set->processor, set->features,
                                 LLVMCodeGenLevelDefault, LLVMRelocPIC,
                                 LLVMCodeModelSmall);
}

dil_status build_open(build *b, const char *name, const isa *set) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, target_open);
  if (target == NULL)
    return dil_fail(DIL_ENVIRONMENT, "this LLVM has no %s target",
                    host_arch.name);
  emit *e = &b->emit;
  b->machine = machine_new(set);
  e->context = LLVMContextCreate();
  LLVMContextSetDiagnosticHandler(e->context, on_diagnostic, b);
  e->module = LLVMModuleCreateWithNameInContext(name, e->context);
  e->builder = LLVMCreateBuilderInContext(e->context);
  open_types(e);
  b->layout = LLVMCreateTargetDataLayout(b->machine);
  LLVMSetModuleDataLayout(e->module, b->layout);
  LLVMSetTarget(e->module, triple);
  return DIL_OK;
}

/* Tiles of one register, with as many sums in all: a patch of a grid sees the
 * fewer keys in vain, the fewer cells it has. */
static const isa *narrow_isa(build *b, const isa *set) {
  b->own = *set;
  b->own.registers = 1;
  b->own.key_block *= set->registers;
  b->own.value_block *= set->registers;
  return &b->own;
}

/* Four tiles of lanes, which share a block of values that is turned round, and a tile of
 * keys: matrix.c. */
static const isa *tiled_isa(build *b, const isa *set) {
  b->own = *set;
  b->own.registers = 4;
  b->own.key_block = 16;
  return &b->own;
}

void build_aim(build *b, const plan *p, const isa *set) {
  emit *e = &b->emit;
  b->plan = p;
  b->tiles = matrix_fits(p, set);
  /* Intel's processors, which have tiles, multiply pairs at half the rate of f32. */
  bool pairs = b->tiles || (set->dot_bf16 && !set->tiles);
  if (p->table.grid.axes) set = narrow_isa(b, set);
  if (b->tiles) set = tiled_isa(b, set);
  b->isa = set;
  b->lanes = set->width * set->registers;
  b->pack = pairs && p->table.dtype == DIL_BF16 ? DIL_PACK_BF16_PAIRS
                                                : DIL_PACK_F32;
  b->exp_degree = p->table.dtype == DIL_F32 ? 5 : 4;
  e->processor = set->processor;
  e->features = set->features;
  e->width = set->width;
  e->vector_bits = set->vector_bits;
}

void build_lines(build *b) {
  open_lines(&b->emit, b->plan->pattern);
  place_of(b->plan->pattern->at, &b->emit.line, &b->emit.column);
}

void build_close(build *b) {
  emit *e = &b->emit;
  if (e->lines != NULL) LLVMDisposeDIBuilder(e->lines);
  if (e->builder != NULL) LLVMDisposeBuilder(e->builder);
  if (e->module != NULL) LLVMDisposeModule(e->module);
  if (e->context != NULL) LLVMContextDispose(e->context);
  if (b->layout != NULL) LLVMDisposeTargetData(b->layout);
  if (b->machine != NULL) LLVMDisposeTargetMachine(b->machine);
  if (b->complaint != NULL) LLVMDisposeMessage(b->complaint);
}

void build_locate(build *b, span at) {
  unsigned line, column;
  const span *whole = &b->plan->pattern->at;
  if (b->emit.lines == NULL || at.source != whole->source) return;
  place_of(at, &line, &column);
  emit_locate(&b->emit, line, column);
}

/* ---- closing ------------------------------------------------------------- */

static dil_status verify(build *b) {
  char *message = NULL;
  dil_status status = DIL_OK;
  if (b->emit.lines != NULL) LLVMDIBuilderFinalize(b->emit.lines);
  if (LLVMVerifyModule(b->emit.module, LLVMReturnStatusAction, &message) != 0)
    status = failed("verify", message);
  LLVMDisposeMessage(message);
  return status;
}

static dil_status print_ir(build *b, FILE *out) {
  char *text = LLVMPrintModuleToString(b->emit.module);
  bool written = fputs(text, out) >= 0;
  LLVMDisposeMessage(text);
  return written ? DIL_OK
                 : dil_fail(DIL_ENVIRONMENT, "cannot write the IR text");
}

static dil_status emit_code(build *b, LLVMModuleRef module,
                            LLVMCodeGenFileType kind,
                            LLVMMemoryBufferRef *code) {
  char *message = NULL;
  bool bad = LLVMTargetMachineEmitToMemoryBuffer(b->machine, module, kind,
                                                 &message, code) != 0;
  if (!bad && b->complaint == NULL) return DIL_OK;
  dil_status status = failed("emit", bad ? message : b->complaint);
  if (bad)
    LLVMDisposeMessage(message);
  else
    LLVMDisposeMemoryBuffer(*code);
  return status;
}

/* Code generation rewrites its module: the text is made from a copy. */
static dil_status print_assembly(build *b, FILE *out) {
  LLVMMemoryBufferRef text;
  LLVMModuleRef copy = LLVMCloneModule(b->emit.module);
  dil_status status = emit_code(b, copy, LLVMAssemblyFile, &text);
  if (status == DIL_OK) {
    size_t size = LLVMGetBufferSize(text);
    if (fwrite(LLVMGetBufferStart(text), 1, size, out) != size)
      status = dil_fail(DIL_ENVIRONMENT, "cannot write the assembly text");
    LLVMDisposeMemoryBuffer(text);
  }
  LLVMDisposeModule(copy);
  return status;
}

/* Machine code of the module. Code generation rewrites the module. */
static dil_status object_emit(build *b, cpu_code *out) {
  LLVMMemoryBufferRef code;
  dil_status status = emit_code(b, b->emit.module, LLVMObjectFile, &code);
  if (status != DIL_OK) return status;
  out->size = LLVMGetBufferSize(code);
  out->bytes = malloc(out->size);
  if (out->bytes != NULL)
    memcpy(out->bytes, LLVMGetBufferStart(code), out->size);
  LLVMDisposeMemoryBuffer(code);
  return out->bytes != NULL
             ? DIL_OK
             : dil_fail(DIL_MEMORY, "no memory for %zu bytes of object code",
                        out->size);
}

dil_status build_object(build *b, FILE *ir, FILE *assembly, cpu_code *out) {
  dil_status status = verify(b);
  if (status == DIL_OK && ir != NULL) status = print_ir(b, ir);
  if (status == DIL_OK && assembly != NULL)
    status = print_assembly(b, assembly);
  if (status != DIL_OK || out == NULL) return status;
  return object_emit(b, out);
}
