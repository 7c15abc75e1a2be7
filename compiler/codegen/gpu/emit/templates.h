/* templates.h - the files of templates/ as bytes of this module. */
#ifndef DIL_COMPILER_CODEGEN_GPU_EMIT_TEMPLATES_H
#define DIL_COMPILER_CODEGEN_GPU_EMIT_TEMPLATES_H

#include <stdint.h>

typedef struct source_template {
  const char *name, *text;
} source_template;

extern const source_template source_templates[];
extern const int32_t source_template_count;

#endif
