/* schedule.h - the knobs of the back ends: what a `schedule` block, the tuner
 * or remembered results decide in the compiler's place. */
#ifndef DIL_COMPILER_SCHEDULE_SCHEDULE_H
#define DIL_COMPILER_SCHEDULE_SCHEDULE_H

#include "compiler/front/program.h"

/* Devices, as bits of a knob's row. */
enum { KNOB_CPU = 1, KNOB_CUDA = 2, KNOB_ANY = 3 };
enum { KNOB_VALUES = 2, KNOBS_TEXT = 160 };

typedef enum knob_id {
#define KNOB(id, name, values, devices, least, most, of) KNOB_##id,
#include "knobs.def"
#undef KNOB
  KNOB_COUNT
} knob_id;

/* Values of the knob `family`: the kernels for every chip, or those of the
 * chip's fast family (runtime/cuda/chips.def). */
enum { FAMILY_GENERAL, FAMILY_FAST };

/* Values of the knob `gradient_order`: in which order a gradient's parts are
 * added. `any` leaves the order to the device. It changes gradients alone, and
 * no kernel of a forward call. */
enum { ORDER_FIXED, ORDER_ANY };

/* The knobs that were decided; the compiler chooses all others. */
typedef struct knobs {
  unsigned given; /* bit k: knob k */
  int32_t value[KNOB_COUNT][KNOB_VALUES];
} knobs;

static inline bool knob_given(const knobs *k, knob_id id) {
  return k && (k->given >> id & 1);
}

static inline bool knobs_any_order(const knobs *k) {
  return knob_given(k, KNOB_GRADIENT_ORDER) &&
         k->value[KNOB_GRADIENT_ORDER][0] == ORDER_ANY;
}

/* "tile 128, 64; stages 2;", as a schedule block has it; "" for none. */
const char *knobs_text(const knobs *k, char text[KNOBS_TEXT]);
/* Reads what knobs_text wrote for a device. False with the reason. */
bool knobs_read(const char *text, unsigned device, knobs *k, char *reason,
                size_t size);
/* The knobs of a block for a device (KNOB_ANY: none in particular, what no
 * device has is still an error). Errors are in d. */
void schedule_read(arena *a, diag *d, const schedule *s, unsigned device,
                   knobs *k);

#endif
