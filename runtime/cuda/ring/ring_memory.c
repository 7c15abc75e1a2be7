/* ring_memory.c - memory of a rank; see ring_memory.h. In: sizes. Out: blocks,
 * which stay allocated, so that only the first run asks the driver. */
#include "ring_memory.h"
#include "runtime/base/status.h"

/* The smallest free block that fits and is at most about twice as large. */
static ring_block *memory_find_block(ring_memory *m, int64_t bytes,
                                     bool rows) {
  ring_block *best = NULL;
  for (int32_t i = 0; i < m->count; i++) {
    ring_block *b = &m->block[i];
    bool fits = !b->used && b->rows == rows && b->bytes >= bytes &&
                b->bytes / 2 <= bytes;
    if (fits && (!best || b->bytes < best->bytes)) best = b;
  }
  return best;
}

static dil_status memory_new_block(ring_memory *m, int64_t bytes, bool rows,
                                   ring_block **made) {
  enum { UNTIMED = 2 };
  ring_block *b = &m->block[m->count];
  if (m->count == RING_BLOCKS)
    return dil_fail(DIL_MEMORY, "more than %d pieces of memory of a rank",
                    RING_BLOCKS);
  *b = (ring_block){.bytes = bytes, .rows = rows};
  cu_result result = m->driver->take(&b->memory, (size_t)bytes);
  if (result) return cuda_check(m->driver, result, "take memory of a rank");
  m->count++;
  for (int32_t i = 0; i < RING_STREAMS && !result; i++)
    result = m->driver->event_new(&b->at[i], UNTIMED);
  *made = b;
  return cuda_check(m->driver, result, "make an event");
}

/* Makes each stream wait for the other streams' last uses of a block. */
static dil_status memory_follow_block(const ring_memory *m,
                                      const ring_block *b) {
  cu_result result = 0;
  for (int32_t i = 0; i < RING_STREAMS; i++)
    for (int32_t n = 0; n < RING_STREAMS && !result; n++)
      if (i != n) result = m->driver->stream_wait(m->stream[i], b->at[n], 0);
  return cuda_check(m->driver, result, "have a stream wait");
}

dil_status memory_take(ring_memory *m, int64_t bytes, ring_content content,
                       void **memory) {
  bool rows = content == RING_OLD_ROWS;
  ring_block *b = memory_find_block(m, bytes, rows);
  bool zero = content == RING_ZEROS || (rows && !b);
  dil_status status =
      b ? memory_follow_block(m, b) : memory_new_block(m, bytes, rows, &b);
  if (!status && zero)
    status = cuda_check(
        m->driver,
        m->driver->fill_ordered(b->memory, 0, (size_t)bytes, m->stream[0]),
        "clear memory of a rank");
  if (status) return status;
  b->used = true;
  *memory = (void *)(uintptr_t)b->memory;
  return DIL_OK;
}

void memory_give(ring_memory *m, void *memory) {
  for (int32_t i = 0; i < m->count; i++) {
    ring_block *b = &m->block[i];
    if (b->memory != (cu_pointer)(uintptr_t)memory) continue;
    bool good = true;
    for (int32_t n = 0; n < RING_STREAMS && good; n++)
      good = !m->driver->event_record(b->at[n], m->stream[n]);
    b->used = !good; /* without its events, a block is never lent again */
  }
}

int64_t memory_bytes(const ring_memory *m) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < m->count; i++) bytes += m->block[i].bytes;
  return bytes;
}

void memory_close(ring_memory *m) {
  for (int32_t i = 0; i < m->count; i++) {
    ring_block *b = &m->block[i];
    m->driver->give(b->memory);
    for (int32_t n = 0; n < RING_STREAMS; n++)
      if (b->at[n]) m->driver->event_free(b->at[n]);
  }
}
