/* cache_box.c - see cache_box.h. In: nothing. Out: a cache whose warnings are
 * counted, files to damage, a suite's main. */
#include "cache_box.h"
#include "suite.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char box_folder[64], box_said[4096];
int box_warnings;
void (*box_before_abort)(void);

static void hear(void *user, int32_t level, const char *text) {
  (void)user;
  box_warnings += level <= DIL_LOG_WARNING;
  snprintf(box_said, sizeof box_said, "%s", text);
}

cache_options box_options(cache_mode mode) {
  return (cache_options){.mode = mode,
                         .folder = box_folder,
                         .disk_max = 1 << 30,
                         .memory_max = 1 << 20,
                         .log = {hear, NULL, DIL_LOG_WARNING}};
}

void box_command(const char *format, const char *path) {
  char command[256];
  snprintf(command, sizeof command, format, path);
  ck_assert_int_eq(system(command), 0);
}

void box_open(void) {
  box_warnings = 0;
  *box_said = 0;
  /* In memory where there is such a folder: thousands of files are synced. */
  bool fast = !access("/dev/shm", R_OK | W_OK | X_OK);
  sprintf(box_folder, "%s/dil-test-cache-XXXXXX", fast ? "/dev/shm" : "/tmp");
  ck_assert_ptr_nonnull(mkdtemp(box_folder));
  strcat(box_folder, "/cache");
}

void box_close(void) {
  *strrchr(box_folder, '/') = 0;
  box_command("rm -rf %s", box_folder);
}

dil_cache *box_cache(cache_mode mode) {
  dil_cache *c;
  cache_options o = box_options(mode);
  ck_assert_int_eq(cache_new(&o, &c), DIL_OK);
  return c;
}

cache_value box_value(const char *text) {
  return (cache_value){.bytes = (void *)(uintptr_t)text,
                       .size = strlen(text),
                       .seconds = 0.5,
                       .label = "a label"};
}

void box_put(dil_cache *c, const char *key, const char *text) {
  cache_value v = box_value(text);
  dil_cache_put(c, key, strlen(key), &v);
}

bool box_has(dil_cache *c, const char *key, const char *text) {
  cache_value v;
  if (!dil_cache_get(c, key, strlen(key), &v)) return false;
  bool same = v.size == strlen(text) && !memcmp(v.bytes, text, v.size);
  free(v.bytes);
  if (!same) {
    if (box_before_abort) box_before_abort();
    ck_abort_msg("another value of %zu bytes under '%s'", v.size, key);
  }
  return true;
}

bool box_disk_has(const char *key, const char *text) {
  dil_cache *c = box_cache(CACHE_ON);
  bool found = box_has(c, key, text);
  cache_free(c);
  return found;
}

void box_disk_put(const char *key, const char *text) {
  dil_cache *c = box_cache(CACHE_ON);
  box_put(c, key, text);
  cache_free(c);
}

const char *box_path(const char *key) {
  static char path[PATH_MAX];
  uint8_t digest[CACHE_DIGEST];
  char name[CACHE_NAME];
  cache_digest(key, strlen(key), digest);
  cache_name(digest, name);
  snprintf(path, sizeof path, "%s/%s", box_folder, name);
  return path;
}

size_t box_read(const char *path, char *bytes, size_t room) {
  FILE *f = fopen(path, "rb");
  ck_assert_ptr_nonnull(f);
  size_t size = fread(bytes, 1, room, f);
  fclose(f);
  return size;
}

void box_write(const char *path, const char *bytes, size_t size) {
  FILE *f = fopen(path, "wb");
  ck_assert_ptr_nonnull(f);
  ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
  ck_assert_int_eq(fclose(f), 0);
}

int box_count(const char *end) {
  cache_file *files;
  int32_t count;
  int found = 0;
  int directory = open(box_folder, O_RDONLY | O_DIRECTORY);
  ck_assert_int_ge(directory, 0);
  ck_assert_int_eq(cache_folder_list(directory, &files, &count), DIL_OK);
  for (int32_t i = 0; i < count; i++) found += strstr(files[i].name, end) != 0;
  free(files);
  close(directory);
  return found;
}

int box_run(const char *name, const box_case *cases) {
  alarm(900); /* a hang is a failure */
  Suite *suite = suite_create(name);
  for (; cases->name; cases++) {
    TCase *c = tcase_create(cases->name);
    tcase_add_checked_fixture(c, box_open, box_close);
    tcase_set_timeout(c, 600);
    for (const TTest *const *t = cases->tests; *t; t++) tcase_add_test(c, *t);
    suite_add_tcase(suite, c);
  }
  return suite_run(suite, CK_NOFORK);
}
