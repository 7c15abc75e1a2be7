/* text.c - texts for the suites of the front end. */
#include "text.h"
#include <stdio.h>
#include <string.h>

char *file_text(const char *path) {
  FILE *in = fopen(path, "r");
  if (!in) return NULL;
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  for (int c; (c = fgetc(in)) != EOF;) fputc(c, out);
  fclose(out);
  fclose(in);
  return text;
}

char *repeated(const char *before, const char *part, int count,
               const char *after) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  fputs(before, out);
  for (int i = 0; i < count; i++) fputs(part, out);
  fputs(after, out);
  fclose(out);
  return text;
}

int is_program(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  return dot && !strcmp(dot, ".dil");
}
