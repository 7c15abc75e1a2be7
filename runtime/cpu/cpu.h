/* cpu.h - a plan on the processor: its machine code made on demand, and run. */
#ifndef DIL_RUNTIME_CPU_CPU_H
#define DIL_RUNTIME_CPU_CPU_H

#include "runtime/call.h"
#include "runtime/code.h"
#include "runtime/pool/pool.h"
#include "runtime/pool/threads.h"
#include "runtime/shard.h"

typedef struct cpu_kernel cpu_kernel;

/* The kernel borrows table, with all in it, and context: both outlive it. */
dil_status cpu_kernel_new(const dil_table *table, dil_make make, void *context,
                          cpu_kernel **kernel);
/* A kernel of code that is there already; it is checked and copied. */
dil_status cpu_kernel_take(const dil_table *table,
                           const dil_code *const ready[DIL_VARIANT_COUNT],
                           cpu_kernel **kernel);
void cpu_kernel_free(cpu_kernel *kernel);
/* Writes o and lse; scratch memory comes from `scratch`. Thread-safe. */
dil_status cpu_kernel_run(cpu_kernel *kernel, dil_threads *threads,
                          pool *scratch, const dil_call *call);
/* Compiles what a call of this shape will need, so that timing can leave it
 * out; cpu_kernel_run does it by itself. */
dil_status cpu_kernel_prepare(cpu_kernel *kernel, const dil_call *call);
/* "tiles" or "rows": what a call of this shape runs. */
const char *cpu_kernel_variant(const cpu_kernel *kernel, const dil_call *call);
/* Bytes of scratch memory that a call takes; it is checked and prepared. */
dil_status cpu_kernel_workspace(cpu_kernel *kernel, dil_threads *threads,
                                const dil_call *call, int64_t *bytes);

/* ---- gradients ----------------------------------------------------------- */

/* Writes the gradients that the call wants. The bits do not depend on the number
 * of threads. Scratch memory comes from `scratch` unless the call brings a
 * workspace. Thread-safe. */
dil_status cpu_kernel_backward(cpu_kernel *kernel, dil_threads *threads,
                               pool *scratch, const dil_backward_call *call);
/* Bytes of workspace that such a call takes; it is checked and prepared. */
dil_status cpu_kernel_backward_workspace(cpu_kernel *kernel,
                                         dil_threads *threads,
                                         const dil_backward_call *call,
                                         int64_t *bytes);

/* ---- a shard of a sequence ----------------------------------------------- */

/* States a row of a shard has: one, or with `mean` and `sum` one a pass. */
int32_t cpu_kernel_states(const cpu_kernel *kernel);
/* An empty state; the state advanced over the keys of the call (each key of
 * the sequence may come in one call only; the order decides the rounding); the
 * state rounded to the call's o and lse. `lengths` are refused. */
dil_status cpu_kernel_begin(cpu_kernel *kernel, dil_threads *threads,
                            const dil_call *call, const dil_shard *shard);
dil_status cpu_kernel_advance(cpu_kernel *kernel, dil_threads *threads,
                              pool *scratch, const dil_call *call,
                              const dil_shard *shard);
dil_status cpu_kernel_finish(cpu_kernel *kernel, dil_threads *threads,
                             const dil_call *call, const dil_shard *shard);

/* Adds to dq, dk and dv of the call, which are f32, and to shard->inputs what
 * the shard's pairs give. o and lse of the call are those of the whole sequence;
 * cpu_kernel_asks_states says whether the shard has states, too. */
dil_status cpu_kernel_backward_shard(cpu_kernel *kernel, dil_threads *threads,
                                     pool *scratch,
                                     const dil_backward_call *call,
                                     const dil_shard *shard);
/* Writes the numbers by which the rows of a shard weigh backward, [B, N, heads]
 * [states][lse, delta]: lse in units of log2, delta less dlse. With them a shard of
 * other keys needs neither o nor states. The call's k and v may be empty. */
dil_status cpu_kernel_row_numbers(cpu_kernel *kernel, dil_threads *threads,
                                  const dil_backward_call *call,
                                  const dil_shard *shard, float *numbers);
/* Whether backward asks each pass of a row for its own state. */
bool cpu_kernel_asks_states(const cpu_kernel *kernel);

/* ---- input.c: the tensors that a pattern declares ------------------------ */

/* DIL_USAGE, with the names of the inputs, unless `got` is their number. The
 * other kinds of device ask it too. */
DIL_API dil_status dil_input_check_count(const dil_table *table, int32_t got);

#endif
