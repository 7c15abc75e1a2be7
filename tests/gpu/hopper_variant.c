/* hopper_variant.c - kernels as files. In: names WIDTH_WARPGROUPS_KEYS_STAGES_
 * ELEMENT-NOTE, such as 64_3_128_4_1-before (elements: 1 bf16, 2 f16; the note
 * is free). Out: NAME.cubin of this tree's templates/hopper/hopper.cu and
 * reference.cubin in a folder; and the same loaded, those of other trees among
 * them, as long as their shared memory is laid out alike. */
#include "runtime/base/status.h"
#include "hopper_bench.h"
#include "compiler/codegen/gpu/gpu.h"
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>


/* ---- files --------------------------------------------------------------- */

typedef struct variant_file {
  char *bytes;   /* malloced; a NUL follows */
  size_t size;
} variant_file;

static variant_file read_whole(const char *path) {
  FILE *f = fopen(path, "rb");
  struct stat about;
  if (!f || fstat(fileno(f), &about))
    must(dil_fail(DIL_ENVIRONMENT, "cannot read '%s'", path));
  variant_file whole = {calloc(1, (size_t)about.st_size + 1),
                        (size_t)about.st_size};
  if (!whole.bytes || fread(whole.bytes, 1, whole.size, f) != whole.size)
    must(dil_fail(DIL_ENVIRONMENT, "cannot read '%s'", path));
  fclose(f);
  return whole;
}

/* Compiles a source, which it frees, to NAME.cubin. */
static void make_one(const char *folder, const char *name, source_text *text,
                     dil_cuda_code *code) {
  must(nvrtc_compile(text, code, NULL, NULL, NULL));
  char path[512];
  snprintf(path, sizeof path, "%s/%s.cubin", folder, name);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(code->cubin, 1, code->size, f) != code->size || fclose(f))
    must(dil_fail(DIL_ENVIRONMENT, "cannot write '%s'", path));
  printf("made %s: %zu bytes\n", path, code->size);
  free(code->cubin);
  free(text->text);
  *text = (source_text){0};
}

/* ---- by its name --------------------------------------------------------- */

/* The strategy's own source and facts for such heads and some branch that leaves
 * rows bare: a kernel that takes every case. */
static void write_cut(const char *name, const variant *v, const knobs *k,
                      dil_cuda_code *code, source_text *text) {
  bench_case other = {.H = 1, .Hkv = 1, .D = v->width, .Dv = v->width,
                      .element = v->element, .branches = 1, .segment = {2048},
                      .dilation = {2}, .left = -1, .right = -1};
  plan_data data;
  plan_fill(&other, &data);
  plan p = {.table = data.table};
  gpu_request r = {.common = {&p}, .arch = 90, .knobs = k};
  char reason[256];
  if (!strategy_hopper.can(&r, reason, sizeof reason) ||
      !strategy_hopper.write(&r, 0, 0, code, text))
    must(dil_fail(DIL_USAGE, "no kernel '%s': %s", name, reason));
}

/* False: it is no such name. */
static bool describe(const char *name, variant *v, dil_cuda_code *code,
                     source_text *text) {
  int groups, keys, stages;
  char note[16] = "";
  if (sscanf(name, "%d_%d_%d_%d_%d%15[-a-z0-9]", &v->width, &groups, &keys,
             &stages, &v->element, note) < 5)
    return false;
  snprintf(v->name, sizeof v->name, "%dx%d/%d%s", 64 * groups, keys, stages,
           note);
  knobs k = {.given = 1u << KNOB_TILE | 1u << KNOB_STAGES};
  k.value[KNOB_TILE][0] = 64 * groups;
  k.value[KNOB_TILE][1] = keys;
  k.value[KNOB_STAGES][0] = stages;
  write_cut(name, v, &k, code, text);
  return true;
}

void variants_make(const char *folder, char **names, int count) {
  static const char *const files[] = {"tests/gpu/hopper_reference.h",
                                      "tests/gpu/hopper_reference.cu"};
  dil_cuda_code code = {.variant = "reference", .arch = 90, .lenient = true};
  source_text text = {0};
  for (int i = 0; i < 2; i++) {
    variant_file part = read_whole(files[i]);
    put(&text, "%s", part.bytes);
    free(part.bytes);
  }
  make_one(folder, "reference", &text, &code);
  for (int i = 0; i < count; i++) {
    variant v;
    if (!describe(names[i], &v, &code, &text))
      must(dil_fail(DIL_USAGE, "'%s' is not WIDTH_WARPGROUPS_KEYS_STAGES_"
                    "ELEMENT-NOTE", names[i]));
    make_one(folder, names[i], &text, &code);
  }
}

/* ---- loaded -------------------------------------------------------------- */

static void load_variant(bench *x, const char *folder, const char *name) {
  char path[512];
  variant v;
  dil_cuda_code code;
  source_text unused = {0};
  if (!describe(name, &v, &code, &unused)) return;
  if (x->variants == VARIANTS)
    must(dil_fail(DIL_USAGE, "more than %d kernels in '%s'", VARIANTS, folder));
  snprintf(path, sizeof path, "%s/%s", folder, name);
  variant_file cubin = read_whole(path);
  code.cubin = cubin.bytes;
  code.size = cubin.size;
  must(code_load(x->device, &code, &v.code));
  x->variant[x->variants++] = v;
  free(cubin.bytes);
  free(unused.text);
}

static void load_reference(bench *x, const char *folder) {
  char path[512];
  cu_library library;
  const struct {
    const char *name;
    cu_function *function;
  } all[] = {{"fill", &x->fill},
             {"inspect", &x->inspect},
             {"reference", &x->reference},
             {"spoil", &x->spoil},
             {"gather", &x->gather}};
  snprintf(path, sizeof path, "%s/reference.cubin", folder);
  variant_file cubin = read_whole(path);
  must(cuda_check(x->driver,
                  x->driver->library_load(&library, cubin.bytes, NULL, NULL, 0,
                                          NULL, NULL, 0),
                  "load the reference"));
  free(cubin.bytes);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    cu_kernel entry = NULL;
    cu_result result =
        x->driver->library_kernel(&entry, library, all[i].name);
    if (!result) result = x->driver->kernel_function(all[i].function, entry);
    must(cuda_check(x->driver, result, "prepare the reference"));
  }
}

void *bench_take(const bench *x, uint64_t bytes) {
  void *memory;
  must(device_take(x->device, (int64_t)bytes, &memory));
  return memory;
}

void bench_open(bench *x, const char *folder) {
  must(device_open(0, &x->device));
  must(cuda_enter(x->device));
  x->driver = x->device->driver;
  load_reference(x, folder);
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));)
    load_variant(x, folder, e->d_name);
  if (dir) closedir(dir);
  x->flush = bench_take(x, FLUSHED);
  x->counts = bench_take(x, 2 * sizeof *x->counts);
  x->sample = bench_take(x, SAMPLES * 3 * sizeof *x->sample);
  x->exact = bench_take(x, SAMPLES * ROW * sizeof *x->exact);
  x->found = bench_take(x, SAMPLES * ROW * sizeof *x->found);
}

void bench_close(bench *x) {
  void *const memory[] = {x->flush, x->counts, x->sample, x->exact, x->found};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
    device_give(x->device, memory[i]);
  for (int v = 0; v < x->variants; v++)
    code_unload(x->device, &x->variant[v].code);
  cuda_leave(x->device);
  device_close(x->device);
}

void bench_launch(const bench *x, cu_function f, unsigned blocks,
                  unsigned threads, void *job) {
  unsigned shared = threads * sizeof(double);
  cu_result result = x->driver->launch(f, blocks, 1, 1, threads, 1, 1, shared,
                                       NULL, (void *[]){job}, NULL);
  must(cuda_check(x->driver, result, "launch the reference"));
}
