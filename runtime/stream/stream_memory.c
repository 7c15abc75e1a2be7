/* stream_memory.c - what a streamed run has in memory at a time: two buffers of
 * each kind, the state, and on a device of its own the inputs. In: a stream
 * with its cuts. Out: memory of its device. */
#include "stream_work.h"

static dil_status work_take_memory(stream_work *w, int64_t bytes,
                                   void **memory) {
  return w->device->calls->take(w->device, bytes, RING_ZEROS, memory);
}

static dil_status take_outputs(stream_work *w, int64_t asking) {
  const dil_stream *s = w->stream;
  const dil_table *t = s->shape.table;
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  dil_status status = DIL_OK;
  w->buffers_output = s->transfer || s->call->o.dtype != t->dtype;
  for (int32_t i = 0; i < 2 && !status && w->buffers_output; i++) {
    void **memory = w->buffer[OUTPUTS][i].memory;
    status = work_take_memory(w, asking * t->value_dim * size, &memory[0]);
    if (!status && s->transfer)
      status = work_take_memory(w, asking * (int64_t)sizeof(float), &memory[1]);
  }
  return status;
}

/* The device's own copies. */
static dil_status take_inputs(stream_work *w) {
  const dil_call *c = w->stream->call;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < c->input_count && !status; i++) {
    const dil_tensor *in = &c->inputs[i];
    int64_t bytes = dil_tensor_count(in) * (int64_t)dil_dtype_size(in->dtype);
    w->inputs[i] = dil_tensor_make(NULL, in->dtype, in->rank, in->shape);
    /* written at once: nothing may clear it later */
    status = w->device->calls->take(w->device, bytes, RING_ANY,
                                    &w->inputs[i].data);
    if (!status)
      status = w->device->calls->write(w->device, w->inputs[i].data, in->data,
                                       bytes);
  }
  return status;
}

/* Rows that are not brought are never seen; they stay finite. */
dil_status work_take(stream_work *w) {
  const dil_stream *s = w->stream;
  const dil_table *t = s->shape.table;
  stream_chunks c = s->shape.chunks;
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  int64_t asking = c.batch * c.queries * t->heads;
  int64_t keys = c.batch * c.keys * t->kv_heads * size;
  int64_t state = w->device->calls->states(w->device) * asking *
                  (int64_t)sizeof(float);
  void *o = NULL, *lse = NULL;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 2 && !status; i++) {
    void **k = w->buffer[KEYS][i].memory;
    status = work_take_memory(w, asking * t->head_dim * size,
                              &w->buffer[QUERIES][i].memory[0]);
    if (!status) status = work_take_memory(w, keys * t->head_dim, &k[0]);
    if (!status) status = work_take_memory(w, keys * t->value_dim, &k[1]);
  }
  if (!status) status = work_take_memory(w, state * t->value_dim, &o);
  if (!status) status = work_take_memory(w, state, &lse);
  w->o_state = o;
  w->lse_state = lse;
  w->states = state / (int64_t)sizeof(float);
  if (!status && s->transfer)
    status =
        work_take_memory(w, keys * (t->head_dim + t->value_dim), &w->message);
  if (!status) status = take_outputs(w, asking);
  return status || !s->transfer ? status : take_inputs(w);
}

void work_give(stream_work *w) {
  enum { OTHERS = 3 };
  void *const others[OTHERS] = {w->o_state, w->lse_state, w->message};
  void (*give)(ring_device *, void *) = w->device->calls->give;
  for (int32_t i = 0; i < OTHERS; i++)
    if (others[i]) give(w->device, others[i]);
  for (int32_t i = 0; i < 2 * KINDS; i++)
    for (int32_t n = 0; n < 2; n++) {
      void *memory = w->buffer[i / 2][i % 2].memory[n];
      if (memory) give(w->device, memory);
    }
  for (int32_t i = 0; i < DIL_INPUT_MAX; i++)
    if (w->inputs[i].data) give(w->device, w->inputs[i].data);
}
