/* preset.h - patterns that come with dil, by name: see dil.h. */
#ifndef DIL_COMPILER_FRONT_PRESET_H
#define DIL_COMPILER_FRONT_PRESET_H

#include "program.h"

#define PRESET_PREFIX "preset:" /* of a path that names one */

/* For a name that no preset has: what was probably meant, or all of them. */
const char *preset_hint(arena *a, const char *name);

#endif
