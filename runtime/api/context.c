/* context.c - a device with its threads, its memory and the host's hooks.
 *
 * In: options. Out: what programs and kernels share. It is counted: the host
 * has one use of it, each kernel and program another. */
#include "context.h"
#include "usage.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/observe/observe.h"
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------- */

static const device_kind *const kinds[] = {&device_cpu, &device_cuda};

/* "cuda:1" is a kind and a number. */
static dil_status read_device(const char *text, dil_context *c) {
  if (!text) text = "cpu";
  size_t length = strcspn(text, ":");
  const char *number = text[length] ? text + length + 1 : "0";
  char *end = (char *)number;
  long index = *number >= '0' && *number <= '9' ? strtol(number, &end, 10) : -1;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strlen(kinds[i]->name) == length &&
        !strncmp(kinds[i]->name, text, length))
      c->kind = kinds[i];
  if (!c->kind)
    return dil_fail(DIL_USAGE, "there is no device '%.40s': it is cpu, cuda or "
                    "cuda:N", text);
  if (*end || index < 0 || index > 4095 || (c->kind == &device_cpu && index))
    return dil_fail(DIL_USAGE, "device '%.40s' has no such number", text);
  c->index = (int32_t)index;
  bool only = c->kind == &device_cpu;
  snprintf(c->device, sizeof c->device, only ? "%s" : "%s:%d", c->kind->name,
           (int)index);
  return DIL_OK;
}

static dil_status take_hooks(const dil_context_options *o, dil_context *c) {
  if (!o->allocate != !o->release)
    return dil_fail(DIL_USAGE, "a context takes both of allocate and release, "
                    "or neither");
  if (o->log) c->log = (log_target){o->log, o->log_user, o->log_level};
  pool_options wanted;
  dil_status status = dil_pool_options_read(&wanted);
  if (status) return status;
  wanted.log = c->log;
  const pool_host host = {o->allocate, o->release, o->memory_user};
  c->pool = pool_new_host(&host, &wanted);
  return c->pool ? DIL_OK : DIL_MEMORY;
}

static void leave_memory(void *memory) { (void)memory; }

/* The memory itself is still the host's. */
static void taken_free(dil_context *c) {
  tdestroy(c->taken, leave_memory);
  pthread_mutex_destroy(&c->taken_lock);
}

static void context_destroy(dil_context *c) {
  bool alive = c->process == process_own();
  /* In a child the pool's lock may be held by a thread that is not there. */
  if (c->kind && alive) c->kind->close(c);
  if (c->cache.free) c->cache.free(c->cache.cache);
  pthread_mutex_destroy(&c->cache.lock);
  if (alive) dil_pool_free(c->pool);
  else dil_threads_free(c->threads);
  if (alive) pthread_mutex_destroy(&c->attached_lock);
  if (alive) taken_free(c);
  if (dil_observe_flush())
    LOG(&c->log, DIL_LOG_WARNING, "%s", dil_last_error());
  free(c);
}

static dil_status open_context(const dil_context_options *options,
                               dil_context **context) {
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  dil_status status = dil_usage_given("place for the context", context, NULL);
  if (status) return status;
  *context = NULL;
  if (options)
    status = dil_struct_read(&o, sizeof o, options, "dil_context_options");
  if (!status) status = dil_observe_open();
  if (status) return status;
  dil_context *c = calloc(1, sizeof *c);
  if (!c) return dil_fail(DIL_MEMORY, "no memory for a context");
  c->process = process_own();
  pthread_mutex_init(&c->cache.lock, NULL);
  atomic_store(&c->uses, 1);
  pthread_mutex_init(&c->attached_lock, NULL);
  pthread_mutex_init(&c->taken_lock, NULL);
  status = read_device(o.device, c);
  if (!status) status = take_hooks(&o, c);
  if (!status) status = c->kind->open(c, &o);
  if (status) dil_context_drop(c);
  else *context = c;
  return status;
}

dil_status dil_context_new(const dil_context_options *options,
                           dil_context **context) {
  dil_call_begin();
  return dil_call_end(open_context(options, context));
}

/* Each of them keeps the context: they end with the host's own use of it. */
static void detach_all(dil_context *c) {
  for (attached *first; (first = atomic_load(&c->attached));) {
    atomic_store(&c->attached, first->next);
    dil_kernel_free(first->kernel);
    free(first);
  }
}

void dil_context_free(dil_context *context) {
  dil_call_begin();
  if (context) detach_all(context);
  dil_context_drop(context);
  dil_call_end(DIL_OK);
}

dil_context *dil_context_keep(dil_context *context) {
  atomic_fetch_add(&context->uses, 1);
  return context;
}

void dil_context_drop(dil_context *context) {
  if (context && atomic_fetch_sub(&context->uses, 1) == 1)
    context_destroy(context);
}

dil_status dil_context_check(const dil_context *context) {
  dil_status status = dil_usage_given("context", context, NULL);
  if (status || context->process == process_own()) return status;
  return dil_fail(DIL_USAGE, "this context was made before a fork; make a new "
                  "one in the child");
}

/* ---- what it is ---------------------------------------------------------- */

const char *dil_context_device(const dil_context *context) {
  return context ? context->device : "";
}

void dil_context_because(dil_context *context, const char *reason) {
  snprintf(context->reason, sizeof context->reason, "%s", reason);
  LOG(&context->log, DIL_LOG_INFO, "device %s: %s", context->device, reason);
}

int32_t dil_context_threads(const dil_context *context) {
  bool any = context && context->threads;
  return any ? dil_threads_count(context->threads) : 0;
}

dil_threads *dil_context_workers(const dil_context *context) {
  return context->threads;
}

int32_t dil_context_arch(const dil_context *context) {
  return context->gpu ? context->cuda->facts(context->gpu)->arch : 0;
}

const dil_cuda_facts *dil_context_facts(const dil_context *context) {
  return context->gpu ? context->cuda->facts(context->gpu) : NULL;
}

const log_target *dil_log_of(const dil_context *context) {
  return &context->log;
}

void dil_context_compiled(dil_context *context, double opening,
                          double seconds) {
  atomic_fetch_add(&context->compiles, 1);
  atomic_fetch_add(&context->open_nanoseconds, (long long)(opening * 1e9));
  atomic_fetch_add(&context->compile_nanoseconds, (long long)(seconds * 1e9));
}

dil_status dil_context_stats(const dil_context *context, dil_stats *stats) {
  dil_stats now;
  dil_status status = dil_context_check(context);
  if (!status) status = dil_struct_read(&now, sizeof now, stats, "dil_stats");
  if (status) return status;
  now.kernels = atomic_load(&context->kernels);
  now.calls = atomic_load(&context->calls);
  now.compiles = atomic_load(&context->compiles);
  now.compile_seconds =
      1e-9 * (double)atomic_load(&context->compile_nanoseconds);
  now.open_seconds = 1e-9 * (double)atomic_load(&context->open_nanoseconds);
  pool_stats scratch;
  pool *of_gpu = context->gpu ? context->cuda->pool(context->gpu) : NULL;
  dil_pool_read_stats(of_gpu ? of_gpu : context->pool, &scratch);
  now.pool_bytes = scratch.held;
  now.pool_in_use = scratch.in_use;
  now.pool_peak = scratch.peak;
  now.pool_takes = scratch.takes;
  now.pool_fresh = scratch.fresh;
  now.pool_cached = scratch.cached;
  now.pool_reuse_rate = pool_reuse_rate(&scratch);
  now.pool_fragmentation = pool_fragmentation(&scratch);
  pthread_mutex_t *lock = (pthread_mutex_t *)&context->cache.lock;
  pthread_mutex_lock(lock);
  if (context->cache.stats) context->cache.stats(context->cache.cache, &now);
  pthread_mutex_unlock(lock);
  dil_struct_write(stats, &now, sizeof now);
  return DIL_OK;
}

/* ---- its memory ---------------------------------------------------------- */

dil_status dil_context_wait(dil_context *context, void *stream) {
  dil_call_begin();
  dil_status status = dil_context_check(context);
  if (!status) status = context->kind->wait(context, stream);
  return dil_call_end(status);
}

/* Addresses that dil_memory_take handed out and nobody gave back. */
static int by_address(const void *a, const void *b) {
  return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

static dil_status taken_add(dil_context *c, void *memory) {
  pthread_mutex_lock(&c->taken_lock);
  bool added = tsearch(memory, &c->taken, by_address) != NULL;
  pthread_mutex_unlock(&c->taken_lock);
  return added ? DIL_OK : dil_fail(DIL_MEMORY, "no memory for a block's entry");
}

static dil_status taken_remove(dil_context *c, const void *memory) {
  pthread_mutex_lock(&c->taken_lock);
  bool found = tdelete(memory, &c->taken, by_address) != NULL;
  pthread_mutex_unlock(&c->taken_lock);
  if (found) return DIL_OK;
  return dil_fail(DIL_USAGE, "memory at %p was given back and is none that "
                  "this context has handed out", memory);
}

static dil_status context_take(dil_context *c, int64_t bytes, void **memory) {
  dil_status status = c->kind->take(c, bytes, memory);
  if (status) return status;
  status = taken_add(c, *memory);
  if (!status) return DIL_OK;
  c->kind->give(c, *memory);
  *memory = NULL;
  return status;
}

dil_status dil_memory_take(dil_context *context, int64_t bytes, void **memory) {
  dil_call_begin();
  dil_status status = dil_usage_given("place for the memory", memory, NULL);
  if (!status) *memory = NULL;
  if (!status) status = dil_context_check(context);
  if (!status) status = dil_usage_bytes("memory", NULL, bytes);
  if (!status) status = context_take(context, bytes, memory);
  return dil_call_end(status);
}

static dil_status context_give(dil_context *c, void *memory) {
  dil_status status = dil_context_check(c);
  if (status) return status;
  status = taken_remove(c, memory);
  if (status) LOG(&c->log, DIL_LOG_ERROR, "%s", dil_last_error());
  else c->kind->give(c, memory);
  return status;
}

void dil_memory_give(dil_context *context, void *memory) {
  if (!memory) return;
  dil_call_begin();
  dil_call_end(context_give(context, memory));
}

static dil_status check_copy(const dil_context *c, const void *device,
                             const void *host, int64_t bytes) {
  dil_status status = dil_context_check(c);
  if (status || !bytes) return status;
  status = dil_usage_given("device memory", device, "host memory", host, NULL);
  if (!status) status = dil_usage_bytes("device memory", device, bytes);
  if (!status) status = dil_usage_bytes("host memory", host, bytes);
  return status;
}

dil_status dil_memory_write(dil_context *context, void *device,
                            const void *host, int64_t bytes) {
  dil_call_begin();
  dil_status status = check_copy(context, device, host, bytes);
  if (!status && bytes)
    status = context->kind->copy(context, device, host, bytes, true);
  return dil_call_end(status);
}

dil_status dil_memory_read(dil_context *context, void *host,
                           const void *device, int64_t bytes) {
  dil_call_begin();
  dil_status status = check_copy(context, device, host, bytes);
  if (!status && bytes)
    status = context->kind->copy(context, host, device, bytes, false);
  return dil_call_end(status);
}
