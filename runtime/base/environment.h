/* environment.h - what the environment says to the run time. */
#ifndef DIL_RUNTIME_BASE_ENVIRONMENT_H
#define DIL_RUNTIME_BASE_ENVIRONMENT_H

#include "runtime/dilrt.h"

/* The value of a variable; NULL when it is unset, empty, or this program runs
 * with another user's rights. */
const char *environment_text(const char *name);
typedef enum environment_number {
  NUMBER_WHOLE,  /* it is one */
  NUMBER_WRONG,  /* the text is no number */
  NUMBER_BROKEN, /* it has a fraction */
  NUMBER_LARGE,  /* it needs more than 64 bits */
} environment_number;
/* A whole number as people write it: "4096", "1e6", and with k, M, G or T,
 * which are powers of 1024, "64k" or "1.5G". The letters may be of either case.
 */
environment_number environment_read_number(const char *text, uint64_t *number);
/* Reads such a number of bytes from a variable. `*bytes` stays as it is when the
 * variable is not set. DIL_USAGE when it is something else. */
dil_status environment_bytes(const char *name, int64_t *bytes);
/* The same of a text that was given otherwise; `what` names it. */
dil_status environment_read_bytes(const char *what, const char *text,
                              int64_t *bytes);
/* A number of 0..max, likewise. */
dil_status environment_count(const char *name, int64_t max, int64_t *count);
/* The place of `text` among `count` words. DIL_USAGE with all words when it is
 * none of them. */
dil_status environment_word(const char *name, const char *text,
                        const char *const *words, int32_t count,
                        int32_t *index);
/* A file's path with %p as the process, %h as the host and %r as the rank in a
 * job (0 outside of one), so that processes that share a setting do not share
 * the file. DIL_USAGE when it is too long. */
dil_status environment_path(const char *name, const char *text, char *path,
                        size_t size);

#endif
