/* session_stream_gpu.c - a session that streams chunks to a GPU: one rank, and
 * a transfer, which copies between it and the host. In: a compilation, a call
 * of the host. Out: the stream that session_stream.c runs. */
#include "session_cuda.h"
#include "session_stream.h"
#include "runtime/api/device_cuda.h"
#include <stdlib.h>

dil_status session_stream_gpu(session_stream *t, compilation *c,
                              const call_setup *b) {
  const options *o = b->options;
  t->gpu.first = (int32_t)o->device.number;
  t->gpu.devices = 1;
  dil_status status = session_cuda_context(o, &t->context);
  if (!status) status = dil_cuda_module_open(&t->gpu.cuda);
  if (!status) status = session_cuda_codes(c, t->context, &t->code, &t->gpu);
  if (!status)
    status = resident_open(&t->gpu, t->code.source.table, 0, &t->rank);
  if (status) return status;
  t->stream.device = t->rank.device;
  status = t->gpu.cuda->transfer(t->rank.gpu, t->rank.device, &t->gpu.rows,
                                 &t->stream.transfer);
  if (status) return status;
  return session_stream_plan(b, t->code.source.table, 0,
                             t->gpu.cuda->facts(t->rank.gpu)->memory,
                             &t->stream.shape);
}

void session_stream_gpu_free(session_stream *t) {
  device_transfer_free(t->stream.transfer);
  resident_close(&t->rank);
  free(t->gpu.rows.cubin);
  dil_context_free(t->context);
}
