/* command_check.c - `dil check FILE...`: diagnostics and nothing else. */
#include "command.h"

static dil_status check_program_file(const options *o, int32_t index) {
  arena *a = arena_new();
  compilation c = {.arena = a, .diag = diag_new(a)};
  driver_request r = command_request(o, index);
  dil_status status = driver_check(&r, &c);
  message_compiled(o, &c, status);
  arena_free(a);
  return status;
}

/* The first failure's status; every file is looked at. */
dil_status command_check(arena *a, const options *o) {
  (void)a;
  dil_status first = DIL_OK;
  for (int32_t i = 0; i < o->file_count; i++) {
    dil_status status = check_program_file(o, i);
    if (!first) first = status;
  }
  return first;
}
