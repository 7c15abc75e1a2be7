/* codes.h - the codes of a kernel on a device: loaded when the kernel is made,
 * or when a call first needs one that was still being compiled then. What is
 * known of such a code, all but its cubin, is enough to choose among them. */
#ifndef DIL_RUNTIME_CUDA_CODES_H
#define DIL_RUNTIME_CUDA_CODES_H

#include "device.h"
#include <pthread.h>
#include <stdatomic.h>

enum { CODES_MAX = 16 };

typedef struct cuda_codes {
  dil_cuda *device;
  const dil_table *table;
  dil_more more;           /* NULL: all are there */
  const void *context;     /* of it */
  int32_t count;
  /* Those that calls choose from. A code that is to come stands here without
   * its library, and gives way to the loaded one, once; NULL: the compiler
   * refused it. */
  cuda_code *_Atomic now[CODES_MAX];
  cuda_code loaded[CODES_MAX], promised[CODES_MAX];
  pthread_mutex_t lock;    /* of the loading of one that was to come */
} cuda_codes;

/* Loads the codes that have their cubin. A failure leaves codes half made;
 * close them too. Without a device it loads nothing, and calls can only be
 * foreseen. */
dil_status codes_open(cuda_codes *codes, dil_cuda *device,
                      const dil_table *table, const dil_cuda_code *from,
                      int32_t count, dil_more more, const void *context);
void codes_close(cuda_codes *codes);
/* The first code that runs a pass in this call; NULL: none does. It may be to
 * come. */
const cuda_code *codes_choose(const cuda_codes *codes, const cuda_run *r,
                              int32_t pass);
/* The same, there: waits for it. */
dil_status codes_take(cuda_codes *codes, const cuda_run *r, int32_t pass,
                      const cuda_code **code);
/* The code that makes some gradient (GRADIENT_...), there. DIL_UNSUPPORTED:
 * there is none. */
dil_status codes_take_gradient(cuda_codes *codes, int32_t makes,
                               const cuda_code **code);
/* The last one, there: it knows bounds, and how states begin and end. */
dil_status codes_take_last(cuda_codes *codes, const cuda_code **code);

#endif
