/* test_link.c - ranks that are processes and meet in a file: what they send
 * arrives whole, and whoever is killed, stopped, or sends another size is named
 * on all others in time. */
#include "runtime/base/status.h"
#include "runtime/link/link.h"
#include "tests/support/suite.h"
#include <check.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, VICTIM = 2, BYTES = 300001 }; /* several pieces */
enum { STRUCK_IN = 5, PATIENCE = 120 };         /* a round; seconds */

/* What the ranks and this process tell each other. */
typedef struct shared {
  atomic_int met;        /* ranks that have exchanged something */
  atomic_bool stopped;   /* the victim is */
  _Atomic double struck; /* when it was */
} shared;

typedef struct link_scene {
  int port;              /* 0: they meet in the file */
  int32_t odd_count;     /* of ranks, that the victim believes in; 0: right */
  double patience;
  char path[64];
  double timeout;
  int64_t odd;           /* bytes that the victim's messages lack */
  int32_t rounds;
  bool shrinks;          /* those left go on, for two rounds */
  bool stops;            /* the victim stops by itself, in a round of its own */
  bool split;            /* each two exchange by a link of their own */
  const struct stroke *by; /* of who collects */
  shared *shared;
} link_scene;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* To the next rank, from the one before: bytes that tell whose they are. */
static dil_status pass_on(dil_link *link, const link_scene *s, int32_t round) {
  int32_t rank = link->rank, from = (rank + link->ranks - 1) % link->ranks;
  int64_t odd = rank == VICTIM ? s->odd : 0;
  char *mine = malloc(BYTES), *theirs = malloc(BYTES);
  memset(mine, rank + round, BYTES);
  const link_transfer t = {.to = (rank + 1) % link->ranks, .from = from,
                           .send = mine, .receive = theirs,
                           .send_bytes = BYTES - odd, .receive_bytes = BYTES};
  link->step = round;
  dil_status status = link->calls->post(link, 0, &t);
  if (!status) status = link->calls->wait(link, 0);
  for (int32_t i = 0; i < BYTES && !status; i++)
    if (theirs[i] != (char)(from + round)) status = DIL_INTERNAL;
  free(mine);
  free(theirs);
  return status;
}

/* Without the victim, whom all must have lost. */
static dil_status go_on(const link_scene *s, dil_link **link) {
  bool lost[RANKS] = {false};
  dil_link *smaller;
  if (!(*link)->calls->failed_ranks(*link, lost))
    return dil_fail(DIL_INTERNAL, "nobody is lost");
  for (int32_t i = 0; i < RANKS; i++)
    if (lost[i] != (i == VICTIM)) return dil_fail(DIL_INTERNAL, "rank %d", i);
  (*link)->timeout = PATIENCE; /* nobody else is late, however slow */
  dil_status status = (*link)->calls->shrink(*link, lost, &smaller);
  if (status) return status;
  link_free(*link);
  *link = smaller;
  for (int32_t i = 0; i < 2 && !status; i++)
    status = pass_on(*link, s, i);
  return status;
}

static void pause_briefly(void) { usleep(1000); }

/* Nobody's time runs before the victim has stopped: who is late then is he. */
static void begin_round(const link_scene *s, dil_link *link, int32_t round) {
  if (round == 1) atomic_fetch_add(&s->shared->met, 1);
  if (!s->stops) return;
  link->timeout = round < STRUCK_IN ? PATIENCE : s->timeout;
  if (round != STRUCK_IN) return;
  if (link->rank == VICTIM) raise(SIGSTOP);
  while (!atomic_load(&s->shared->stopped)) pause_briefly();
}

static dil_status join_all(const link_scene *s, int32_t rank, dil_link **link) {
  char address[40];
  int32_t ranks = rank == VICTIM && s->odd_count ? s->odd_count : RANKS;
  snprintf(address, sizeof address, "127.0.0.1:%d", s->port);
  return s->port ? socket_link_new(address, rank, ranks, s->patience,
                                   s->timeout, link)
                 : file_link_new(s->path, rank, RANKS, s->timeout, link);
}

static dil_status join_two(const link_scene *s, int32_t rank, dil_link *all,
                           dil_link **link) {
  char path[80];
  int32_t first = rank - rank % 2;
  snprintf(path, sizeof path, "%s.of%d", s->path, first);
  dil_status status =
      s->port ? socket_link_part(all, first, 2, s->timeout, link)
              : file_link_new(path, rank % 2, 2, s->timeout, link);
  if (status) return status;
  (*link)->first = first;
  (*link)->above = all;
  return DIL_OK;
}

/* A rank's life; its last words go to a file. */
static int live(const link_scene *s, int32_t rank) {
  char words[80];
  dil_link *link, *all = NULL;
  dil_status status = join_all(s, rank, &link);
  bool met = !status;
  if (met && s->split) status = join_two(s, rank, all = link, &link);
  for (int32_t i = 0; i < s->rounds && !status; i++) {
    begin_round(s, link, i);
    status = pass_on(link, s, i);
    if (all && !status) status = all->calls->check(all);
    if (all && status) link->calls->report_failure(link, -1, dil_last_error());
  }
  if (status && met && s->shrinks) status = go_on(s, &link);
  snprintf(words, sizeof words, "%s.%d", s->path, rank);
  FILE *out = fopen(words, "w");
  fprintf(out, "%s\n", status ? dil_last_error() : "all is well");
  fclose(out);
  if (!status) link_free(link);
  return status != DIL_OK;
}

static link_scene scene_of(const char *name, double timeout) {
  link_scene s = {.timeout = timeout, .rounds = 1 << 30};
  snprintf(s.path, sizeof s.path, "/tmp/test_link.%s.%d", name, (int)getpid());
  s.shared = mmap(NULL, sizeof *s.shared, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(s.shared != MAP_FAILED);
  return s;
}

static void begin(const link_scene *s, pid_t pids[RANKS]) {
  for (int32_t i = 0; i < RANKS; i++) {
    pids[i] = fork();
    if (!pids[i]) _exit(live(s, i));
  }
}

/* How a rank ended, and that its last words hold `word`. */
static int ended(const link_scene *s, pid_t pid, int32_t rank,
                 const char *word) {
  char path[80], text[512] = "";
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  snprintf(path, sizeof path, "%s.%d", s->path, rank);
  FILE *in = fopen(path, "r");
  ck_assert_msg(in != NULL, "rank %d said nothing", rank);
  ck_assert(fgets(text, sizeof text, in) != NULL);
  fclose(in);
  unlink(path);
  ck_assert_msg(strstr(text, word) != NULL, "rank %d: %s", rank, text);
  return status;
}

/* By turns in a file and at a port of this process's own. */
static link_scene scene_by(int32_t way, const char *name, double timeout) {
  static int count;
  link_scene s = scene_of(name, timeout);
  s.patience = 20;
  if (way) s.port = 20000 + (getpid() * 7 + count++) % 12000;
  return s;
}

START_TEST(messages_arrive_whole) {
  link_scene s = scene_by(_i, "whole", 20);
  pid_t pids[RANKS];
  s.rounds = 20;
  begin(&s, pids);
  for (int32_t i = 0; i < RANKS; i++)
    ck_assert_int_eq(ended(&s, pids[i], i, "all is well"), 0);
  ck_assert_int_ne(access(s.path, F_OK), 0);
}
END_TEST

/* All have met; the victim is killed at any moment then, or stops. */
static void strike(const link_scene *s, const pid_t pids[RANKS]) {
  int status;
  while (atomic_load(&s->shared->met) < RANKS) pause_briefly();
  if (!s->stops) {
    usleep(100000);
    kill(pids[VICTIM], SIGKILL);
    return;
  }
  ck_assert_int_eq(waitpid(pids[VICTIM], &status, WUNTRACED), pids[VICTIM]);
  ck_assert(WIFSTOPPED(status));
  atomic_store(&s->shared->stopped, true);
}

static void bury(const pid_t pids[RANKS]) {
  kill(pids[VICTIM], SIGKILL);
  waitpid(pids[VICTIM], NULL, 0);
}

static void name_victim(const link_scene *s, const char *word) {
  pid_t pids[RANKS];
  begin(s, pids);
  strike(s, pids);
  double start = now();
  for (int32_t i = 0; i < RANKS; i++)
    if (i != VICTIM) ck_assert_int_ne(ended(s, pids[i], i, word), 0);
  ck_assert_msg(now() - start < 3, "took %g s", now() - start);
  bury(pids);
}

START_TEST(killed_rank_is_named) {
  link_scene s = scene_by(_i, "killed", 10);
  name_victim(&s, "rank 2 is gone");
}
END_TEST

START_TEST(killed_rank_of_two_is_named_among_all) {
  link_scene s = scene_by(_i, "split", 10);
  s.split = true;
  name_victim(&s, "rank 2 is gone");
}
END_TEST

START_TEST(stopped_rank_is_named) {
  link_scene s = scene_by(_i, "stopped", 1);
  s.stops = true;
  name_victim(&s, "rank 2 is silent");
}
END_TEST

static void lose(link_scene s) {
  pid_t pids[RANKS];
  s.shrinks = true;
  begin(&s, pids);
  strike(&s, pids);
  for (int32_t i = 0; i < RANKS; i++)
    if (i != VICTIM) ck_assert_int_eq(ended(&s, pids[i], i, "all is well"), 0);
  bury(pids);
}

START_TEST(those_left_go_on) {
  link_scene dead = scene_by(_i, "dead", PATIENCE);
  link_scene frozen = scene_by(_i, "frozen", 1);
  frozen.stops = true;
  lose(dead);
  lose(frozen);
}
END_TEST

/* Ranks whose lives end well, but for one that is lost: struck from here, or by
 * itself. */
static void live_all(const link_scene *s,
                     int (*life)(const link_scene *s, int32_t rank),
                     int32_t lost, bool strikes) {
  pid_t pids[RANKS];
  for (int32_t i = 0; i < RANKS; i++) {
    pids[i] = fork();
    if (!pids[i]) _exit(life(s, i) != 0);
  }
  if (strikes) strike(s, pids);
  for (int32_t i = 0, status; i < RANKS; i++) {
    if (i == lost) continue;
    ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
    ck_assert_msg(!status, "rank %d: status %d", i, status);
  }
  kill(pids[lost], SIGKILL);
  waitpid(pids[lost], NULL, 0);
}

/* Of what one rank sends, which is more than its connection holds. */
static dil_status send_much(dil_link *link, int32_t to) {
  static char much[1 << 26];
  const link_transfer t = {.to = to, .from = -1, .send = much,
                           .send_bytes = sizeof much};
  link->calls->post(link, 0, &t);
  return link->calls->wait(link, 0);
}

static dil_status receive_much(dil_link *link, int32_t from) {
  static char much[1 << 26];
  const link_transfer t = {.to = -1, .from = from, .receive = much,
                           .receive_bytes = sizeof much};
  link->calls->post(link, 0, &t);
  return link->calls->wait(link, 0);
}

/* The victim is killed with rows under way to rank 0, who sees no end of its
 * connection behind them; the last rank does, in the middle of a message to rank
 * 0; rank 1 sees nothing. */
static int live_behind_rows(const link_scene *s, int32_t rank) {
  dil_link *link;
  int bad = join_all(s, rank, &link) != DIL_OK;
  atomic_fetch_add(&s->shared->met, 1);
  if (rank == VICTIM) send_much(link, 0);
  if (rank == RANKS - 1) {
    bad |= send_much(link, 0) != DIL_PEER;
    atomic_store(&s->shared->stopped, true);
  }
  while (rank == 0 && !atomic_load(&s->shared->stopped)) pause_briefly();
  if (rank == 0) {
    bad |= receive_much(link, RANKS - 1) != DIL_PEER ||
           !strstr(dil_last_error(), "rank 2 is gone");
    atomic_store(&s->shared->met, 0);
  }
  while (atomic_load(&s->shared->met)) pause_briefly();
  return bad;
}

START_TEST(killed_rank_is_named_behind_its_rows) {
  link_scene s = scene_by(1, "behind", 10);
  live_all(&s, live_behind_rows, VICTIM, true);
}
END_TEST

/* Rank 0 takes a byte of each in turn, and all are late by less than a wait may
 * take: that is no fault of it, nor of those whose turn has not come. Then it is
 * struck itself, or a rank is that says nothing at its turn. */
typedef struct stroke {
  int32_t rank, signal; /* 0: it goes on, and is busy */
  const char *words;
} stroke;

static const stroke strokes[] = {{0, SIGSTOP, "rank 0 is silent"},
                                 {0, SIGKILL, "rank 0 is gone"},
                                 {0, 0, "rank 0 is silent"},
                                 {2, 0, "rank 2 is silent"}};
enum { STROKES = sizeof strokes / sizeof *strokes };

static void suffer(const link_scene *s, const stroke *by) {
  atomic_store(&s->shared->struck, now());
  if (by->signal) raise(by->signal);
  else usleep((useconds_t)(3e6 * s->timeout));
}

static dil_status take_turns(const link_scene *s, dil_link *link,
                             const stroke *by) {
  char byte = 0;
  int32_t rank = link->rank;
  dil_status status = DIL_OK;
  link->is_awaited = rank == 0;
  for (int32_t i = 1; i < RANKS && !status; i++) {
    const link_transfer t = {.to = rank ? 0 : -1, .from = rank ? -1 : i,
                             .send = &byte, .receive = &byte,
                             .send_bytes = rank > 0, .receive_bytes = !rank};
    if (rank && rank != i) continue;
    usleep((useconds_t)(6e5 * s->timeout * rank));
    if (rank && rank == by->rank) suffer(s, by);
    link->calls->post(link, 0, &t);
    status = link->calls->wait(link, 0);
  }
  if (!status && rank == by->rank) suffer(s, by);
  return status ? status : link_dismiss(link);
}

/* In time: a wait, and what it takes to agree on whose fault it was. */
static int live_by_turns(const link_scene *s, int32_t rank) {
  const stroke *by = s->by;
  dil_link *link;
  dil_status status = join_all(s, rank, &link);
  if (!status) status = take_turns(s, link, by);
  double took = now() - atomic_load(&s->shared->struck);
  bool named = status == DIL_PEER && strstr(dil_last_error(), by->words);
  bool in_time = took < 2 * s->timeout + 0.5;
  if (rank != by->rank && !(named && in_time))
    fprintf(stderr, "rank %d: %s, %g s\n", rank, dil_last_error(), took);
  return rank != by->rank && !(named && in_time);
}

START_TEST(who_collects_is_not_silent) {
  link_scene s = scene_by(_i % 2, "turns", 1);
  s.by = &strokes[_i / 2];
  live_all(&s, live_by_turns, s.by->rank, false);
}
END_TEST

/* Rank 3 waits in its ring for the victim, that has stopped. Ranks 0 and 1, whose
 * ring is done, have waited for rank 3 since before that, and do not name
 * it. */
static int live_behind_a_ring(const link_scene *s, int32_t rank) {
  dil_link *all, *ring;
  char byte;
  dil_status status = join_all(s, rank, &all);
  if (!status) status = join_two(s, rank, all, &ring);
  if (status) return fprintf(stderr, "rank %d: %s\n", rank, dil_last_error());
  if (rank == VICTIM) raise(SIGSTOP);
  usleep(rank == 3 ? (useconds_t)(6e5 * s->timeout) : 0);
  dil_link *link = rank == 3 ? ring : all;
  const link_transfer t = {.to = -1, .from = rank == 3 ? VICTIM % 2 : 3,
                           .receive = &byte, .receive_bytes = 1};
  link->calls->post(link, 0, &t);
  status = link->calls->wait(link, 0);
  if (rank == 3) all->calls->revoke(all, dil_last_error());
  bool named = status == DIL_PEER && strstr(dil_last_error(), "rank 2 is silent");
  if (!named) fprintf(stderr, "rank %d: %s\n", rank, dil_last_error());
  return !named;
}

START_TEST(who_waits_in_its_ring_is_not_silent) {
  link_scene s = scene_by(_i, "above", 1);
  live_all(&s, live_behind_a_ring, VICTIM, false);
}
END_TEST

/* The victim is killed, and all others have failed over it before rank 0 comes to
 * dismiss them: it must not believe that they go, who wait for it. */
static int live_to_the_end(const link_scene *s, int32_t rank) {
  dil_link *link;
  dil_status status = join_all(s, rank, &link);
  atomic_fetch_add(&s->shared->met, 1);
  while (rank == VICTIM) pause_briefly();
  while (rank == 0 && atomic_load(&s->shared->met) < 2 * RANKS - 2)
    pause_briefly();
  if (!status) status = link_dismiss(link);
  bool named = status == DIL_PEER && strstr(dil_last_error(), "rank 2 is gone");
  atomic_fetch_add(&s->shared->met, 1);
  status = named ? go_on(s, &link) : DIL_INTERNAL;
  if (!status) status = link_dismiss(link);
  if (status) fprintf(stderr, "rank %d: %s\n", rank, dil_last_error());
  else link_free(link);
  return status != DIL_OK;
}

START_TEST(dismissed_are_all_or_none) {
  link_scene s = scene_by(_i, "end", 10);
  live_all(&s, live_to_the_end, VICTIM, true);
}
END_TEST

START_TEST(another_size_is_an_error) {
  link_scene s = scene_by(_i, "size", 10);
  pid_t pids[RANKS];
  s.odd = 7;
  begin(&s, pids);
  for (int32_t i = 0; i < RANKS; i++)
    ck_assert_int_ne(ended(&s, pids[i], i, "rank 2 sent 299994 bytes"), 0);
}
END_TEST

START_TEST(ranks_that_do_not_meet) {
  link_scene s = scene_by(1, "meet", 10);
  pid_t pids[RANKS];
  s.odd_count = RANKS + 1;
  begin(&s, pids);
  for (int32_t i = 0; i < RANKS; i++)
    ck_assert_int_ne(ended(&s, pids[i], i, i == VICTIM || i == 0
                           ? "a process is rank 2 of 5, here are 4"
                           : "ranks do not meet at"), 0);
  dil_link *link;
  ck_assert_int_eq(socket_link_new("127.0.0.1:29999", 1, 2, 0.3, 1, &link),
                   DIL_PEER);
  ck_assert_int_eq(socket_link_new("127.0.0.1:29998", 0, 2, 0.3, 1, &link),
                   DIL_PEER);
  ck_assert(strstr(dil_last_error(), "1 of 2 ranks have come") != NULL);
  ck_assert_int_eq(socket_link_new("here:70000", 1, 2, 0.3, 1, &link),
                   DIL_USAGE);
  ck_assert(strstr(dil_last_error(), "is no HOST:PORT") != NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("link");
  TCase *tests = tcase_create("link");
  tcase_set_timeout(tests, 2 * PATIENCE);
  tcase_add_loop_test(tests, messages_arrive_whole, 0, 2);
  tcase_add_loop_test(tests, killed_rank_is_named, 0, 2);
  tcase_add_loop_test(tests, killed_rank_of_two_is_named_among_all, 0, 2);
  tcase_add_loop_test(tests, stopped_rank_is_named, 0, 2);
  tcase_add_loop_test(tests, those_left_go_on, 0, 2);
  tcase_add_test(tests, killed_rank_is_named_behind_its_rows);
  tcase_add_loop_test(tests, who_collects_is_not_silent, 0, 2 * STROKES);
  tcase_add_loop_test(tests, who_waits_in_its_ring_is_not_silent, 0, 2);
  tcase_add_loop_test(tests, dismissed_are_all_or_none, 0, 2);
  tcase_add_loop_test(tests, another_size_is_an_error, 0, 2);
  tcase_add_test(tests, ranks_that_do_not_meet);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
