/* cache_box.h - a cache in a folder of its own for each test of its suites. */
#ifndef DIL_TESTS_SUPPORT_CACHE_BOX_H
#define DIL_TESTS_SUPPORT_CACHE_BOX_H

#include "runtime/cache/cache.h"
#include <check.h>
#include <limits.h>

extern char box_folder[64]; /* the cache's; not made yet */
extern char box_said[4096]; /* the last warning */
extern int box_warnings;
/* Called before a test ends for what it has found; NULL: nothing is. */
extern void (*box_before_abort)(void);

void box_open(void);
void box_close(void);
void box_command(const char *format, const char *path); /* must succeed */

cache_options box_options(cache_mode mode);
dil_cache *box_cache(cache_mode mode);
cache_value box_value(const char *text);
void box_put(dil_cache *c, const char *key, const char *text);
/* Whether the cache has just this; anything else that it has is a failure. */
bool box_has(dil_cache *c, const char *key, const char *text);
/* The same by a process that has nothing in memory. */
void box_disk_put(const char *key, const char *text);
bool box_disk_has(const char *key, const char *text);

const char *box_path(const char *key); /* of its file; until the next call */
size_t box_read(const char *path, char *bytes, size_t room);
void box_write(const char *path, const char *bytes, size_t size);
int box_count(const char *part); /* files with it in their names */

/* A suite's cases, each test with a folder; runs them: main's result. */
typedef struct box_case {
  const char *name;
  const TTest *const *tests; /* NULL ends */
} box_case;
int box_run(const char *name, const box_case *cases);

#endif
