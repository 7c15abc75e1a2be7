/* test_cache.c - the cache of kernels: what is put comes back, what was
 * touched does not. Damage, other users, links, full disks, kills, other
 * processes at the same time. */
#include "cache.h"
#include "fault.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a folder and a cache for each test ---------------------------------- */

static char folder[64], said[4096];
static int warnings;

static void hear(void *user, int32_t level, const char *text) {
  (void)user;
  warnings += level <= DIL_LOG_WARNING;
  snprintf(said, sizeof said, "%s", text);
}

static cache_options options(cache_mode mode) {
  return (cache_options){.mode = mode,
                         .folder = folder,
                         .disk_max = 1 << 30,
                         .memory_max = 1 << 20,
                         .log = {hear, NULL, DIL_LOG_WARNING}};
}

static void run_command(const char *format, const char *path) {
  char command[256];
  snprintf(command, sizeof command, format, path);
  ck_assert_int_eq(system(command), 0);
}

static void set_up(void) {
  fault_clear();
  warnings = 0;
  *said = 0;
  /* In memory where there is such a folder: thousands of files are synced. */
  bool fast = !access("/dev/shm", R_OK | W_OK | X_OK);
  sprintf(folder, "%s/dil-test-cache-XXXXXX", fast ? "/dev/shm" : "/tmp");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  strcat(folder, "/cache");
}

static void tear_down(void) {
  fault_clear();
  *strrchr(folder, '/') = 0;
  run_command("rm -rf %s", folder);
}

static dil_cache *open_cache(cache_mode mode) {
  dil_cache *c;
  cache_options o = options(mode);
  ck_assert_int_eq(cache_new(&o, &c), DIL_OK);
  return c;
}

static cache_value value_of(const char *text) {
  return (cache_value){.bytes = (void *)(uintptr_t)text,
                       .size = strlen(text),
                       .seconds = 0.5,
                       .label = "a label"};
}

static void put(dil_cache *c, const char *key, const char *text) {
  cache_value v = value_of(text);
  dil_cache_put(c, key, strlen(key), &v);
}

/* Whether the cache has just this; anything else that it has is a failure.
 * Check's own words would go through the faults. */
static bool has(dil_cache *c, const char *key, const char *text) {
  cache_value v;
  if (!dil_cache_get(c, key, strlen(key), &v)) return false;
  bool same = v.size == strlen(text) && !memcmp(v.bytes, text, v.size);
  free(v.bytes);
  if (!same) {
    fault_clear();
    ck_abort_msg("another value of %zu bytes under '%s'", v.size, key);
  }
  return true;
}

/* The same by a process that has nothing in memory. */
static bool disk_has(const char *key, const char *text) {
  dil_cache *c = open_cache(CACHE_ON);
  bool found = has(c, key, text);
  cache_free(c);
  return found;
}

static void disk_put(const char *key, const char *text) {
  dil_cache *c = open_cache(CACHE_ON);
  put(c, key, text);
  cache_free(c);
}

static const char *path_of(const char *key) {
  static char path[PATH_MAX];
  uint8_t digest[CACHE_DIGEST];
  char name[CACHE_NAME];
  cache_digest(key, strlen(key), digest);
  cache_name(digest, name);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static size_t read_file(const char *path, char *bytes, size_t room) {
  FILE *f = fopen(path, "rb");
  ck_assert_ptr_nonnull(f);
  size_t size = fread(bytes, 1, room, f);
  fclose(f);
  return size;
}

static void write_file(const char *path, const char *bytes, size_t size) {
  FILE *f = fopen(path, "wb");
  ck_assert_ptr_nonnull(f);
  ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
  ck_assert_int_eq(fclose(f), 0);
}

static int count_files(const char *end) {
  cache_file *files;
  int32_t count;
  int found = 0;
  int directory = open(folder, O_RDONLY | O_DIRECTORY);
  ck_assert_int_ge(directory, 0);
  ck_assert_int_eq(cache_folder_list(directory, &files, &count), DIL_OK);
  for (int32_t i = 0; i < count; i++) found += strstr(files[i].name, end) != 0;
  free(files);
  close(directory);
  return found;
}

/* ---- keeping ------------------------------------------------------------- */

START_TEST(what_is_put_comes_back) {
  dil_cache *c = open_cache(CACHE_ON);
  cache_stats s;
  ck_assert(!has(c, "key", "value"));
  put(c, "key", "value");
  ck_assert(has(c, "key", "value"));
  ck_assert(!has(c, "key ", "value"));
  put(c, "key", "another");
  ck_assert(has(c, "key", "another"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.memory_hits, 2);
  ck_assert_int_eq(s.misses, 2);
  ck_assert_int_eq(s.writes, 2);
  ck_assert_int_eq(s.memory_bytes, 7);
  cache_free(c);
  c = open_cache(CACHE_ON);
  ck_assert(has(c, "key", "another"));
  ck_assert(has(c, "key", "another"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.disk_hits, 1);
  ck_assert_int_eq(s.memory_hits, 1);
  ck_assert_double_gt(s.seconds_saved, 0.9);
  ck_assert_double_le(s.seconds_saved, 1.0);
  cache_free(c);
  ck_assert_int_eq(warnings, 0);
}
END_TEST

START_TEST(empty_and_odd_values) {
  dil_cache *c = open_cache(CACHE_ON);
  cache_value v = {.bytes = "\0\n\0", .size = 3}, got;
  dil_cache_put(c, "a\0b", 3, &v);
  v.size = 0;
  dil_cache_put(c, "a\0c", 3, &v);
  cache_free(c);
  c = open_cache(CACHE_ON);
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
  dil_cache *c = open_cache(CACHE_OFF);
  put(c, "key", "value");
  ck_assert(!has(c, "key", "value"));
  cache_free(c);
  ck_assert_int_ne(access(folder, F_OK), 0);
}
END_TEST

START_TEST(read_only_writes_nothing) {
  disk_put("old", "value");
  struct stat before, after;
  ck_assert_int_eq(stat(folder, &before), 0);
  dil_cache *c = open_cache(CACHE_READ_ONLY);
  ck_assert(has(c, "old", "value"));
  put(c, "new", "value");
  ck_assert(has(c, "new", "value")); /* in memory */
  cache_free(c);
  ck_assert_int_eq(stat(folder, &after), 0);
  ck_assert_int_eq(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  ck_assert(!disk_has("new", "value"));
}
END_TEST

START_TEST(read_only_without_a_folder) {
  dil_cache *c = open_cache(CACHE_READ_ONLY);
  ck_assert(!has(c, "key", "value"));
  cache_free(c);
  ck_assert_int_ne(access(folder, F_OK), 0);
  ck_assert_int_eq(warnings, 0);
}
END_TEST

START_TEST(memory_keeps_the_latest) {
  cache_options o = options(CACHE_ON);
  cache_stats s;
  dil_cache *c;
  o.folder = NULL;
  o.memory_max = 10;
  ck_assert_int_eq(cache_new(&o, &c), DIL_OK);
  put(c, "a", "12345");
  put(c, "b", "12345");
  ck_assert(has(c, "a", "12345")); /* b is the older now */
  put(c, "c", "12345");
  ck_assert(has(c, "a", "12345"));
  ck_assert(!has(c, "b", "12345"));
  ck_assert(has(c, "c", "12345"));
  put(c, "d", "12345678901"); /* larger than all there is */
  ck_assert(!has(c, "d", "12345678901"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.evictions, 1);
  ck_assert_int_eq(s.memory_bytes, 10);
  cache_free(c);
}
END_TEST

/* Entries of 10 KiB under a bound of 100: the oldest by use go. */
START_TEST(disk_keeps_within_its_bound) {
  cache_options o = options(CACHE_ON);
  cache_stats s;
  dil_cache *c;
  char key[16];
  char *text = calloc(1, 10241);
  memset(text, 'x', 10240);
  o.disk_max = 100 << 10;
  ck_assert_int_eq(cache_new(&o, &c), DIL_OK);
  for (int i = 0; i < 30; i++) {
    struct timespec when[2] = {{1000000 + i, 0}, {1000000 + i, 0}};
    snprintf(key, sizeof key, "key %d", i);
    put(c, key, text);
    ck_assert_int_eq(utimensat(AT_FDCWD, path_of(key), when, 0), 0);
  }
  cache_read_stats(c, &s);
  ck_assert_int_le(s.disk_bytes, 100 << 10);
  ck_assert_int_ge(s.evictions, 20);
  cache_free(c);
  ck_assert(disk_has("key 29", text));
  ck_assert(!disk_has("key 0", text));
  ck_assert_int_le(count_files(".kernel"), 10);
  free(text);
}
END_TEST

START_TEST(a_compiler_that_changed_makes_entries_stale) {
  char compiler[PATH_MAX];
  snprintf(compiler, sizeof compiler, "%s-compiler", folder);
  write_file(compiler, "one", 3);
  dil_cache *c = open_cache(CACHE_ON);
  cache_value v = value_of("value");
  v.witness[0] = "/bin/sh";
  v.witness[1] = compiler;
  dil_cache_put(c, "key", 3, &v);
  cache_free(c);
  ck_assert(disk_has("key", "value"));
  write_file(compiler, "other", 5);
  ck_assert(!disk_has("key", "value"));
  ck_assert_ptr_nonnull(strstr(said, "is not the one that made it"));
  write_file(compiler, "one", 3);
  struct timespec when[2] = {{1000, 0}, {1000, 0}};
  ck_assert_int_eq(utimensat(AT_FDCWD, compiler, when, 0), 0);
  ck_assert(!disk_has("key", "value"));
  unlink(compiler);
  ck_assert(!disk_has("key", "value"));
  /* What cannot be looked at cannot vouch for anything. */
  c = open_cache(CACHE_ON);
  dil_cache_put(c, "other", 5, &v);
  cache_free(c);
  ck_assert(!disk_has("other", "value"));
}
END_TEST

/* ---- damage -------------------------------------------------------------- */

enum { ENTRY_ROOM = 4096 };

/* Refused, told, and as good as new after it was made anew. */
static void expect_refused(const char *what, int where) {
  warnings = 0;
  dil_cache *c = open_cache(CACHE_ON);
  if (has(c, "some key", "some value"))
    ck_abort_msg("%s at %d was not seen", what, where);
  ck_assert_int_eq(warnings, 1);
  put(c, "some key", "some value");
  cache_free(c);
  if (!disk_has("some key", "some value"))
    ck_abort_msg("after %s at %d it was not made anew", what, where);
}

START_TEST(every_flipped_byte_is_seen) {
  char bytes[ENTRY_ROOM], bad[ENTRY_ROOM];
  disk_put("some key", "some value");
  size_t size = read_file(path_of("some key"), bytes, sizeof bytes);
  ck_assert_uint_lt(size, sizeof bytes);
  for (size_t i = 0; i < size; i++)
    for (int flip = 0; flip < 2; flip++) {
      memcpy(bad, bytes, size);
      bad[i] = (char)(bad[i] ^ (flip ? 1 << i % 8 : 0xff));
      write_file(path_of("some key"), bad, size);
      expect_refused("a flipped byte", (int)i);
    }
}
END_TEST

START_TEST(every_cut_is_seen) {
  char bytes[ENTRY_ROOM];
  disk_put("some key", "some value");
  size_t size = read_file(path_of("some key"), bytes, sizeof bytes - 1);
  for (size_t length = 0; length < size; length++) {
    write_file(path_of("some key"), bytes, length);
    expect_refused("a cut", (int)length);
  }
  bytes[size] = 0;
  write_file(path_of("some key"), bytes, size + 1);
  expect_refused("a byte too many", (int)size);
}
END_TEST

START_TEST(an_entry_under_another_name) {
  char bytes[ENTRY_ROOM];
  disk_put("another key", "another value");
  size_t size = read_file(path_of("another key"), bytes, sizeof bytes);
  write_file(path_of("some key"), bytes, size);
  expect_refused("another key's entry", 0);
}
END_TEST

/* ---- who may have written it --------------------------------------------- */

START_TEST(entries_that_are_no_plain_files) {
  disk_put("some key", "some value");
  char real[PATH_MAX + 8], path[PATH_MAX];
  snprintf(path, sizeof path, "%s", path_of("some key"));
  snprintf(real, sizeof real, "%s-real", path);
  ck_assert_int_eq(rename(path, real), 0);
  ck_assert_int_eq(symlink(real, path), 0);
  expect_refused("a symbolic link", 0);
  ck_assert_int_eq(unlink(path), 0);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  expect_refused("a pipe", 0);
}
END_TEST

START_TEST(a_folder_as_an_entry) {
  disk_put("some key", "some value");
  ck_assert_int_eq(unlink(path_of("some key")), 0);
  ck_assert_int_eq(mkdir(path_of("some key"), 0700), 0);
  dil_cache *c = open_cache(CACHE_ON);
  ck_assert(!has(c, "some key", "some value"));
  put(c, "some key", "some value");
  ck_assert(has(c, "some key", "some value")); /* from memory */
  cache_free(c);
  ck_assert_int_eq(warnings, 2); /* read, then written */
}
END_TEST

START_TEST(entries_that_others_may_write) {
  static const mode_t modes[] = {0620, 0602, 0666};
  for (int i = 0; i < 3; i++) {
    disk_put("some key", "some value");
    ck_assert_int_eq(chmod(path_of("some key"), modes[i]), 0);
    expect_refused("a mode", i);
  }
}
END_TEST

START_TEST(entries_of_others) {
  if (geteuid() != 0) return; /* only root can give files away */
  disk_put("some key", "some value");
  ck_assert_int_eq(chown(path_of("some key"), 4321, 4321), 0);
  expect_refused("another user's entry", 0);
}
END_TEST

/* The run goes on without the disk, and says so once. */
static void expect_no_folder(cache_mode mode, const char *why) {
  warnings = 0;
  dil_cache *c = open_cache(mode);
  if (warnings != 1 || !strstr(said, why))
    ck_abort_msg("wanted one warning with '%s', got %d: %s", why, warnings,
                 said);
  ck_assert(!has(c, "some key", "some value"));
  put(c, "some key", "some value");
  ck_assert(has(c, "some key", "some value"));
  cache_free(c);
  ck_assert_int_eq(warnings, 1);
}

START_TEST(folders_that_others_may_write) {
  ck_assert_int_eq(mkdir(folder, 0700), 0);
  static const mode_t modes[] = {0770, 0707, 01777};
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(chmod(folder, modes[i]), 0);
    expect_no_folder(CACHE_ON, "others may write to it");
    expect_no_folder(CACHE_READ_ONLY, "others may write to it");
  }
}
END_TEST

START_TEST(folders_that_are_links_or_pipes) {
  char real[PATH_MAX];
  snprintf(real, sizeof real, "%s-real", folder);
  ck_assert_int_eq(mkdir(real, 0700), 0);
  ck_assert_int_eq(symlink(real, folder), 0);
  expect_no_folder(CACHE_ON, "it is a symbolic link");
  ck_assert_int_eq(unlink(folder), 0);
  ck_assert_int_eq(mkfifo(folder, 0600), 0);
  expect_no_folder(CACHE_ON, strerror(ENOTDIR));
}
END_TEST

START_TEST(folders_of_others) {
  if (geteuid() != 0) return;
  ck_assert_int_eq(mkdir(folder, 0700), 0);
  ck_assert_int_eq(chown(folder, 4321, 4321), 0);
  expect_no_folder(CACHE_ON, "it is another user's");
  expect_no_folder(CACHE_READ_ONLY, "it is another user's");
}
END_TEST

/* Of what the superuser laid down one may read, but not write beside it. */
START_TEST(folders_of_the_superuser) {
  if (geteuid() != 0) return;
  disk_put("some key", "some value");
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s", folder);
  *strrchr(path, '/') = 0;
  ck_assert_int_eq(chmod(path, 0755), 0);
  ck_assert_int_eq(chmod(folder, 0755), 0);
  ck_assert_int_eq(chmod(path_of("some key"), 0644), 0);
  ck_assert_int_eq(seteuid(4321), 0);
  dil_cache *c = open_cache(CACHE_READ_ONLY);
  bool found = has(c, "some key", "some value");
  cache_free(c);
  expect_no_folder(CACHE_ON, "it is another user's");
  ck_assert_int_eq(seteuid(0), 0);
  ck_assert(found);
}
END_TEST

START_TEST(a_folder_that_cannot_be_made) {
  write_file(folder, "", 0);
  strcat(folder, "/below");
  expect_no_folder(CACHE_ON, strerror(ENOTDIR));
  *strrchr(folder, '/') = 0;
}
END_TEST

START_TEST(the_folder_is_made_for_its_user_alone) {
  mode_t before = umask(0);
  disk_put("some key", "some value");
  umask(before);
  struct stat found;
  ck_assert_int_eq(stat(folder, &found), 0);
  ck_assert_uint_eq(found.st_mode & 0777, 0700);
  ck_assert_int_eq(stat(path_of("some key"), &found), 0);
  ck_assert_uint_eq(found.st_mode & 0777, 0600);
}
END_TEST

/* ---- faults -------------------------------------------------------------- */

/* One call goes wrong on the way of a put and a get: what comes back is right
 * or nothing, no file is left over, and the next one works. */
static void expect_harmless(fault_call call, int at, fault_way way, int error,
                            bool ever, bool *reached) {
  run_command("rm -rf %s", folder);
  fault_set(call, at, way, error, ever);
  dil_cache *c = NULL;
  cache_options o = options(CACHE_ON);
  if (!cache_new(&o, &c)) {
    put(c, "some key", "some value");
    cache_free(c);
    c = NULL;
    if (!cache_new(&o, &c)) has(c, "some key", "some value");
  }
  *reached = fault_count(call) > at;
  cache_free(c);
  fault_clear();
  disk_put("another", "value");
  ck_assert(disk_has("another", "value"));
  disk_put("some key", "some value");
  ck_assert(disk_has("some key", "some value"));
  ck_assert_int_eq(count_files(".temporary"), 0);
}

START_TEST(every_call_fails_once_and_for_ever) {
  static const int errors[] = {EIO, ENOSPC, EINTR, EACCES, EMFILE};
  int sites = 0;
  for (int call = 0; call < FAULT_CALL_COUNT; call++)
    for (int ever = 0; ever < 2; ever++) {
      bool reached = true;
      for (int at = 0; reached; at++) {
        int error = call <= FAULT_realloc ? ENOMEM : errors[at % 5];
        bool loops = error == EINTR && ever;
        if (loops) error = EIO; /* interrupted for ever is a hang */
        expect_harmless((fault_call)call, at, FAULT_ERROR, error, ever,
                        &reached);
        sites += reached;
      }
    }
  ck_assert_int_ge(sites, 30);
  printf("%d faults\n", sites);
}
END_TEST

START_TEST(interrupted_and_short_transfers_are_continued) {
  static const fault_call calls[] = {FAULT_read, FAULT_write};
  for (int i = 0; i < 2; i++)
    for (int way = 0; way < 2; way++) {
      run_command("rm -rf %s", folder);
      fault_set(calls[i], 0, way ? FAULT_SHORT : FAULT_ERROR, EINTR, way);
      disk_put("some key", "some value");
      ck_assert(disk_has("some key", "some value"));
      ck_assert_int_ge(fault_count(calls[i]), 2);
      fault_clear();
      ck_assert_int_eq(warnings, 0);
    }
}
END_TEST

START_TEST(a_full_disk_is_told_once) {
  dil_cache *c = open_cache(CACHE_ON);
  cache_stats s;
  fault_set(FAULT_write, 0, FAULT_ERROR, ENOSPC, true);
  put(c, "a", "value");
  put(c, "b", "value");
  put(c, "c", "value");
  ck_assert_int_eq(warnings, 1);
  ck_assert_ptr_nonnull(strstr(said, strerror(ENOSPC)));
  ck_assert(has(c, "b", "value"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.write_failures, 3);
  fault_clear();
  put(c, "d", "value");
  cache_free(c);
  ck_assert(disk_has("d", "value"));
  ck_assert(!disk_has("a", "value"));
}
END_TEST

/* ---- kills and other processes ------------------------------------------- */

enum { KEYS = 8, KILLS = 1000 };

static void name_of(unsigned number, char key[32], char *text, size_t room) {
  size_t length = 100 + number % 977 * 37 % (room - 101);
  snprintf(key, 32, "key %u", number % KEYS);
  memset(text, 'a' + (int)(number % KEYS), length);
  text[length] = 0;
}

/* A value is its key's letter all through, whatever its length. */
static void check_keys(dil_cache *c) {
  char key[32];
  for (unsigned k = 0; k < KEYS; k++) {
    cache_value v;
    snprintf(key, sizeof key, "key %u", k);
    if (!dil_cache_get(c, key, strlen(key), &v)) continue;
    size_t good = 0;
    while (good < v.size && ((char *)v.bytes)[good] == 'a' + (int)k) good++;
    ck_assert_uint_eq(good, v.size);
    free(v.bytes);
  }
}

static _Noreturn void write_for_ever(unsigned seed) {
  char key[32];
  char *text = malloc(1 << 17);
  dil_cache *c = open_cache(CACHE_ON);
  for (unsigned number = seed;; number++) {
    name_of(number, key, text, 1 << 17);
    put(c, key, text);
  }
}

/* Kills after a random time, and at each step of a write in turn. */
static void kill_writer(unsigned number) {
  static const fault_call steps[] = {FAULT_openat, FAULT_write, FAULT_fsync,
                                     FAULT_renameat};
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    if (number % 2)
      fault_set(steps[number / 2 % 4], (int)(number / 8 % 5), FAULT_KILL, 0,
                false);
    write_for_ever(number);
  }
  int status;
  if (number % 2 == 0) {
    usleep((useconds_t)(random() % 3000));
    kill(child, SIGKILL);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

START_TEST(a_thousand_kills_do_no_harm) {
  cache_stats s;
  int64_t hits = 0;
  srandom(7);
  for (unsigned number = 0; number < KILLS; number++) {
    kill_writer(number);
    dil_cache *c = open_cache(CACHE_ON);
    check_keys(c);
    cache_read_stats(c, &s);
    ck_assert_int_eq(s.refused, 0);
    hits += s.disk_hits;
    cache_free(c);
  }
  ck_assert_int_gt(hits, KILLS);
  ck_assert_int_eq(warnings, 0);
  printf("%d kills, %lld entries read, %d files left over\n", KILLS,
         (long long)hits, count_files(".temporary"));
}
END_TEST

START_TEST(what_killed_writers_left_is_removed_in_time) {
  disk_put("some key", "some value");
  char path[PATH_MAX];
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/99-%d.temporary", folder, i);
    write_file(path, "part", 4);
  }
  struct timespec when[2] = {{1000, 0}, {1000, 0}};
  ck_assert_int_eq(utimensat(AT_FDCWD, path, when, 0), 0);
  disk_put("another key", "some value"); /* the first write looks around */
  ck_assert_int_eq(count_files(".temporary"), 1);
  ck_assert_int_eq(count_files(".kernel"), 2);
}
END_TEST

START_TEST(processes_share_the_folder) {
  enum { PROCESSES = 4, TURNS = 60 };
  pid_t child[PROCESSES];
  for (unsigned p = 0; p < PROCESSES; p++) {
    child[p] = fork();
    if (child[p] > 0) continue;
    char key[32], *text = malloc(1 << 14);
    cache_stats s;
    for (unsigned i = 0; i < TURNS; i++) {
      dil_cache *c = open_cache(CACHE_ON);
      check_keys(c);
      name_of(p * 5 + i, key, text, 1 << 14);
      put(c, key, text);
      check_keys(c);
      cache_read_stats(c, &s);
      if (s.refused || s.write_failures) _exit(1);
      cache_free(c);
    }
    _exit(warnings != 0);
  }
  for (int p = 0; p < PROCESSES; p++) {
    int status;
    ck_assert_int_eq(waitpid(child[p], &status, 0), child[p]);
    ck_assert_int_eq(status, 0);
  }
  ck_assert_int_eq(count_files(".kernel"), KEYS);
  ck_assert_int_eq(count_files(".temporary"), 0);
}
END_TEST

static void *use_cache(void *cache) {
  char key[32], *text = malloc(1 << 12);
  for (unsigned i = 0; i < 200; i++) {
    name_of(i * 3, key, text, 1 << 12);
    put(cache, key, text);
    check_keys(cache);
  }
  free(text);
  return NULL;
}

START_TEST(threads_share_a_cache) {
  enum { THREADS = 4 };
  pthread_t thread[THREADS];
  dil_cache *c = open_cache(CACHE_ON);
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, use_cache, c), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  cache_free(c);
  ck_assert_int_eq(warnings, 0);
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
  ck_assert_str_eq(dil_last_error(), "DIL_CACHE is 'of', not one of on, ro, off");
  unsetenv("DIL_CACHE_MAX_SIZE");
  unsetenv("DIL_CACHE");
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static void add_case(Suite *suite, const char *name, const TTest *const *tests) {
  TCase *c = tcase_create(name);
  tcase_add_checked_fixture(c, set_up, tear_down);
  tcase_set_timeout(c, 600);
  for (; *tests; tests++) tcase_add_test(c, *tests);
  suite_add_tcase(suite, c);
}

int main(void) {
  alarm(900);
  Suite *suite = suite_create("cache");
  add_case(suite, "keeping",
           (const TTest *const[]){
               what_is_put_comes_back, empty_and_odd_values, off_keeps_nothing,
               read_only_writes_nothing, read_only_without_a_folder,
               memory_keeps_the_latest, disk_keeps_within_its_bound,
               a_compiler_that_changed_makes_entries_stale,
               the_environment_chooses, NULL});
  add_case(suite, "damage",
           (const TTest *const[]){every_flipped_byte_is_seen, every_cut_is_seen,
                                  an_entry_under_another_name, NULL});
  add_case(suite, "trust",
           (const TTest *const[]){
               entries_that_are_no_plain_files, a_folder_as_an_entry,
               entries_that_others_may_write, entries_of_others,
               folders_that_others_may_write, folders_that_are_links_or_pipes,
               folders_of_others, folders_of_the_superuser,
               a_folder_that_cannot_be_made,
               the_folder_is_made_for_its_user_alone, NULL});
  add_case(suite, "faults",
           (const TTest *const[]){every_call_fails_once_and_for_ever,
                                  interrupted_and_short_transfers_are_continued,
                                  a_full_disk_is_told_once, NULL});
  add_case(suite, "company",
           (const TTest *const[]){
               a_thousand_kills_do_no_harm,
               what_killed_writers_left_is_removed_in_time,
               processes_share_the_folder, threads_share_a_cache, NULL});
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
