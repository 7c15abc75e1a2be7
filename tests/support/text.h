/* text.h - texts for the suites of the front end; they assert on failure. */
#ifndef DIL_TESTS_SUPPORT_TEXT_H
#define DIL_TESTS_SUPPORT_TEXT_H

#include <dirent.h>

/* The bytes of a file, freed by the caller; NULL when it cannot be read. */
char *file_text(const char *path);
/* before, count times part, after; freed by the caller. */
char *repeated(const char *before, const char *part, int count,
               const char *after);
/* Whether a folder's entry is a .dil file, for scandir. */
int is_program(const struct dirent *entry);

#endif
