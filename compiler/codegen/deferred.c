/* deferred.c - deferred compilation: a thread compiles some codes of a kernel
 * after the kernel is made; see deferred.h.
 *
 * In: a plan with variants (gpu/gpu.h) that few calls need. Out: the other
 * variants at once, and the deferred variants from the thread; a call that
 * needs one waits for it. Once all codes exist, the cache gets them as one
 * list, as if they had been compiled together. */
#include "deferred.h"
#include "code_cache.h"
#include "cubin_cache.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct deferred_code { /* the result of a deferred variant */
  bool ended;
  dil_status status;
  char problem[2048];
  dil_cuda_code code;
} deferred_code;

struct deferred {
  code_request of;
  gpu_request request;
  knobs knobs;               /* a copy for `request` */
  uint32_t variants;         /* bits: the deferred variants */
  char *key;                 /* of the list of all codes; NULL: none */
  size_t key_size;
  atomic_bool stop;
  pid_t process;             /* has the thread; a forked child has not */
  pthread_t thread;
  bool begins;               /* the thread was started */
  bool running;              /* ... and not yet joined; under running_lock */
  struct deferred *next;         /* in the list `running` */
  pthread_mutex_t lock;          /* of over ... wanted, variant and slot */
  pthread_cond_t changed;
  bool over, had_first;      /* the thread has ended; `variant` is filled */
  bool wanted;               /* a call waits, or will soon: do not delay */
  double begun;
  cubin_cache cubins;         /* used by the thread alone */
  int32_t variant[GPU_CODES_MAX]; /* by the index of the kernel's code */
  deferred_code code[GPU_CODES_MAX];
};

/* ---- the end of the process ---------------------------------------------- */

/* The list of deferred compilations. A compiler must not run while the process
 * unloads its library, so exit() joins the threads. */
static deferred *running;
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t at_end_once = PTHREAD_ONCE_INIT;
static bool at_end_known; /* exit() will call deferred_end_all */
static pthread_once_t at_fork_once = PTHREAD_ONCE_INIT;
static bool at_fork_known; /* a forked child will call deferred_forget */

/* A forked child has none of the threads. One of them may have held the lock,
 * which nobody would release in the child. */
static void deferred_forget(void) {
  running = NULL;
  running_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static void deferred_register_fork(void) {
  at_fork_known = pthread_atfork(NULL, NULL, deferred_forget) == 0;
}

static void deferred_stop(deferred *l) {
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->stop, true);
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Either deferred_end_all or deferred_end joins a thread: the first of the two
 * to come. */
static void deferred_end_all(void) {
  pthread_mutex_lock(&running_lock);
  for (deferred *l = running; l; l = l->next) deferred_stop(l);
  for (deferred *l = running; l; l = l->next) {
    if (l->running) pthread_join(l->thread, NULL);
    l->running = false;
  }
  pthread_mutex_unlock(&running_lock);
}

/* It fails when exit() has called all handlers already. */
static void deferred_register(void) {
  at_end_known = atexit(deferred_end_all) == 0;
}

/* A host may take long to exit. A thread that is still delayed then would wake
 * up behind the end of NVRTC, so it has a handler before it compiles as well. */
static pthread_once_t at_start_once = PTHREAD_ONCE_INIT;
static bool at_start_known;

static void deferred_register_start(void) {
  at_start_known = atexit(deferred_end_all) == 0;
}

static dil_status deferred_too_late(void) {
  return dil_fail(DIL_ENVIRONMENT, "the process ends before this code is "
                  "compiled");
}

/* Removes it from the list. Returns whether its thread is yet to be joined. */
static bool deferred_unlink(deferred *l) {
  pthread_mutex_lock(&running_lock);
  deferred **at = &running;
  while (*at && *at != l) at = &(*at)->next;
  if (*at) *at = l->next;
  bool joins = l->running;
  l->running = false;
  pthread_mutex_unlock(&running_lock);
  return joins;
}

/* ---- the thread ---------------------------------------------------------- */

/* Takes a variant from the cubin cache, or else compiles it by NVRTC.
 * versions() opens NVRTC before deferred_register, since exit() calls handlers
 * in reverse order: deferred_end_all must come before NVRTC's own. Without a
 * handler the compiler might outlive its library, so nothing is compiled. */
static dil_status deferred_find(deferred *l, int32_t variant,
                                dil_cuda_code *code) {
  cubin_cache *s = &l->cubins;
  const gpu_backend *gpu;
  dil_status status = gpu_backend_open(&gpu);
  if (status) return status;
  if (s->calls.only) {
    status = gpu->variant(&l->request, variant, code);
    if (!status || status == DIL_UNSUPPORTED) return status;
    if (gpu->common.versions()) {
      pthread_once(&at_end_once, deferred_register);
      if (!at_end_known) return deferred_too_late();
    }
    cubin_cache_open(s, l->of.context, false, gpu->common.origin());
  }
  return gpu->variant(&l->request, variant, code);
}

static void deferred_make(deferred *l, int32_t variant) {
  deferred_code *s = &l->code[variant];
  dil_cuda_code code = {0};
  dil_status status = deferred_find(l, variant, &code);
  pthread_mutex_lock(&l->lock);
  s->status = status;
  s->code = code;
  if (status)
    snprintf(s->problem, sizeof s->problem, "%s", dil_last_error());
  s->ended = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Waits until the codes that are not deferred are made. False: the thread is to
 * stop. */
static bool deferred_wait_first(deferred *l) {
  pthread_mutex_lock(&l->lock);
  while (!l->had_first && !atomic_load(&l->stop))
    pthread_cond_wait(&l->changed, &l->lock);
  bool known = l->had_first;
  pthread_mutex_unlock(&l->lock);
  return known && !atomic_load(&l->stop);
}

/* Caches all codes as one list when none failed. A variant that the gate
 * refused is left out, as in a compilation of all variants at once. */
static void deferred_store(deferred *l) {
  if (!deferred_wait_first(l)) return;
  for (int32_t m = 0; m < GPU_CODES_MAX; m++)
    if (l->code[m].status && l->code[m].status != DIL_UNSUPPORTED) return;
  gpu_request request = l->request;
  request.stop = NULL;
  code_cache_list_codes(&l->of, &request, l->key, l->key_size,
                  clock_seconds() - l->begun);
}

/* Delays the thread for a second. It would take processors from the kernel's
 * first calls, and a process that ends soon would have to stop it. */
static void deferred_delay(deferred *l) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec++;
  pthread_mutex_lock(&l->lock);
  while (!l->wanted && !atomic_load(&l->stop) &&
         pthread_cond_timedwait(&l->changed, &l->lock, &end) != ETIMEDOUT)
    continue;
  pthread_mutex_unlock(&l->lock);
}

static void *deferred_run(void *context) {
  deferred *l = context;
  deferred_delay(l);
  for (int32_t m = 0; m < GPU_CODES_MAX; m++)
    if ((l->variants >> m & 1) && !atomic_load(&l->stop)) deferred_make(l, m);
  if (!atomic_load(&l->stop)) deferred_store(l);
  pthread_mutex_lock(&l->lock);
  l->over = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

/* False: the system has no thread left, or exit() called its handlers already.
 */
static bool deferred_start(deferred *l) {
  if (l->begins) return true;
  pthread_once(&at_start_once, deferred_register_start);
  if (!at_start_known) return false;
  pthread_mutex_lock(&running_lock);
  l->begins = l->running = !pthread_create(&l->thread, NULL, deferred_run, l);
  if (l->begins) {
    l->next = running;
    running = l;
  }
  pthread_mutex_unlock(&running_lock);
  return l->begins;
}

/* ---- beginning and ending ------------------------------------------------ */

static deferred *deferred_new(const code_request *of,
                              const gpu_request *request, uint32_t variants,
                              bool urgent) {
  pthread_once(&at_fork_once, deferred_register_fork);
  deferred *l = at_fork_known ? calloc(1, sizeof *l) : NULL;
  if (!l) return NULL;
  l->of = *of;
  l->wanted = urgent;
  l->request = *request;
  if (request->knobs) l->knobs = *request->knobs;
  if (request->knobs) l->request.knobs = &l->knobs;
  l->request.stop = &l->stop;
  l->request.cubins = &l->cubins.calls;
  l->variants = variants;
  l->key = code_cache_key(of, request, &l->key_size);
  l->process = getpid();
  l->begun = clock_seconds();
  cubin_cache_open(&l->cubins, of->context, true, NULL);
  pthread_condattr_t forward;
  pthread_condattr_init(&forward);
  pthread_condattr_setclock(&forward, CLOCK_MONOTONIC);
  pthread_mutex_init(&l->lock, NULL);
  pthread_cond_init(&l->changed, &forward);
  pthread_condattr_destroy(&forward);
  return l;
}

void deferred_end(deferred *l) {
  if (!l) return;
  bool own = l->process == getpid();
  if (own) deferred_stop(l);
  if (deferred_unlink(l) && own) pthread_join(l->thread, NULL);
  for (int32_t m = 0; m < GPU_CODES_MAX; m++) free(l->code[m].code.cubin);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->lock);
  free(l->key);
  free(l);
}

/* deferred_take gets the index of a code, the thread works by variant: this
 * maps one to the other. */
static void deferred_note_first(deferred *l, const gpu_codes *codes) {
  pthread_mutex_lock(&l->lock);
  memcpy(l->variant, codes->variant, sizeof l->variant);
  l->had_first = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Makes the codes that are not deferred, unless the cache had them, and starts
 * the thread. */
static dil_status deferred_make_first(deferred *l, const gpu_request *first,
                                      bool found, gpu_codes *codes) {
  if (l->wanted) deferred_start(l);
  dil_status status =
      found ? DIL_OK : code_cache_make_codes(&l->of, first, codes);
  if (status) return status;
  deferred_note_first(l, codes);
  if (deferred_start(l)) return DIL_OK;
  l->wanted = true;
  deferred_run(l); /* without a thread: compile here */
  return DIL_OK;
}

/* The variants of a list that have no cubin, as bits. */
static uint32_t variants_without(const gpu_codes *codes) {
  uint32_t variants = 0;
  for (int32_t i = 0; i < codes->count; i++)
    if (!codes->code[i].size) variants |= 1u << codes->variant[i];
  return variants;
}

dil_status deferred_begin(const code_request *of, const gpu_request *request,
                      gpu_codes *codes, deferred **out) {
  bool found, urgent = false;
  uint32_t variants;
  const gpu_backend *gpu;
  gpu_request first = *request;
  first.deferred = true;
  *out = NULL;
  dil_status status = code_cache_find_codes(of, request, codes, &found);
  if (status || found) return status;
  status = code_cache_find_codes(of, &first, codes, &found);
  if (!status && !found) status = gpu_backend_open(&gpu);
  if (status) return status;
  variants = found ? variants_without(codes) : gpu->deferred(request, &urgent);
  if (!variants && found) return DIL_OK;
  if (!variants) return code_cache_make_codes(of, request, codes);
  deferred *l = deferred_new(of, request, variants, urgent);
  if (!l) status = dil_fail(DIL_MEMORY, "no memory for compilers");
  else status = deferred_make_first(l, &first, found, codes);
  if (!status) *out = l;
  else deferred_end(l);
  while (status && found && codes->count > 0)
    free(codes->code[--codes->count].cubin);
  return status;
}

/* ---- taking -------------------------------------------------------------- */

static dil_status deferred_copy(const deferred_code *s, dil_cuda_code *code) {
  if (s->status) return dil_fail(s->status, "%s", s->problem);
  *code = s->code;
  code->cubin = malloc(s->code.size);
  if (!code->cubin) return dil_fail(DIL_MEMORY, "no memory for a cubin");
  memcpy(code->cubin, s->code.cubin, s->code.size);
  return DIL_OK;
}

void deferred_wait(deferred *l) {
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  l->wanted = true;
  pthread_cond_broadcast(&l->changed);
  while (!l->over) pthread_cond_wait(&l->changed, &l->lock);
  pthread_mutex_unlock(&l->lock);
}

dil_status deferred_take(deferred *l, int32_t index, bool waits,
                         dil_cuda_code *code) {
  *code = (dil_cuda_code){0};
  pthread_mutex_lock(&l->lock);
  const deferred_code *s = &l->code[l->variant[index]];
  if (waits) {
    l->wanted = true;
    pthread_cond_broadcast(&l->changed);
    while (!s->ended && !l->over) pthread_cond_wait(&l->changed, &l->lock);
  }
  dil_status status = s->ended ? deferred_copy(s, code)
                      : waits  ? deferred_too_late()
                               : DIL_OK;
  pthread_mutex_unlock(&l->lock);
  return status;
}
