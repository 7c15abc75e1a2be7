/* test_cache.c - the cache of kernels: what is put comes back, in memory and
 * from disk, within its bounds; a compiler that changed makes it stale. */
#include "tests/support/cache_box.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- keeping ------------------------------------------------------------- */

START_TEST(what_is_put_comes_back) {
  dil_cache *c = box_cache(CACHE_ON);
  cache_stats s;
  ck_assert(!box_has(c, "key", "value"));
  box_put(c, "key", "value");
  ck_assert(box_has(c, "key", "value"));
  ck_assert(!box_has(c, "key ", "value"));
  box_put(c, "key", "another");
  ck_assert(box_has(c, "key", "another"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.memory_hits, 2);
  ck_assert_int_eq(s.misses, 2);
  ck_assert_int_eq(s.writes, 2);
  ck_assert_int_eq(s.memory_bytes, 7);
  cache_free(c);
  c = box_cache(CACHE_ON);
  ck_assert(box_has(c, "key", "another"));
  ck_assert(box_has(c, "key", "another"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.disk_hits, 1);
  ck_assert_int_eq(s.memory_hits, 1);
  ck_assert_double_gt(s.seconds_saved, 0.9);
  ck_assert_double_le(s.seconds_saved, 1.0);
  cache_free(c);
  ck_assert_int_eq(box_warnings, 0);
}
END_TEST

START_TEST(empty_and_odd_values) {
  dil_cache *c = box_cache(CACHE_ON);
  cache_value v = {.bytes = "\0\n\0", .size = 3}, got;
  dil_cache_put(c, "a\0b", 3, &v);
  v.size = 0;
  dil_cache_put(c, "a\0c", 3, &v);
  cache_free(c);
  c = box_cache(CACHE_ON);
  ck_assert(dil_cache_get(c, "a\0b", 3, &got));
  ck_assert_uint_eq(got.size, 3);
  ck_assert_mem_eq(got.bytes, "\0\n\0", 3);
  free(got.bytes);
  ck_assert(dil_cache_get(c, "a\0c", 3, &got));
  ck_assert_uint_eq(got.size, 0);
  free(got.bytes);
  cache_free(c);
}
END_TEST

START_TEST(off_keeps_nothing) {
  dil_cache *c = box_cache(CACHE_OFF);
  box_put(c, "key", "value");
  ck_assert(!box_has(c, "key", "value"));
  cache_free(c);
  ck_assert_int_ne(access(box_folder, F_OK), 0);
}
END_TEST

START_TEST(read_only_writes_nothing) {
  box_disk_put("old", "value");
  struct stat before, after;
  ck_assert_int_eq(stat(box_folder, &before), 0);
  dil_cache *c = box_cache(CACHE_READ_ONLY);
  ck_assert(box_has(c, "old", "value"));
  box_put(c, "new", "value");
  ck_assert(box_has(c, "new", "value")); /* in memory */
  cache_free(c);
  ck_assert_int_eq(stat(box_folder, &after), 0);
  ck_assert_int_eq(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  ck_assert(!box_disk_has("new", "value"));
}
END_TEST

START_TEST(read_only_without_a_folder) {
  dil_cache *c = box_cache(CACHE_READ_ONLY);
  ck_assert(!box_has(c, "key", "value"));
  cache_free(c);
  ck_assert_int_ne(access(box_folder, F_OK), 0);
  ck_assert_int_eq(box_warnings, 0);
}
END_TEST

START_TEST(memory_keeps_the_latest) {
  cache_options o = box_options(CACHE_ON);
  cache_stats s;
  dil_cache *c;
  o.folder = NULL;
  o.memory_max = 10;
  ck_assert_int_eq(cache_new(&o, &c), DIL_OK);
  box_put(c, "a", "12345");
  box_put(c, "b", "12345");
  ck_assert(box_has(c, "a", "12345")); /* b is the older now */
  box_put(c, "c", "12345");
  ck_assert(box_has(c, "a", "12345"));
  ck_assert(!box_has(c, "b", "12345"));
  ck_assert(box_has(c, "c", "12345"));
  box_put(c, "d", "12345678901"); /* larger than all there is */
  ck_assert(!box_has(c, "d", "12345678901"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.evictions, 1);
  ck_assert_int_eq(s.memory_bytes, 10);
  cache_free(c);
}
END_TEST

/* Entries of 10 KiB under a bound of 100, each used so long after the one
 * before: the oldest by use go. */
static void check_bound(struct timespec each) {
  cache_options o = box_options(CACHE_ON);
  cache_stats s;
  dil_cache *c;
  char key[16];
  char *text = calloc(1, 10241);
  memset(text, 'x', 10240);
  o.disk_max = 100 << 10;
  ck_assert_int_eq(cache_new(&o, &c), DIL_OK);
  for (int i = 0; i < 30; i++) {
    struct timespec used = {1000000 + i * each.tv_sec, i * each.tv_nsec};
    struct timespec when[2] = {used, used};
    snprintf(key, sizeof key, "key %d", i);
    box_put(c, key, text);
    ck_assert_int_eq(utimensat(AT_FDCWD, box_path(key), when, 0), 0);
  }
  cache_read_stats(c, &s);
  ck_assert_int_le(s.disk_bytes, 100 << 10);
  ck_assert_int_ge(s.evictions, 20);
  cache_free(c);
  ck_assert(box_disk_has("key 29", text));
  ck_assert(!box_disk_has("key 0", text));
  ck_assert_int_le(box_count(".kernel"), 10);
  free(text);
}

START_TEST(disk_keeps_within_its_bound) {
  check_bound((struct timespec){1, 0});
}
END_TEST

START_TEST(use_within_a_second_has_an_order) {
  check_bound((struct timespec){0, 1});
}
END_TEST

/* The file stays open for its test. */
static int leave_temporary(const char *name, time_t seconds_ago, pid_t writer) {
  char path[PATH_MAX];
  time_t when = time(NULL) - seconds_ago;
  snprintf(path, sizeof path, "%s/%d-%s.temporary", box_folder, (int)writer,
           name);
  box_write(path, "half", 4);
  struct timespec times[2] = {{when, 0}, {when, 0}};
  ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ck_assert_int_ge(file, 0);
  return file;
}

/* What another writer has begun is left to it, for as long as one may take. */
START_TEST(what_was_left_half_written_goes_after_an_hour) {
  box_disk_put("first", "value");
  close(leave_temporary("new", 5, getpid()));
  close(leave_temporary("slow", 3500, getpid()));
  close(leave_temporary("old", 3700, getpid()));
  box_disk_put("second", "value");
  ck_assert_int_eq(box_count("new.temporary"), 1);
  ck_assert_int_eq(box_count("slow.temporary"), 1);
  ck_assert_int_eq(box_count("old.temporary"), 0);
}
END_TEST

static pid_t ended_process(void) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  ck_assert_int_eq(waitpid(child, NULL, 0), child);
  return child;
}

/* One in another container has a number that says nothing here, and a lock. */
START_TEST(what_a_process_left_goes_when_it_has_ended) {
  pid_t ended = ended_process();
  box_disk_put("first", "value");
  close(leave_temporary("dead", 5, ended));
  int file = leave_temporary("elsewhere", 5, ended);
  ck_assert_int_eq(flock(file, LOCK_EX | LOCK_NB), 0);
  box_disk_put("second", "value");
  ck_assert_int_eq(box_count("dead.temporary"), 0);
  ck_assert_int_eq(box_count("elsewhere.temporary"), 1);
  close(file);
  box_disk_put("third", "value");
  ck_assert_int_eq(box_count(".temporary"), 0);
}
END_TEST

START_TEST(a_compiler_that_changed_makes_entries_stale) {
  char compiler[PATH_MAX];
  snprintf(compiler, sizeof compiler, "%s-compiler", box_folder);
  box_write(compiler, "one", 3);
  dil_cache *c = box_cache(CACHE_ON);
  cache_value v = box_value("value");
  v.witness[0] = "/bin/sh";
  v.witness[1] = compiler;
  dil_cache_put(c, "key", 3, &v);
  cache_free(c);
  ck_assert(box_disk_has("key", "value"));
  box_write(compiler, "other", 5);
  ck_assert(!box_disk_has("key", "value"));
  ck_assert_ptr_nonnull(strstr(box_said, "is not the one that made it"));
  box_write(compiler, "one", 3);
  struct timespec when[2] = {{1000, 0}, {1000, 0}};
  ck_assert_int_eq(utimensat(AT_FDCWD, compiler, when, 0), 0);
  ck_assert(!box_disk_has("key", "value"));
  unlink(compiler);
  ck_assert(!box_disk_has("key", "value"));
  /* What cannot be looked at cannot vouch for anything. */
  c = box_cache(CACHE_ON);
  dil_cache_put(c, "other", 5, &v);
  cache_free(c);
  ck_assert(!box_disk_has("other", "value"));
}
END_TEST

/* ---- options ------------------------------------------------------------- */

static dil_status read_options(cache_options *o, char *path) {
  return cache_options_read(o, path);
}

START_TEST(the_environment_chooses) {
  cache_options o;
  char path[PATH_MAX];
  setenv("HOME", "/home/someone", 1);
  unsetenv("DIL_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  ck_assert_int_eq(read_options(&o, path), DIL_OK);
  ck_assert_str_eq(o.folder, "/home/someone/.cache/dil");
  ck_assert_int_eq(o.mode, CACHE_ON);
  ck_assert_int_eq(o.disk_max, 1 << 30);
  setenv("XDG_CACHE_HOME", "relative", 1); /* to be passed over, by XDG */
  ck_assert_int_eq(read_options(&o, path), DIL_OK);
  ck_assert_str_eq(o.folder, "/home/someone/.cache/dil");
  setenv("HOME", "someone", 1);
  ck_assert_int_eq(read_options(&o, path), DIL_OK);
  ck_assert_ptr_null(o.folder);
  setenv("XDG_CACHE_HOME", "/caches", 1);
  ck_assert_int_eq(read_options(&o, path), DIL_OK);
  ck_assert_str_eq(o.folder, "/caches/dil");
  setenv("DIL_CACHE_DIR", "/own", 1);
  setenv("DIL_CACHE", "ro", 1);
  setenv("DIL_CACHE_MAX_SIZE", "3M", 1);
  ck_assert_int_eq(read_options(&o, path), DIL_OK);
  ck_assert_str_eq(o.folder, "/own");
  ck_assert_int_eq(o.mode, CACHE_READ_ONLY);
  ck_assert_int_eq(o.disk_max, 3 << 20);
  setenv("DIL_CACHE_MAX_SIZE", "3 apples", 1);
  ck_assert_int_eq(read_options(&o, path), DIL_USAGE);
  ck_assert_str_eq(dil_last_error(), "DIL_CACHE_MAX_SIZE is '3 apples', not a "
                                     "number of bytes such as 64M or 2G");
  setenv("DIL_CACHE_MAX_SIZE", "9999999T", 1);
  ck_assert_int_eq(read_options(&o, path), DIL_USAGE);
  setenv("DIL_CACHE", "of", 1);
  ck_assert_int_eq(read_options(&o, path), DIL_USAGE);
  ck_assert_str_eq(dil_last_error(),
                   "DIL_CACHE is 'of', not one of on, ro, off");
  unsetenv("DIL_CACHE_MAX_SIZE");
  unsetenv("DIL_CACHE");
}
END_TEST

int main(void) {
  const box_case cases[] = {
      {"keeping",
       (const TTest *const[]){
            what_is_put_comes_back, empty_and_odd_values, off_keeps_nothing,
            read_only_writes_nothing, read_only_without_a_folder,
            memory_keeps_the_latest, disk_keeps_within_its_bound,
            use_within_a_second_has_an_order,
            what_was_left_half_written_goes_after_an_hour,
            what_a_process_left_goes_when_it_has_ended,
            a_compiler_that_changed_makes_entries_stale,
            the_environment_chooses,
            NULL}},
      {NULL, NULL}};
  return box_run("cache", cases);
}
