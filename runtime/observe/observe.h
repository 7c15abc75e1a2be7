/* observe.h - log, trace and metrics as one: opened at the start, written at
 * the end. */
#ifndef DIL_RUNTIME_OBSERVE_OBSERVE_H
#define DIL_RUNTIME_OBSERVE_OBSERVE_H

#include "runtime/dilrt.h"

/* Starts what DIL_LOG, DIL_TRACE and DIL_METRICS ask for, once a process. The
 * first that cannot be followed, again at each call. */
DIL_API dil_status dil_observe_open(void);
/* Writes what has been gathered. DIL_ENVIRONMENT: it cannot be written. */
DIL_API dil_status dil_observe_flush(void);

#endif
