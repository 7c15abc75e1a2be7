/* session_backward.h - gradients of a session's call, for `run`, `bench` and
 * `tune`: the call runs forward once, then backward as often as is asked. */
#ifndef DIL_COMPILER_CLI_SESSION_BACKWARD_H
#define DIL_COMPILER_CLI_SESSION_BACKWARD_H

#include "command.h"
#include "runtime/call.h"

struct session;

/* Opens the way that the session's own names as its `forward`, runs it once,
 * and makes the call for gradients of its o and lse. */
dil_status session_backward_open(struct session *s, const options *o,
                                 int64_t seq);
/* The same for the ranks of a topology, whose way makes the call. */
dil_status session_backward_open_ranks(struct session *s, const options *o,
                                       int64_t seq);
/* One run of a kernel, and of the oracle. */
dil_status session_backward_run(struct session *s, double *seconds);
dil_status session_backward_oracle(struct session *s, double *seconds);
/* session_backward_open and a run for a kernel of a library. */
dil_status session_backward_open_library(struct session *s, const options *o,
                                         int64_t seq);
dil_status session_backward_library(struct session *s, double *seconds);
/* The call for gradients where the session runs. */
const dil_backward_call *session_backward_call(const struct session *s);
/* Brings o, lse and the gradients to the host. */
dil_status session_backward_collect(struct session *s);
void session_backward_free(struct session *s);

#endif
