/* test_port.c - who else comes to the port where ranks meet, or sits there: it
 * keeps no rank from the others, and what is told of it is what it is. */
#include "../runtime/link_socket.h"
#include "suite.h"
#include <check.h>
#include <netinet/in.h>
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
  if (met) status = link_meet(link);
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

/* One that says nothing, half of what a rank says, a little, or much. */
START_TEST(strangers_keep_nobody_waiting) {
  static const char much[1000] = NET_MAGIC;
  const struct visitor {
    const char *says;
    size_t size;
  } visitors[] = {{"", 0},
                  {NET_MAGIC, 20},
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
  for (int32_t i = 1; i < RANKS; i++) begin(i, i);
  for (int32_t i = 0; i < RANKS; i++) ended(i, "all is well");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
  for (int32_t i = 0; i < VISITORS; i++) close(file[i]);
}
END_TEST

/* More than rank 0 has room for. */
START_TEST(a_crowd_keeps_nobody_waiting) {
  enum { CROWD = 2 * CALLERS };
  int file[CROWD];
  double start = clock_seconds();
  begin(0, 0);
  for (int32_t i = 0; i < CROWD; i++) file[i] = visit("", 0);
  for (int32_t i = 1; i < RANKS; i++) begin(i, i);
  for (int32_t i = 0; i < RANKS; i++) ended(i, "all is well");
  double took = clock_seconds() - start;
  ck_assert_msg(took < SOON, "took %g s", took);
  for (int32_t i = 0; i < CROWD; i++) close(file[i]);
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

int main(void) {
  Suite *suite = suite_create("port");
  TCase *tests = tcase_create("port");
  tcase_set_timeout(tests, 6 * PATIENCE);
  tcase_add_checked_fixture(tests, set_up, NULL);
  tcase_add_test(tests, strangers_keep_nobody_waiting);
  tcase_add_test(tests, a_crowd_keeps_nobody_waiting);
  tcase_add_loop_test(tests, who_comes_late_is_told_so, 0, RANKS);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
