/* session_library.h - a kernel of a library of `dil build`, which `run` calls
 * as any program does: by the name of its function. */
#ifndef DIL_COMPILER_CLI_SESSION_LIBRARY_H
#define DIL_COMPILER_CLI_SESSION_LIBRARY_H

#include "call_setup.h"
#include "compiler/library/library.h"

typedef struct session_library {
  const char *path;
  json_t *described;
  library_facts about;
  library_kernel_facts facts;
  void *file;            /* of dlopen */
  void *function;
  void *packed;          /* the function of packed calls */
  void *context;         /* the function's first argument */
  bool own_context;      /* the library made the context and frees it */
  const char *isa;       /* of the processor's code that runs; NULL: none */
  DLTensor tensor[9 + 5 + 3 * DIL_INPUT_MAX];
  int32_t tensor_count;
  int64_t offsets_shape, pages_shape[2];
  uint64_t selection[DIL_INPUT_MAX]; /* pointers to lists of chosen blocks */
  uint64_t word[DIL_WORD_INPUTS + DIL_INPUT_MAX + 3];
  void *backward; /* the function of gradients; NULL: there is none */
  uint64_t gradient_word[DIL_GRADIENT_INPUTS + DIL_INPUT_MAX];
} session_library;

/* Reads the description and the pattern in it, and runs no code of the library.
 * session_library_free is due in any case. */
dil_status session_library_read(session_library *t, const options *o,
                                compilation *c);
/* Loads the library. `context` is this program's, of the device; a standalone
 * library makes one of its own for the processor. */
dil_status session_library_load(session_library *t, const options *o,
                                dil_context *context);
/* Makes the function's arguments from a call of the pattern, whose memory is on
 * `device`. */
void session_library_set_call(session_library *t, const pattern *p,
                              const dil_call *call, DLDevice device);
dil_status session_library_run(session_library *t);
/* The same for gradients, after session_library_set_call. DIL_USAGE: the
 * library was built without. */
dil_status session_library_set_gradients(session_library *t,
                                         const dil_backward_call *call,
                                         DLDevice device);
dil_status session_library_run_gradients(session_library *t);
void session_library_free(session_library *t);

#endif
