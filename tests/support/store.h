/* store.h - what several tests would make alike is made once: machine code by
 * its LLVM IR, cubins by their source. The maker must be a pure function of the
 * key. DIL_TEST_STORE names the folder; run.sh makes one for each of its runs,
 * and without it every test makes its own. */
#ifndef DIL_TESTS_SUPPORT_STORE_H
#define DIL_TESTS_SUPPORT_STORE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct stored {
  void *bytes; /* malloced; the caller's */
  size_t size;
} stored;

bool store_is_open(void);
/* The value put under a key of this kind; false: none. Any thread or process
 * may ask and put at the same time. */
bool store_find(const char *kind, const void *key, size_t key_size,
                stored *found);
void store_put(const char *kind, const void *key, size_t key_size,
               const void *bytes, size_t size);

#endif
