/* preset.c - patterns that come with dil. In: a name. Out: the text of its file
 * in examples/presets, which became a part of the library when that was built,
 * so that nothing is looked up. */
#include "preset.h"
#include <string.h>

static const struct {
  const char *name, *text;
} presets[] = {
#include "compiler/front/presets.inc"
};
enum { PRESET_COUNT = sizeof presets / sizeof *presets };

int32_t dil_preset_count(void) { return PRESET_COUNT; }

const char *dil_preset_name(int32_t index) {
  return index >= 0 && index < PRESET_COUNT ? presets[index].name : NULL;
}

const char *dil_preset_text(const char *name) {
  for (int32_t i = 0; i < PRESET_COUNT; i++)
    if (name && !strcmp(presets[i].name, name)) return presets[i].text;
  return NULL;
}

const char *preset_hint(arena *a, const char *name) {
  const char *names[PRESET_COUNT], *list = presets[0].name;
  size_t length = strlen(name);
  if (length > 4 && !strcmp(name + length - 4, ".dil"))
    return "a file is no preset: `dil_program_read` reads it, in Python "
           "`dil.Program(path=...)`";
  for (int32_t i = 0; i < PRESET_COUNT; i++) names[i] = presets[i].name;
  for (int32_t i = 1; i < PRESET_COUNT; i++)
    list = arena_print(a, "%s, %s", list, presets[i].name);
  const char *near = diag_nearest(name, names, PRESET_COUNT);
  return near ? arena_print(a, "did you mean '%s'?", near)
              : arena_print(a, "there are %s", list);
}
