/* codes.h - the codes of a kernel on a device: loaded when the kernel is made,
 * or when a call first needs a code that was still being compiled then. All
 * facts of such a code but its cubin are known, so calls can choose it. */
#ifndef DIL_RUNTIME_CUDA_CODES_H
#define DIL_RUNTIME_CUDA_CODES_H

#include "device.h"
#include "runtime/tables/documents_table.h"
#include <pthread.h>
#include <stdatomic.h>

enum { CODES_MAX = 16 };

/* The family "peak" measures the device; no pass takes it. */
extern const cuda_family cuda_peak;
/* Entries of the family "rows", which packs, spreads and fills rows for ranks
 * of a ring; no pass takes it. */
enum { ROWS_MOVE, ROWS_RANDOM };

typedef struct cuda_codes {
  dil_cuda *device;
  const dil_table *table;
  documents_table documents; /* filled where some code is one of it */
  dil_more more;       /* makes a missing cubin; NULL: none is missing */
  const void *context; /* of `more` */
  int32_t count;
  /* The codes that calls choose from. A promised code, which is still being
   * compiled, has no library; the loaded code replaces it once. NULL: the
   * compiler refused the code. */
  cuda_code *_Atomic now[CODES_MAX];
  cuda_code loaded[CODES_MAX], promised[CODES_MAX];
  pthread_mutex_t lock; /* held while a promised code is loaded */
} cuda_codes;

/* Loads the codes that have their cubin. The caller closes the codes after a
 * failure, too. Without a device no code is loaded, and the codes serve
 * estimates alone. */
dil_status codes_open(cuda_codes *codes, dil_cuda *device,
                      const dil_table *table, const dil_cuda_code *from,
                      int32_t count, dil_more more, const void *context);
void codes_close(cuda_codes *codes);
/* Finds the first code that runs a pass in this call; NULL: no code does. The
 * code may be promised only. */
const cuda_code *codes_choose(const cuda_codes *codes, const cuda_run *r,
                              int32_t pass);
/* Does the same, and waits until that code is loaded. */
dil_status codes_take(cuda_codes *codes, const cuda_run *r, int32_t pass,
                      const cuda_code **code);
/* The general code that makes some gradient (GRADIENT_...). It may be promised
 * only, unless the call `waits` for it. DIL_UNSUPPORTED: there is none. */
dil_status codes_take_gradient(cuda_codes *codes, int32_t makes, bool waits,
                               const cuda_code **code);
/* Returns whether a code is promised only, and cannot be launched. */
bool code_is_promised(const cuda_code *code);
/* Returns whether a code is one of the plan without its mask, and takes no pass itself. */
bool code_is_of_documents(const cuda_code *code);
/* Kernels of gradients: for every call; the fast ones of a chip, of neighbouring rows,
 * of gathered ones, of those that lists of blocks name, of patches of a grid, or of
 * documents that a mask keeps apart. */
typedef enum gradient_kind {
  GRADIENT_GENERAL,
  GRADIENT_FAST,
  GRADIENT_GATHERED,
  GRADIENT_LISTED,
  GRADIENT_PATCHED,
  GRADIENT_OF_DOCUMENTS
} gradient_kind;
/* Finds the code of a kind of fast kernels for it, with or without dropout; NULL:
 * there is none. */
dil_status codes_take_fast_gradient(cuda_codes *codes, int32_t makes,
                                    gradient_kind kind, bool drop,
                                    const cuda_code **code);
/* The code that runs documents forward which a mask keeps apart; NULL: there is none. */
const cuda_code *codes_of_documents(const cuda_codes *codes);
/* Waits for the last code. It has the kernels that compute bounds and that
 * begin and end states. */
dil_status codes_take_last(cuda_codes *codes, const cuda_code **code);

#endif
