/* gpu.c - the numeric suites on a GPU: with DIL_TEST_DEVICE=cuda in the
 * environment, kernels are made by dil-gpu.so and run by dilrt-cuda.so. In: a
 * kernel and the guarded tensors of a call. Out: o and lse where the suites
 * look for them, with whatever the device wrote beside their elements. */
#include "gpu.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool gpu_wanted(void) {
  const char *device = getenv("DIL_TEST_DEVICE");
  return device && !strcmp(device, "cuda");
}

bool gpu_computes(void) {
  return !gpu_wanted() || !getenv("DIL_TEST_TAKES");
}

/* ---- the modules, beside or above this program --------------------------- */

static void *open_symbol(const char *name, const char *symbol) {
  char path[4096], file[4200];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
  path[length > 0 ? length : 0] = 0;
  for (char *slash; (slash = strrchr(path, '/')) != NULL;) {
    *slash = 0;
    snprintf(file, sizeof file, "%s/%s", path, name);
    if (access(file, R_OK) != 0) continue;
    void *module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!module) fprintf(stderr, "%s\n", dlerror());
    return module ? dlsym(module, symbol) : NULL;
  }
  return NULL;
}

static void *must_find(const char *name, const char *symbol) {
  void *found = open_symbol(name, symbol);
  if (!found) {
    fprintf(stderr, "no usable %s above the test program\n", name);
    abort();
  }
  return found;
}

const gpu_backend *gpu_compiler(void) {
  static const gpu_backend *found;
  if (!found)
    found =
        (const void *)((backend_init)must_find("dil-gpu.so", BACKEND_SYMBOL))();
  return found;
}

const dil_cuda_module *gpu_module(void) {
  static const dil_cuda_module *found;
  if (!found)
    found = ((dil_cuda_init)must_find("dilrt-cuda.so", DIL_CUDA_SYMBOL))();
  return found;
}

dil_cuda *gpu_device(void) {
  static dil_cuda *open;
  if (open) return open;
  if (gpu_module()->open(0, &open) == DIL_OK) return open;
  fprintf(stderr, "%s\n", dil_last_error());
  abort();
}

static void require_ok(dil_status status) {
  if (status == DIL_OK) return;
  fprintf(stderr, "%s\n", dil_last_error());
  abort();
}

/* ---- kernels ------------------------------------------------------------- */

/* What a kernel is made from; kept until this process ends. */
typedef struct origin {
  const plan *plan;
  bool whole;              /* no call is a shard of a sequence */
  bool any_order;          /* of gradients */
  struct origin *next;
} origin;

static origin *origin_new(const plan *p, bool whole) {
  static origin *all;
  origin *o = malloc(sizeof *o);
  if (!o) abort();
  *o = (origin){p, whole, false, all};
  return all = o;
}

static int64_t input_dimension(const void *context, int32_t index, int32_t axis,
                               int32_t B, int32_t N, int32_t M) {
  const pattern *p = ((const origin *)context)->plan->pattern;
  expr_point point = {.B = B, .N = N, .M = M};
  return expr_eval(p->dimension[index][axis], &point, false).integer;
}

/* Codes of sources seen before in this process: ways of planning that are
 * forced often come to the same kernels. */
enum { REMEMBERED = 512 };
static struct {
  char *source;
  bool late;
  gpu_codes codes;
} remembered[REMEMBERED];
static int32_t remembered_count;

static char *source_of(gpu_request request) {
  char *text = NULL;
  size_t length = 0;
  request.cuda = open_memstream(&text, &length);
  request.source_only = true;
  gpu_codes none = {0};
  if (!request.cuda) abort();
  require_ok(gpu_compiler()->common.compile(&request.common, &none));
  fclose(request.cuda);
  return text;
}

/* DIL_TEST_LATE: general kernels beside others are compiled when a call takes
 * them, as by `dil run`. */
static bool is_late(void) { return getenv("DIL_TEST_LATE") != NULL; }

static gpu_request request_of(const origin *o) {
  static const knobs any = {
      .given = 1u << KNOB_GRADIENT_ORDER,
      .value = {[KNOB_GRADIENT_ORDER] = {ORDER_ANY}}};
  return (gpu_request){
      .common = {o->plan},
      .arch = gpu_module()->facts(gpu_device())->arch,
      .only = o->plan->force & FORCE_GENERAL ? "general" : NULL,
      .knobs = o->any_order ? &any : NULL,
      .full_sequences_only = o->whole};
}

static dil_status compile_codes(const origin *o, bool late,
                                const gpu_codes **codes) {
  gpu_request request = request_of(o);
  char *text = source_of(request);
  request.deferred = late;
  for (int32_t i = 0; i < remembered_count; i++)
    if (remembered[i].late == late && !strcmp(remembered[i].source, text)) {
      free(text);
      *codes = &remembered[i].codes;
      return DIL_OK;
    }
  if (remembered_count == REMEMBERED) abort();
  gpu_codes *made = &remembered[remembered_count].codes;
  dil_status status = gpu_compiler()->common.compile(&request.common, made);
  if (status) return status;
  remembered[remembered_count].late = late;
  remembered[remembered_count++].source = text;
  *codes = made;
  return DIL_OK;
}

/* Code number `index` of a plan's, the context: never there for a call that does
 * not wait. */
static dil_status late_code(const void *context, int32_t index, bool waits,
                            dil_cuda_code *made) {
  if (!waits) return DIL_OK;
  gpu_request request = request_of(context);
  gpu_codes all;
  dil_status status = gpu_compiler()->estimate(&request, &all);
  if (status) return status;
  return gpu_compiler()->variant(&request, all.variant[index], made);
}

/* Comparisons that one source of kernels serves, about. */
enum { GROUP = 5 };

static dil_cuda_kernel *kernel_of(const origin *o, char *problem,
                                  size_t size) {
  const plan *p = o->plan;
  dil_cuda_kernel *made = NULL;
  const gpu_codes *codes;
  bool late = is_late();
  dil_status status = compile_codes(o, late, &codes);
  if (!status)
    status = gpu_module()->kernel(gpu_device(), &p->table, codes->code,
                                  codes->count, late ? late_code : NULL,
                                  input_dimension, o, &made);
  if (status)
    snprintf(problem, size, "%s: %s", dil_status_text(status),
             dil_last_error());
  return made;
}

dil_cuda_kernel *gpu_kernel_make(const plan *p, bool parts, char *problem,
                                 size_t size) {
  static int32_t number;
  bool whole = !parts && number++ / GROUP % 2 == 0;
  return kernel_of(origin_new(p, whole), problem, size);
}

dil_cuda_kernel *gpu_kernel_make_whole(const plan *p, char *problem, size_t size) {
  return kernel_of(origin_new(p, true), problem, size);
}

dil_cuda_kernel *gpu_kernel_make_any_order(const plan *p, char *problem,
                                           size_t size) {
  origin *o = origin_new(p, true); // shards have no fused form
  o->any_order = true;
  return kernel_of(o, problem, size);
}

const rank_group_gpu *gpu_rank_group(const plan *p) {
  static rank_group_gpu shared;
  const gpu_codes *codes;
  const origin *o = origin_new(p, false);
  require_ok(compile_codes(o, false, &codes));
  shared = (rank_group_gpu){.cuda = gpu_module(), .codes = codes->code,
                            .code_count = codes->count,
                            .dimension = input_dimension,
                            .context = o, .devices = 1};
  int32_t arch = gpu_module()->facts(gpu_device())->arch;
  require_ok(gpu_compiler()->rows(arch, NULL, &shared.rows));
  return &shared;
}

dil_status gpu_ranks_backward(rank_group *ranks, const dil_backward_call *call) {
  dil_status status = rank_group_load(ranks, &call->forward);
  if (!status) status = rank_group_run(ranks, &call->forward);
  if (!status) status = rank_group_load_gradients(ranks, call, 0);
  if (!status) status = rank_group_backward(ranks, call);
  return status ? status : rank_group_fetch_gradients(ranks);
}

/* Comparisons that this process has made, told at its end with the sources of
 * kernels that it compiled: these take most of the time. */
static int32_t compared;
static void tell_compared(void) {
  fprintf(stderr, "# compared %d\n# compiled %d sources\n", compared,
          remembered_count);
}

static bool wants_comparison(void) {
  if (gpu_wanted() && compared++ == 0) atexit(tell_compared);
  return true;
}

/* DIL_TEST_SHARE=2/16: this process takes the third of every sixteen. */
static bool is_mine(int32_t number) {
  const char *share = getenv("DIL_TEST_SHARE");
  int mine = 0, all = 1;
  if (!gpu_wanted() || !share) return true;
  if (sscanf(share, "%d/%d", &mine, &all) != 2 || all < 1) abort();
  return number % all == mine;
}

static bool by_case; /* the suite divides its cases, and not its comparisons */

bool gpu_leaves_out(void) {
  static int32_t number = -1;
  number++;
  return (!by_case && !is_mine(number / GROUP)) || !wants_comparison();
}

bool gpu_leaves_case(const char *name, int32_t number) {
  by_case = true;
  if (!is_mine(number)) return true;
  if (gpu_wanted()) fprintf(stderr, "# %s: case %d\n", name, number);
  return false;
}

void gpu_kernel_unmake(dil_cuda_kernel *made) {
  if (made) gpu_module()->kernel_free(made);
}

/* ---- calls --------------------------------------------------------------- */

static bool holds(const guard *g, const void *bytes) {
  const unsigned char *at = bytes;
  return at && at >= g->map && at < g->map + g->map_size;
}

/* A guard on the device, guard bytes and all. */
static void *copy_up(const guard *g) {
  void *memory = NULL;
  int64_t size = (int64_t)guard_inner_size(g);
  require_ok(gpu_module()->take(gpu_device(), size, &memory));
  require_ok(gpu_module()->upload(gpu_device(), memory, guard_inner(g), size));
  return memory;
}

/* Outputs come back whole: what was written beside elements shows. */
static void copy_down(const data *d, const guard *g, void *memory) {
  if (holds(g, d->call.o.data) || holds(g, d->call.lse.data))
    require_ok(gpu_module()->download(gpu_device(), guard_inner(g), memory,
                                      (int64_t)guard_inner_size(g)));
}

/* The address on the device of what lies at `host` in some guard. */
static void *device_address(const data *d, void *const *memory,
                            const void *host) {
  for (int32_t i = 0; i < d->guard_count; i++)
    if (holds(&d->guards[i], host))
      return (char *)memory[i] +
             ((const unsigned char *)host - guard_inner(&d->guards[i]));
  return NULL;
}

/* The lists that choices make: tables among them have no memory. */
static int32_t count_made(const data *d) {
  const pattern *p = d->pattern;
  return d->call.made ? pattern_reads(p) - p->input_count : 0;
}

static size_t list_bytes(const dil_tensor *list) {
  return (size_t)dil_tensor_count(list) * sizeof(int32_t);
}

static void copy_lists_up(const data *d, gpu_copy *to) {
  for (int32_t i = 0; i < count_made(d); i++) {
    to->made[i] = d->call.made[i];
    if (to->made[i].data)
      to->made[i].data = gpu_memory(to->made[i].data, list_bytes(&to->made[i]));
  }
  if (d->call.made) to->call.made = to->made;
}

static void copy_lists_down(const data *d, gpu_copy *from, bool outputs) {
  for (int32_t i = 0; i < count_made(d); i++) {
    const dil_tensor *list = &d->call.made[i];
    if (!list->data) continue;
    if (outputs)
      require_ok(gpu_module()->download(gpu_device(), list->data,
                                        from->made[i].data,
                                        (int64_t)list_bytes(list)));
    gpu_module()->give(gpu_device(), from->made[i].data);
  }
}

void gpu_copy_up(const data *d, gpu_copy *to) {
  void **memory = to->memory;
  *to = (gpu_copy){.call = d->call};
  for (int32_t i = 0; i < d->guard_count; i++)
    memory[i] = copy_up(&d->guards[i]);
  dil_call *call = &to->call;
  dil_tensor *const tensors[] = {&call->q, &call->k, &call->v, &call->o,
                                 &call->lse};
  for (int i = 0; i < 5; i++)
    tensors[i]->data = device_address(d, memory, tensors[i]->data);
  for (int32_t i = 0; i < call->input_count; i++) {
    to->inputs[i] = d->inputs[i];
    to->inputs[i].data = device_address(d, memory, d->inputs[i].data);
  }
  call->inputs = to->inputs;
  call->lengths = device_address(d, memory, call->lengths);
  dil_packed *packed = &call->packed;
  packed->queries = device_address(d, memory, packed->queries);
  packed->keys = device_address(d, memory, packed->keys);
  call->pages.number = device_address(d, memory, call->pages.number);
  copy_lists_up(d, to);
}

void gpu_copy_down(data *d, gpu_copy *from, bool outputs) {
  copy_lists_down(d, from, outputs);
  for (int32_t i = 0; i < d->guard_count; i++) {
    if (outputs) copy_down(d, &d->guards[i], from->memory[i]);
    gpu_module()->give(gpu_device(), from->memory[i]);
  }
}

void *gpu_memory(const void *from, size_t size) {
  void *memory = NULL;
  require_ok(gpu_module()->take(gpu_device(), (int64_t)size, &memory));
  require_ok(gpu_module()->upload(gpu_device(), memory, from, (int64_t)size));
  return memory;
}

/* A kernel's fault ends the context, and with it this program: what came after
 * would only say so again. */
static void stop_if_lost(data *d, dil_cuda_kernel *made) {
  char cause[400], variants[200];
  snprintf(cause, sizeof cause, "%s", dil_last_error());
  if (!strstr(cause, "the context of the device is lost")) return;
  /* A device that is lost need not say by which kernels. */
  if (gpu_module()->variants(made, &d->call, NULL, variants, sizeof variants))
    snprintf(variants, sizeof variants, "some kernel");
  fprintf(stderr, "not ok %s, %s, batch %d, %d queries, %d keys, %s: %s\n",
          d->name, dil_dtype_name(d->pattern->dtype), (int)d->shape.batch,
          (int)d->shape.queries, (int)d->shape.keys, variants, cause);
  exit(1);
}

dil_status gpu_run(data *d, dil_cuda_kernel *made) {
  gpu_copy on;
  gpu_copy_up(d, &on);
  dil_status status = gpu_module()->run(made, &on.call, NULL);
  if (!status) status = gpu_module()->wait(gpu_device(), NULL);
  if (status) stop_if_lost(d, made);
  gpu_copy_down(d, &on, !status);
  return status;
}

const char *gpu_variants(data *d, dil_cuda_kernel *made) {
  static char text[512];
  require_ok(gpu_module()->variants(made, &d->call, NULL, text, sizeof text));
  return text;
}
