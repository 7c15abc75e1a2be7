/* real_thread.h - the C library's own pthread_create, for programs that put one of
 * theirs in its place. */
#ifndef DIL_TESTS_SUPPORT_REAL_THREAD_H
#define DIL_TESTS_SUPPORT_REAL_THREAD_H

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static inline int real_pthread_create(pthread_t *thread,
                                      const pthread_attr_t *how,
                                      void *(*begin)(void *), void *context) {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  void *real = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&create, &real, sizeof create);
  return create(thread, how, begin, context);
}

#endif
