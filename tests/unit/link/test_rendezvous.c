/* test_rendezvous.c - who else comes to the port where ranks meet, or sits
 * there: it keeps no rank from the others, and what is told of it is what it
 * is. */
#include "interface.h"
#include "runtime/link/socket/link_socket.h"
#include "tests/support/suite.h"
#include <check.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, SOON = 4, PATIENCE = 20 }; /* seconds */

enum { LIVES_MOST = 16 };

/* Of the ranks, which are processes: their last words. */
static char (*words)[512];
static atomic_bool *held;  /* all but the first, once they have met */
static pid_t process[LIVES_MOST];
static int port;

static int connection(void) {
  return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static struct sockaddr_in address(void) {
  return (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void set_up(void) {
  static int count;
  port = 20000 + (getpid() * 7 + count++) % 12000;
  words = mmap(NULL, LIVES_MOST * sizeof *words, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  held = mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(words != MAP_FAILED && held != MAP_FAILED);
}

static int live(int32_t index, int32_t rank) {
  char where[40];
  dil_link *link;
  snprintf(where, sizeof where, "127.0.0.1:%d", port);
  dil_status status =
      socket_link_new(where, rank, RANKS, PATIENCE, PATIENCE, &link);
  bool met = !status;
  while (met && rank && atomic_load(held)) usleep(1000);
  if (met) status = link_barrier(link);
  snprintf(words[index], sizeof words[index], "%s",
           status ? dil_last_error() : "all is well");
  if (met) link_free(link);
  return status;
}

static void begin(int32_t index, int32_t rank) {
  process[index] = fork();
  if (!process[index]) _exit(live(index, rank));
}

/* It has ended, and its last words hold these. */
static void ended(int32_t index, const char *wanted) {
  ck_assert_int_eq(waitpid(process[index], NULL, 0), process[index]);
  ck_assert_msg(strstr(words[index], wanted), "%d: %s", index, words[index]);
}

/* Somebody who comes to rank 0. */
static int visit(const char *says, size_t size) {
  struct sockaddr_in at = address();
  int file = connection();
  double end = clock_seconds() + PATIENCE;
  while (connect(file, (struct sockaddr *)&at, sizeof at))
    ck_assert(clock_seconds() < end);
  ck_assert_int_eq(send(file, says, size, MSG_NOSIGNAL), (ssize_t)size);
  return file;
}

/* All ranks beside visitors, whom they do not wait for. */
static void others_meet(double start, const int *visitor, int32_t count) {
  for (int32_t i = 1; i < RANKS; i++) begin(i, i);
  for (int32_t i = 0; i < RANKS; i++) ended(i, "all is well");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
  for (int32_t i = 0; i < count; i++) close(visitor[i]);
}

/* One that says nothing, half of what a rank says, a little, or much. */
START_TEST(strangers_keep_nobody_waiting) {
  static const char much[1000] = NET_MAGIC;
  const struct visitor {
    const char *says;
    size_t size;
  } visitors[] = {{"", 0},
                  {much, 20},
                  {"GET / HTTP/1.1\r\n", 16},
                  {"\n", 1},
                  {much, sizeof much}};
  enum { VISITORS = sizeof visitors / sizeof *visitors };
  int file[VISITORS];
  double start = clock_seconds();
  begin(0, 0);
  for (int32_t i = 0; i < VISITORS; i++)
    file[i] = visit(visitors[i].says, visitors[i].size);
  close(visit("", 0));
  others_meet(start, file, VISITORS);
}
END_TEST

/* More than rank 0 has room for. */
START_TEST(a_crowd_keeps_nobody_waiting) {
  enum { CROWD = 2 * CALLERS };
  int file[CROWD];
  double start = clock_seconds();
  begin(0, 0);
  for (int32_t i = 0; i < CROWD; i++) file[i] = visit("", 0);
  others_meet(start, file, CROWD);
}
END_TEST

/* When all have met, a rank comes that has come already. */
START_TEST(who_comes_late_is_told_so) {
  char taken[80];
  double start = clock_seconds();
  atomic_store(held, true);
  for (int32_t i = 0; i < RANKS; i++) begin(i, i);
  usleep(500000);
  begin(RANKS, _i);
  snprintf(taken, sizeof taken, "rank %d has come already, as process %d on "
           "127.0.0.1", _i, (int)process[_i]);
  ended(RANKS, taken);
  atomic_store(held, false);
  for (int32_t i = 0; i < RANKS; i++) ended(i, "all is well");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
}
END_TEST

/* Rank 1 has come, is killed, and is started again. */
START_TEST(who_goes_may_come_again) {
  double start = clock_seconds();
  begin(0, 0);
  begin(1, 1);
  usleep(500000);
  kill(process[1], SIGKILL);
  waitpid(process[1], NULL, 0);
  begin(RANKS, 1);
  begin(2, 2);
  ended(0, "all is well");
  ended(2, "all is well");
  ended(RANKS, "all is well");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
}
END_TEST

static frame coming(int32_t rank) {
  frame f = {.kind = FRAME_COMES, .rank = rank, .ranks = RANKS, .process = 4711,
             .version = DIL_INTERFACE};
  memcpy(f.magic, NET_MAGIC, sizeof f.magic);
  return f;
}

/* All have come, and the last goes before rank 1 has heard of it: while rank 0
 * says something to rank 1, which then sees it end, or later. */
START_TEST(who_goes_is_awaited_by_nobody) {
  frame f = coming(RANKS - 1);
  double start = clock_seconds();
  begin(0, 0);
  begin(1, 1);
  int file = visit((char *)&f, sizeof f);
  ck_assert_int_eq(recv(file, &f, sizeof f, MSG_WAITALL), sizeof f);
  ck_assert_int_eq(f.kind, FRAME_MESSAGE);
  usleep(_i ? 300000 : 0);
  close(file);
  ended(0, "rank 2 is gone");
  ended(1, _i ? "rank 2 is gone" : "rank ");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
}
END_TEST

/* Of another version, whose frames may be others; by its letters, by its number. */
START_TEST(another_version_comes) {
  frame odd = coming(1), old = coming(1);
  odd.version++;
  memcpy(old.magic, "dilnet2", sizeof old.magic);
  begin(0, 0);
  int file = _i ? visit((char *)&odd, sizeof odd) : visit((char *)&old, 40);
  begin(1, 1);
  begin(2, 2);
  for (int32_t i = 0; i < RANKS; i++)
    ended(i, _i ? "process 4711 on 127.0.0.1 is of another version of dil"
                : "a process on 127.0.0.1 is of another version of dil");
  ck_assert_int_eq(recv(file, &odd, sizeof odd, MSG_WAITALL), sizeof odd);
  ck_assert_int_eq(odd.kind, FRAME_FAILED);
  ck_assert_int_eq(odd.version, DIL_INTERFACE);
  close(file);
}
END_TEST

/* Somebody else sits where rank 0 is expected. */
static int sit(void) {
  struct sockaddr_in at = address();
  int file = connection(), yes = 1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  ck_assert_int_eq(bind(file, (struct sockaddr *)&at, sizeof at), 0);
  ck_assert_int_eq(listen(file, 9), 0);
  return file;
}

static void answer(int sitting, const void *says, size_t size) {
  frame f;
  int file = accept(sitting, NULL, NULL);
  ck_assert_int_ge(file, 0);
  if (size) {
    ck_assert_int_eq(recv(file, &f, sizeof f, MSG_WAITALL), sizeof f);
    ck_assert_int_eq(send(file, says, size, MSG_NOSIGNAL), (ssize_t)size);
  }
  close(file);
}

START_TEST(who_hangs_up_is_asked_again) {
  double start = clock_seconds();
  begin(1, 1);
  begin(2, 2);
  int sitting = sit(); /* they must not have it, too */
  for (int32_t i = 0; i < 5; i++) answer(sitting, NULL, 0);
  close(sitting);
  begin(0, 0);
  for (int32_t i = 0; i < RANKS; i++) ended(i, "all is well");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
}
END_TEST

/* It says what it will: a banner, another version, sizes that cannot be. */
START_TEST(a_stranger_sits_there) {
  static struct {
    frame head;
    char rest[5000];
  } wrong[2];
  wrong[0].head = wrong[1].head = coming(0);
  wrong[0].head.kind = FRAME_FAILED;
  wrong[0].head.size = -1;
  wrong[1].head.kind = FRAME_MESSAGE;
  wrong[1].head.size = sizeof wrong[1].rest;
  const struct sitter {
    const void *says;
    size_t size;
    const char *told;
  } sitters[] = {
      {"SSH-2.0-OpenSSH\r\n", 17, "what listens there is no rank of dil"},
      {"dilnet9, whatever follows", 25, "rank 0 is of another version of dil"},
      {&wrong[0], sizeof wrong[0], "rank 0 has ended while ranks met"},
      {&wrong[1], sizeof wrong[1], "rank 0 has ended while ranks met"}};
  double start = clock_seconds();
  int sitting = sit();
  for (int32_t i = 0; i < 4; i++) {
    begin(i, 1);
    answer(sitting, sitters[i].says, sitters[i].size);
    ended(i, sitters[i].told);
  }
  begin(4, 0);
  answer(sitting, sitters[0].says, sitters[0].size);
  ended(4, "rank 0 cannot listen at port");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
  close(sitting);
}
END_TEST

/* As rank 0. */
static void say(int file, int32_t kind, const void *what, size_t size) {
  frame f = coming(0);
  f.kind = kind;
  f.size = (int64_t)size;
  ck_assert_int_eq(send(file, &f, sizeof f, MSG_NOSIGNAL), sizeof f);
  ck_assert_int_eq(send(file, what, size, MSG_NOSIGNAL), (ssize_t)size);
}

/* A port that is taken; who comes there is refused, unless it listens. */
static int take_port(bool listens, struct sockaddr_storage *where) {
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof *where;
  int file = connection();
  ck_assert_int_eq(bind(file, (struct sockaddr *)&at, sizeof at), 0);
  ck_assert_int_eq(listens ? listen(file, 9) : 0, 0);
  ck_assert_int_eq(getsockname(file, (struct sockaddr *)where, &size), 0);
  return file;
}

/* Rank 2 finds rank 1 gone, because of what rank 0 only tells a moment later, or
 * never: nobody listens at its port, or it listens and ends. */
START_TEST(why_a_rank_is_gone_is_heard_of) {
  static const char reason[] = "rank 1 has another plan";
  bool listens = _i & 1, told = _i & 2;
  struct sockaddr_storage place[RANKS] = {0};
  frame f;
  double start = clock_seconds();
  int other = take_port(listens, &place[1]), sitting = sit();
  begin(2, 2);
  int file = accept(sitting, NULL, NULL);
  ck_assert_int_eq(recv(file, &f, sizeof f, MSG_WAITALL), sizeof f);
  say(file, FRAME_MESSAGE, place, sizeof place);
  if (listens) close(accept(other, NULL, NULL));
  usleep(300000);
  if (told) say(file, FRAME_FAILED, reason, sizeof reason - 1);
  ended(2, told      ? reason
           : listens ? "rank 1 " /* has ended, or is gone: soon, late */
                     : "rank 1 does not listen where it is said to be");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
  close(file);
  close(sitting);
  close(other);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("port");
  TCase *tests = tcase_create("port");
  tcase_set_timeout(tests, 6 * PATIENCE);
  tcase_add_checked_fixture(tests, set_up, NULL);
  tcase_add_test(tests, strangers_keep_nobody_waiting);
  tcase_add_test(tests, a_crowd_keeps_nobody_waiting);
  tcase_add_loop_test(tests, who_comes_late_is_told_so, 0, RANKS);
  tcase_add_test(tests, who_goes_may_come_again);
  tcase_add_loop_test(tests, who_goes_is_awaited_by_nobody, 0, 2);
  tcase_add_loop_test(tests, another_version_comes, 0, 2);
  tcase_add_test(tests, who_hangs_up_is_asked_again);
  tcase_add_test(tests, a_stranger_sits_there);
  tcase_add_loop_test(tests, why_a_rank_is_gone_is_heard_of, 0, 4);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
