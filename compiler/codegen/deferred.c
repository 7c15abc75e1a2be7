/* deferred.c - deferred compilation: a thread compiles some codes of a kernel
 * after the kernel is made; see code_cache.h.
 *
 * In: a plan with members (gpu/gpu.h) that few calls need. Out: the other
 * members at once, and the deferred members from the thread; a call that needs
 * one waits for it. Once all codes exist, the cache gets them as one list, as
 * if they had been compiled together. */
#include "code_cache.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct slot {        /* the result of a deferred member */
  bool ended;
  dil_status status;
  char problem[2048];
  dil_cuda_code code;
} slot;

typedef struct late {
  const compilation *c;
  gpu_request request;
  knobs knobs;               /* a copy for `request` */
  uint32_t members;          /* bits: the deferred members */
  char *key;                 /* of the list of all codes; NULL: none */
  size_t key_size;
  atomic_bool stop;
  pid_t process;             /* has the thread; a forked child has not */
  pthread_t thread;
  bool begins;               /* the thread was started */
  bool running;              /* ... and not yet joined; under running_lock */
  struct late *next;         /* in the list `running` */
  pthread_mutex_t lock;      /* of over ... wanted, member and slot */
  pthread_cond_t changed;
  bool over, had_first;      /* the thread has ended; `member` is filled */
  bool wanted;               /* a call waits, or will soon: do not delay */
  double begun;
  keep_shelf shelf;          /* used by the thread alone */
  int32_t member[GPU_CODES_MAX]; /* by the index of the kernel's code */
  slot slot[GPU_CODES_MAX];
} late;

/* ---- the end of the process ---------------------------------------------- */

/* The list of deferred compilations. A compiler must not run while the process
 * unloads its library, so exit() joins the threads. */
static late *running;
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t at_end_once = PTHREAD_ONCE_INIT;

static void stop(late *l) {
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->stop, true);
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Either end_all or late_end joins a thread, the first of the two to come. */
static void end_all(void) {
  pthread_mutex_lock(&running_lock);
  for (late *l = running; l; l = l->next)
    if (l->process == getpid()) stop(l);
  for (late *l = running; l; l = l->next) {
    if (l->running && l->process == getpid()) pthread_join(l->thread, NULL);
    l->running = false;
  }
  pthread_mutex_unlock(&running_lock);
}

static void register_end(void) { atexit(end_all); }

/* Removes it from the list. Returns whether its thread is yet to be joined. */
static bool unlink_running(late *l) {
  pthread_mutex_lock(&running_lock);
  late **at = &running;
  while (*at && *at != l) at = &(*at)->next;
  if (*at) *at = l->next;
  bool joins = l->running;
  l->running = false;
  pthread_mutex_unlock(&running_lock);
  return joins;
}

/* ---- the thread ---------------------------------------------------------- */

/* Takes a member from the shelf, or else compiles it by NVRTC. gpu->versions()
 * opens NVRTC before register_end, since exit() runs handlers in reverse order:
 * end_all must run before NVRTC's own. */
static dil_status find_or_compile(late *l, int32_t member,
                                  dil_cuda_code *code) {
  keep_shelf *s = &l->shelf;
  const gpu_backend *gpu;
  dil_status status = gpu_compiler_open(&gpu);
  if (status) return status;
  if (s->calls.only) {
    status = gpu->member(&l->request, member, code);
    if (!status || status == DIL_UNSUPPORTED) return status;
    if (gpu->versions()) pthread_once(&at_end_once, register_end);
    keep_shelf_open(s, l->c, false, gpu->origin());
  }
  return gpu->member(&l->request, member, code);
}

static void make_member(late *l, int32_t member) {
  slot *s = &l->slot[member];
  dil_cuda_code code = {0};
  dil_status status = find_or_compile(l, member, &code);
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
static bool wait_first(late *l) {
  pthread_mutex_lock(&l->lock);
  while (!l->had_first && !atomic_load(&l->stop))
    pthread_cond_wait(&l->changed, &l->lock);
  bool known = l->had_first;
  pthread_mutex_unlock(&l->lock);
  return known && !atomic_load(&l->stop);
}

/* Caches all codes as one list when none failed. A member that the gate refused
 * is left out, as in a compilation of all members at once. */
static void keep_whole(late *l) {
  if (!wait_first(l)) return;
  for (int32_t m = 0; m < GPU_CODES_MAX; m++)
    if (l->slot[m].status && l->slot[m].status != DIL_UNSUPPORTED) return;
  gpu_request request = l->request;
  request.stop = NULL;
  keep_list_codes(l->c, &request, l->key, l->key_size,
                  clock_seconds() - l->begun);
}

/* Delays the thread for a second. It would take processors from the kernel's
 * first calls, and a process that ends soon would have to stop it. */
static void let_calls_begin(late *l) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec++;
  pthread_mutex_lock(&l->lock);
  while (!l->wanted && !atomic_load(&l->stop) &&
         pthread_cond_timedwait(&l->changed, &l->lock, &end) != ETIMEDOUT)
    continue;
  pthread_mutex_unlock(&l->lock);
}

static void *run(void *context) {
  late *l = context;
  let_calls_begin(l);
  for (int32_t m = 0; m < GPU_CODES_MAX; m++)
    if ((l->members >> m & 1) && !atomic_load(&l->stop)) make_member(l, m);
  if (!atomic_load(&l->stop)) keep_whole(l);
  pthread_mutex_lock(&l->lock);
  l->over = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

/* False: the system has no thread left. */
static bool start(late *l) {
  if (l->begins) return true;
  pthread_mutex_lock(&running_lock);
  l->begins = l->running = !pthread_create(&l->thread, NULL, run, l);
  if (l->begins) {
    l->next = running;
    running = l;
  }
  pthread_mutex_unlock(&running_lock);
  return l->begins;
}

/* ---- beginning and ending ------------------------------------------------ */

static late *late_new(const compilation *c, const gpu_request *request,
                      uint32_t members, bool beside) {
  late *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->c = c;
  l->wanted = beside;
  l->request = *request;
  if (request->knobs) l->knobs = *request->knobs;
  if (request->knobs) l->request.knobs = &l->knobs;
  l->request.stop = &l->stop;
  l->request.shelf = &l->shelf.calls;
  l->members = members;
  l->key = keep_key(c, request, &l->key_size);
  l->process = getpid();
  l->begun = clock_seconds();
  keep_shelf_open(&l->shelf, c, true, NULL);
  pthread_condattr_t forward;
  pthread_condattr_init(&forward);
  pthread_condattr_setclock(&forward, CLOCK_MONOTONIC);
  pthread_mutex_init(&l->lock, NULL);
  pthread_cond_init(&l->changed, &forward);
  pthread_condattr_destroy(&forward);
  return l;
}

void late_end(late *l) {
  if (!l) return;
  bool own = l->process == getpid();
  if (own) stop(l);
  if (unlink_running(l) && own) pthread_join(l->thread, NULL);
  for (int32_t m = 0; m < GPU_CODES_MAX; m++) free(l->slot[m].code.cubin);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->lock);
  free(l->key);
  free(l);
}

/* late_wait gets the index of a code, the thread works by member: this maps one
 * to the other. */
static void note_first(late *l, const gpu_codes *codes) {
  pthread_mutex_lock(&l->lock);
  memcpy(l->member, codes->member, sizeof l->member);
  l->had_first = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Makes the codes that are not deferred, unless the cache had them, and starts
 * the thread. */
static dil_status make_first(late *l, const gpu_request *first, bool found,
                             gpu_codes *codes) {
  if (l->wanted) start(l);
  dil_status status = found ? DIL_OK : keep_make_codes(l->c, first, codes);
  if (status) return status;
  note_first(l, codes);
  if (start(l)) return DIL_OK;
  l->wanted = true;
  run(l); /* without a thread: compile here */
  return DIL_OK;
}

/* The members of a list that have no cubin, as bits. */
static uint32_t members_without(const gpu_codes *codes) {
  uint32_t members = 0;
  for (int32_t i = 0; i < codes->count; i++)
    if (!codes->code[i].size) members |= 1u << codes->member[i];
  return members;
}

dil_status late_begin(const compilation *c, const gpu_request *request,
                      gpu_codes *codes, late **out) {
  bool found, beside = false;
  uint32_t members;
  const gpu_backend *gpu;
  gpu_request first = *request;
  first.apart = true;
  *out = NULL;
  dil_status status = keep_find_codes(c, request, codes, &found);
  if (status || found) return status;
  status = keep_find_codes(c, &first, codes, &found);
  if (!status && !found) status = gpu_compiler_open(&gpu);
  if (status) return status;
  members = found ? members_without(codes) : gpu->apart(request, &beside);
  if (!members && found) return DIL_OK;
  if (!members) return keep_make_codes(c, request, codes);
  late *l = late_new(c, request, members, beside);
  if (!l) status = dil_fail(DIL_MEMORY, "no memory for compilers");
  else status = make_first(l, &first, found, codes);
  if (!status) *out = l;
  else late_end(l);
  while (status && found && codes->count > 0)
    free(codes->code[--codes->count].cubin);
  return status;
}

/* ---- waiting ------------------------------------------------------------- */

static dil_status take(const slot *s, dil_cuda_code *code) {
  if (s->status) return dil_fail(s->status, "%s", s->problem);
  *code = s->code;
  code->cubin = malloc(s->code.size);
  if (!code->cubin) return dil_fail(DIL_MEMORY, "no memory for a cubin");
  memcpy(code->cubin, s->code.cubin, s->code.size);
  return DIL_OK;
}

dil_status late_wait(late *l, int32_t index, dil_cuda_code *code) {
  pthread_mutex_lock(&l->lock);
  const slot *s = &l->slot[l->member[index]];
  l->wanted = true;
  pthread_cond_broadcast(&l->changed);
  while (!s->ended && !l->over) pthread_cond_wait(&l->changed, &l->lock);
  dil_status status =
      s->ended ? take(s, code)
               : dil_fail(DIL_ENVIRONMENT, "the process ends before this code "
                          "is compiled");
  pthread_mutex_unlock(&l->lock);
  return status;
}
