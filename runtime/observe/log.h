/* log.h - what the library has to say beside the statuses that it returns.
 *
 * The library itself prints nothing unless DIL_LOG asks for it: a host that
 * wants to hear sets a hook. */
#ifndef DIL_RUNTIME_OBSERVE_LOG_H
#define DIL_RUNTIME_OBSERVE_LOG_H

#include "runtime/dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default) /* the parts of dil share it */

/* A context's own hook, which messages go to as well. The text is one line
 * without an end. Any thread may call it. */
typedef struct log_target {
  dil_log_hook hook;
  void *user;
  int32_t level;       /* DIL_LOG_...: this and below; 0: nothing */
} log_target;

/* Reads DIL_LOG, once a process: a level, "error", "warning", "info" or
 * "debug", and after a colon the file to append to (%p and %h as in
 * environment_path), else standard error. DIL_USAGE or DIL_ENVIRONMENT when
 * that cannot be followed, again at each call. */
dil_status log_open(void);

/* The most talkative level that DIL_LOG asks for. */
extern _Atomic int32_t dil_log_level;
static inline bool log_hears(const log_target *target, int32_t level) {
  return __builtin_expect(level <= dil_log_level, 0) ||
         (target && level <= target->level);
}
void dil_log_write(const log_target *target, int32_t level, const char *format,
                   ...) __attribute__((format(printf, 3, 4)));
/* The hook of a context. */
const log_target *dil_log_of(const dil_context *context);

/* target NULL: DIL_LOG alone hears of it. */
#define LOG(target, level, ...)                      \
  do {                                               \
    if (log_hears((target), (level)))                \
      dil_log_write((target), (level), __VA_ARGS__); \
  } while (0)

#pragma GCC visibility pop

#endif
