/* test_cache_faults.c - the cache when calls fail, disks are full, writers are
 * killed, and other processes and threads are at work in the same folder. */
#include "tests/support/cache_box.h"
#include "tests/support/fault.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- faults -------------------------------------------------------------- */

/* One call goes wrong on the way of a put and a get: what comes back is right
 * or nothing, no file is left over, and the next one works. */
static void expect_harmless(fault_call call, int at, fault_way way, int error,
                            bool ever, bool *reached) {
  box_command("rm -rf %s", box_folder);
  fault_set(call, at, way, error, ever);
  dil_cache *c = NULL;
  cache_options o = box_options(CACHE_ON);
  if (!cache_new(&o, &c)) {
    box_put(c, "some key", "some value");
    cache_free(c);
    c = NULL;
    if (!cache_new(&o, &c)) box_has(c, "some key", "some value");
  }
  *reached = fault_count(call) > at;
  cache_free(c);
  fault_clear();
  box_disk_put("another", "value");
  ck_assert(box_disk_has("another", "value"));
  box_disk_put("some key", "some value");
  ck_assert(box_disk_has("some key", "some value"));
  ck_assert_int_eq(box_count(".temporary"), 0);
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
      box_command("rm -rf %s", box_folder);
      fault_set(calls[i], 0, way ? FAULT_SHORT : FAULT_ERROR, EINTR, way);
      box_disk_put("some key", "some value");
      ck_assert(box_disk_has("some key", "some value"));
      ck_assert_int_ge(fault_count(calls[i]), 2);
      fault_clear();
      ck_assert_int_eq(box_warnings, 0);
    }
}
END_TEST

START_TEST(a_full_disk_is_told_once) {
  dil_cache *c = box_cache(CACHE_ON);
  cache_stats s;
  fault_set(FAULT_write, 0, FAULT_ERROR, ENOSPC, true);
  box_put(c, "a", "value");
  box_put(c, "b", "value");
  box_put(c, "c", "value");
  ck_assert_int_eq(box_warnings, 1);
  ck_assert_ptr_nonnull(strstr(box_said, strerror(ENOSPC)));
  ck_assert(box_has(c, "b", "value"));
  cache_read_stats(c, &s);
  ck_assert_int_eq(s.write_failures, 3);
  fault_clear();
  box_put(c, "d", "value");
  cache_free(c);
  ck_assert(box_disk_has("d", "value"));
  ck_assert(!box_disk_has("a", "value"));
}
END_TEST

/* Puts where no file may have more than a few bytes; Check writes files of its
 * own, so nothing is asserted meanwhile. */
static void put_limited(dil_cache *c, const char *key) {
  struct rlimit before, few;
  int bad = getrlimit(RLIMIT_FSIZE, &before);
  few = (struct rlimit){.rlim_cur = 50, .rlim_max = before.rlim_max};
  bad |= setrlimit(RLIMIT_FSIZE, &few);
  box_put(c, key, "value");
  bad |= setrlimit(RLIMIT_FSIZE, &before);
  ck_assert_int_eq(bad, 0);
}

static bool is_pending(void) {
  sigset_t waiting;
  ck_assert_int_eq(sigpending(&waiting), 0);
  return sigismember(&waiting, SIGXFSZ) == 1;
}

static bool is_blocked(void) {
  sigset_t mask;
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
  return sigismember(&mask, SIGXFSZ) == 1;
}

/* The signal would end this process. */
START_TEST(a_limit_on_files_is_told) {
  dil_cache *c = box_cache(CACHE_ON);
  put_limited(c, "a");
  ck_assert_int_eq(box_warnings, 1);
  ck_assert_ptr_nonnull(strstr(box_said, strerror(EFBIG)));
  ck_assert_int_eq(box_count(""), 0);
  ck_assert(!is_blocked() && !is_pending());
  ck_assert(box_has(c, "a", "value"));
  cache_free(c);
}
END_TEST

/* One that waits because the host wants it to goes on waiting. */
START_TEST(a_signal_of_the_host_stays) {
  sigset_t ours;
  dil_cache *c = box_cache(CACHE_ON);
  sigemptyset(&ours);
  sigaddset(&ours, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &ours, NULL);
  put_limited(c, "a");
  ck_assert(is_blocked() && !is_pending());
  raise(SIGXFSZ);
  put_limited(c, "b");
  ck_assert(is_blocked() && is_pending());
  ck_assert_int_eq(sigwaitinfo(&ours, NULL), SIGXFSZ);
  pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
  cache_free(c);
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
  dil_cache *c = box_cache(CACHE_ON);
  for (unsigned number = seed;; number++) {
    name_of(number, key, text, 1 << 17);
    box_put(c, key, text);
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
    dil_cache *c = box_cache(CACHE_ON);
    check_keys(c);
    cache_read_stats(c, &s);
    ck_assert_int_eq(s.refused, 0);
    hits += s.disk_hits;
    cache_free(c);
  }
  ck_assert_int_gt(hits, KILLS);
  ck_assert_int_eq(box_warnings, 0);
  box_disk_put("some key", "some value"); /* the first write looks around */
  ck_assert_int_eq(box_count(".temporary"), 0);
  printf("%d kills, %lld entries read\n", KILLS, (long long)hits);
}
END_TEST

/* A process that writes an entry, and stops before that has its name. */
static pid_t stopped_writer(void) {
  int status;
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    dil_cache *c = box_cache(CACHE_ON);
    fault_set(FAULT_renameat, 0, FAULT_STOP, 0, false);
    box_put(c, "some key", "some value");
    cache_free(c);
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
  ck_assert(WIFSTOPPED(status));
  return child;
}

/* By the lock a process of another container knows that a writer is at work. */
START_TEST(a_writer_has_its_lock_until_the_end) {
  char pattern[PATH_MAX];
  glob_t found;
  int status;
  pid_t child = stopped_writer();
  snprintf(pattern, sizeof pattern, "%s/*.temporary", box_folder);
  ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
  int file = open(found.gl_pathv[0], O_RDONLY | O_CLOEXEC);
  bool locked = file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0;
  globfree(&found);
  if (file >= 0) close(file);
  kill(child, SIGCONT);
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  ck_assert(locked);
  ck_assert(box_disk_has("some key", "some value"));
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
      dil_cache *c = box_cache(CACHE_ON);
      check_keys(c);
      name_of(p * 5 + i, key, text, 1 << 14);
      box_put(c, key, text);
      check_keys(c);
      cache_read_stats(c, &s);
      if (s.refused || s.write_failures) _exit(1);
      cache_free(c);
    }
    _exit(box_warnings != 0);
  }
  for (int p = 0; p < PROCESSES; p++) {
    int status;
    ck_assert_int_eq(waitpid(child[p], &status, 0), child[p]);
    ck_assert_int_eq(status, 0);
  }
  ck_assert_int_eq(box_count(".kernel"), KEYS);
  ck_assert_int_eq(box_count(".temporary"), 0);
}
END_TEST

static void *use_cache(void *cache) {
  char key[32], *text = malloc(1 << 12);
  for (unsigned i = 0; i < 200; i++) {
    name_of(i * 3, key, text, 1 << 12);
    box_put(cache, key, text);
    check_keys(cache);
  }
  free(text);
  return NULL;
}

START_TEST(threads_share_a_cache) {
  enum { THREADS = 4 };
  pthread_t thread[THREADS];
  dil_cache *c = box_cache(CACHE_ON);
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, use_cache, c), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  cache_free(c);
  ck_assert_int_eq(box_warnings, 0);
}
END_TEST

int main(void) {
  const box_case cases[] = {
      {"faults",
       (const TTest *const[]){
            every_call_fails_once_and_for_ever,
            interrupted_and_short_transfers_are_continued,
            a_full_disk_is_told_once, a_limit_on_files_is_told,
            a_signal_of_the_host_stays, NULL}},
      {"company",
       (const TTest *const[]){
            a_thousand_kills_do_no_harm,
            a_writer_has_its_lock_until_the_end,
            processes_share_the_folder, threads_share_a_cache, NULL}},
      {NULL, NULL}};
  box_before_abort = fault_clear;
  fault_clear();
  return box_run("cache_faults", cases);
}
