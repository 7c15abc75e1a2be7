/* emit.c - a growing source text, and the templates, which are embedded when
 * the module is built (the Makefile makes templates.inc from templates/). */
#include "emit.h"
#include "templates.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const source_template source_templates[] = {
#include "compiler/codegen/gpu/emit/templates.inc"
};
const int32_t source_template_count =
    (int32_t)(sizeof source_templates / sizeof *source_templates);

/* Makes room for `more` bytes and a NUL. */
static bool text_grow(source_text *s, size_t more) {
  if (s->lost) return false;
  if (s->length + more < s->room) return true;
  size_t room = (s->room ? s->room : 4096) * 2 + more;
  char *text = realloc(s->text, room);
  if (!text) {
    s->lost = true;
    return false;
  }
  s->text = text;
  s->room = room;
  return true;
}

void put(source_text *s, const char *format, ...) {
  va_list list;
  va_start(list, format);
  int length = vsnprintf(NULL, 0, format, list);
  va_end(list);
  if (length < 0 || !text_grow(s, (size_t)length)) {
    s->lost = true;
    return;
  }
  va_start(list, format);
  vsnprintf(s->text + s->length, s->room - s->length, format, list);
  va_end(list);
  s->length += (size_t)length;
}

void put_template(source_text *s, const char *name) {
  for (int32_t i = 0; i < source_template_count; i++)
    if (!strcmp(source_templates[i].name, name)) {
      put(s, "#line 1 \"%s\"\n%s", name, source_templates[i].text);
      return;
    }
  fprintf(stderr, "%s:%d: no template '%s'\n", __FILE__, __LINE__, name);
  abort();
}
