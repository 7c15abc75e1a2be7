/* late.c - codes of a kernel that are compiled after it is made: see keep.h.
 *
 * In: a plan whose members (gpu/gpu.h) are not all taken by every call. Out:
 * those that are, at once; the others from a thread, for the calls that wait
 * for them. When all are there they are kept together, as if they had been
 * compiled at once. */
#include "keep.h"
#include "../runtime/clock.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct slot {        /* a member that comes late */
  bool ended;
  dil_status status;
  char problem[2048];
  dil_cuda_code code;
} slot;

typedef struct late {
  const compilation *c;
  const gpu_backend *gpu;
  gpu_request request;
  knobs knobs;               /* the request's */
  uint32_t members;          /* those that come late */
  char *key;                 /* of all of them in the cache */
  size_t key_size;
  atomic_bool stop;
  pid_t process;             /* whose thread it is */
  pthread_t thread;
  bool begins;               /* the thread has been started */
  bool running;              /* and not joined; under running_lock */
  struct late *next;         /* of all that run */
  pthread_mutex_t lock;      /* of all below */
  pthread_cond_t changed;
  bool over, had_first;
  double begun;
  gpu_codes first;           /* copies, for the cache; no cubin: comes late */
  slot slot[GPU_CODES_MAX];
} late;

/* ---- the end of the process ---------------------------------------------- */

/* A compiler must not work on while the process takes its library apart. */
static late *running;
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t at_end_once = PTHREAD_ONCE_INIT;

static void stop(late *l) {
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->stop, true);
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Its thread is joined by whoever comes first. */
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

/* Whether its thread still has to be joined. */
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

static void make_member(late *l, int32_t member) {
  slot *s = &l->slot[member];
  dil_cuda_code code = {0};
  dil_status status = l->gpu->member(&l->request, member, &code);
  pthread_mutex_lock(&l->lock);
  s->status = status;
  s->code = code;
  if (status)
    snprintf(s->problem, sizeof s->problem, "%s", dil_last_error());
  s->ended = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

/* Whether those that came first are known, waiting for them. */
static bool wait_first(late *l) {
  pthread_mutex_lock(&l->lock);
  while (!l->had_first && !atomic_load(&l->stop))
    pthread_cond_wait(&l->changed, &l->lock);
  bool known = l->had_first;
  pthread_mutex_unlock(&l->lock);
  return known && !atomic_load(&l->stop);
}

/* All codes as one list, when none failed; a member that the gate refused is
 * left out, as it is where all are compiled at once. */
static void keep_whole(late *l) {
  gpu_codes whole = {0};
  gpu_request request = l->request;
  if (!wait_first(l)) return;
  for (int32_t i = 0; i < l->first.count; i++) {
    int32_t member = l->first.member[i];
    const slot *s = &l->slot[member];
    bool is_late = l->members >> member & 1;
    bool left_out = is_late && s->status == DIL_UNSUPPORTED &&
                    i + 1 < l->first.count;
    if (left_out) continue;
    if (is_late && s->status) return;
    whole.member[whole.count] = member;
    whole.code[whole.count++] = is_late ? s->code : l->first.code[i];
  }
  request.apart = false;
  keep_put_codes(l->c, &request, l->key, l->key_size, &whole,
                 clock_seconds() - l->begun);
}

/* NVRTC is opened before its end is seen to: what is registered last runs
 * first. */
static void *run(void *context) {
  late *l = context;
  if (l->gpu->versions()) pthread_once(&at_end_once, register_end);
  for (int32_t m = 0; m < GPU_CODES_MAX; m++)
    if ((l->members >> m & 1) && !atomic_load(&l->stop)) make_member(l, m);
  if (!atomic_load(&l->stop)) keep_whole(l);
  pthread_mutex_lock(&l->lock);
  l->over = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

/* False: there is no thread to be had. */
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

static late *late_new(const compilation *c, const gpu_backend *gpu,
                      const gpu_request *request, uint32_t members) {
  late *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->c = c;
  l->gpu = gpu;
  l->request = *request;
  if (request->knobs) l->knobs = *request->knobs;
  if (request->knobs) l->request.knobs = &l->knobs;
  l->request.stop = &l->stop;
  l->members = members;
  l->key = keep_key(c, request, &l->key_size);
  l->process = getpid();
  l->begun = clock_seconds();
  pthread_mutex_init(&l->lock, NULL);
  pthread_cond_init(&l->changed, NULL);
  return l;
}

void late_end(late *l) {
  if (!l) return;
  bool own = l->process == getpid();
  if (own) stop(l);
  if (unlink_running(l) && own) pthread_join(l->thread, NULL);
  for (int32_t m = 0; m < GPU_CODES_MAX; m++) free(l->slot[m].code.cubin);
  while (l->first.count > 0) free(l->first.code[--l->first.count].cubin);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->lock);
  free(l->key);
  free(l);
}

/* With the family's name behind the cubin, in its block. */
static bool copy_code(const dil_cuda_code *from, dil_cuda_code *to) {
  size_t name = strlen(from->family) + 1;
  char *block = malloc(from->size + name);
  if (!block) return false;
  if (from->size) memcpy(block, from->cubin, from->size);
  memcpy(block + from->size, from->family, name);
  *to = *from;
  to->cubin = block;
  to->family = block + from->size;
  return true;
}

/* For the thread, which keeps them with its own. */
static dil_status note_first(late *l, const gpu_codes *codes) {
  bool whole = true;
  pthread_mutex_lock(&l->lock);
  for (int32_t i = 0; i < codes->count && whole; i++) {
    whole = copy_code(&codes->code[i], &l->first.code[i]);
    l->first.member[i] = codes->member[i];
    l->first.count += whole;
  }
  l->had_first = whole;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  return whole ? DIL_OK : dil_fail(DIL_MEMORY, "no memory for a kernel's code");
}

/* The codes that do not come late, kept by themselves. */
static dil_status make_first(late *l, bool beside, gpu_codes *codes) {
  bool found;
  gpu_request request = l->request;
  request.apart = true;
  request.stop = NULL;
  if (beside) start(l);
  dil_status status = keep_find_codes(l->c, &request, codes, &found);
  if (!status && !found) status = keep_make_codes(l->c, &request, codes);
  if (status) return status;
  status = note_first(l, codes);
  if (!status && !start(l)) run(l); /* here and now */
  while (status && codes->count > 0) free(codes->code[--codes->count].cubin);
  return status;
}

dil_status late_begin(const compilation *c, const gpu_request *request,
                      gpu_codes *codes, late **out) {
  bool found, beside;
  const gpu_backend *gpu;
  *out = NULL;
  dil_status status = keep_find_codes(c, request, codes, &found);
  if (status || found) return status;
  status = gpu_compiler_open(&gpu);
  if (status) return status;
  uint32_t members = gpu->apart(request, &beside);
  if (!members) return keep_make_codes(c, request, codes);
  late *l = late_new(c, gpu, request, members);
  if (!l) return dil_fail(DIL_MEMORY, "no memory for compilers");
  status = make_first(l, beside, codes);
  if (status) late_end(l);
  else *out = l;
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
  const slot *s = &l->slot[l->first.member[index]];
  while (!s->ended && !l->over) pthread_cond_wait(&l->changed, &l->lock);
  dil_status status =
      s->ended ? take(s, code)
               : dil_fail(DIL_ENVIRONMENT, "the process ends before this code "
                          "is compiled");
  pthread_mutex_unlock(&l->lock);
  return status;
}
