/* link_host.c - the MPI link by itself, between processes. In: mpirun, and what
 * is to be tried. Out: a line `good` a rank when all went as it must; else
 * what did not. Called by tests/cli/mpi.sh. */
#include "runtime/base/module.h"
#include "runtime/link/mpi/job.h"
#include "tests/support/real_thread.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const dil_mpi_module *mpi;
static dil_link *joined;
static int32_t self, all;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void wrong(const char *what, const char *detail) {
  fprintf(stderr, "rank %d: %s: %s\n", self, what, detail);
  exit(1);
}

static dil_status try_post(int32_t slot, link_transfer t) {
  return joined->calls->post(joined, slot, &t);
}

static void post(int32_t slot, link_transfer t) {
  if (try_post(slot, t)) wrong("post", dil_last_error());
}

static dil_status try_wait(int32_t slot) {
  return joined->calls->wait(joined, slot);
}

static void wait_for(int32_t slot) {
  if (try_wait(slot)) wrong("wait", dil_last_error());
}

static void expect_words(dil_status status, const char *words) {
  if (status != DIL_PEER) wrong("status is not DIL_PEER", words);
  if (!strstr(dil_last_error(), words)) wrong(words, dil_last_error());
}

/* To the next rank, from the one before. */
static link_transfer around(const void *send, void *receive, int64_t bytes) {
  return (link_transfer){.to = (self + 1) % all,
                         .from = (self + all - 1) % all,
                         .send = send,
                         .receive = receive,
                         .send_bytes = bytes,
                         .receive_bytes = bytes};
}

static void meet(void) {
  char mine = 0, theirs;
  for (int32_t i = 0; i < all; i++) { /* as far as the ring is long */
    post(0, around(&mine, &theirs, 1));
    wait_for(0);
  }
}

/* A byte that is awaited. */
static link_transfer from_rank(int32_t rank, void *receive) {
  return (link_transfer){.to = -1, .from = rank, .receive = receive,
                         .receive_bytes = 1};
}

/* ---- what is tried ------------------------------------------------------- */

/* Bytes move while nobody is in a wait: the wait after a second's absence is
 * short beside that of a rank which asked at once. */
static void overlap(void) {
  enum { BYTES = 64 << 20 };
  char *out = malloc(BYTES), *in = malloc(BYTES);
  memset(out, self + 1, BYTES);
  memset(in, 0, BYTES);
  double waited[2];
  for (int turn = 0; turn < 2; turn++) {
    meet();
    post(1, around(out, in, BYTES));
    if (turn) usleep((useconds_t)(1e6 + 3e6 * waited[0]));
    double start = now();
    wait_for(1);
    waited[turn] = now() - start;
    if (in[BYTES - 1] != (self + all - 1) % all + 1) wrong("overlap", "bytes");
  }
  printf("rank %d: %d MiB at %.2f GB/s; waited %.1f ms at once, %.1f ms after "
         "an absence\n", self, BYTES >> 20, BYTES / waited[0] * 1e-9,
         1e3 * waited[0], 1e3 * waited[1]);
  if (waited[1] > waited[0] / 4 + 0.005) wrong("overlap", "nothing moved");
  free(out);
  free(in);
}

/* Slots are told apart, whatever their order. */
static void reordered(void) {
  enum { BYTES = 100000, SLOTS = 3 };
  static char out[SLOTS][BYTES], in[SLOTS][BYTES];
  for (int32_t i = 0; i < SLOTS; i++) {
    int32_t slot = self % 2 ? SLOTS - 1 - i : i;
    memset(out[slot], 10 * self + slot, BYTES);
    post(slot, around(out[slot], in[slot], BYTES));
  }
  for (int32_t slot = 0; slot < SLOTS; slot++) wait_for(slot);
  for (int32_t slot = 0; slot < SLOTS; slot++)
    if (in[slot][BYTES - 1] != 10 * ((self + all - 1) % all) + slot)
      wrong("reordered", "a message is another's");
}

/* One that is late each time, but within the timeout, is no fault. */
static void slow(void) {
  static char out[1000], in[1000];
  for (int i = 0; i < 4; i++) {
    if (self == 1) usleep((useconds_t)(0.6e6 * joined->timeout));
    post(1, around(out, in, sizeof out));
    wait_for(1);
  }
}

/* Who is served by rank 1 sees it, and the others are told. */
static void truncated(void) {
  static char out[5000], in[5000];
  link_transfer t = around(out, in, sizeof out);
  bool served = self == 2 % all;
  if (self == 1) t.send_bytes -= 64;
  dil_status status = try_post(1, t);
  if (!status) status = try_wait(1);
  if (!status && !served) {
    status = try_post(2, from_rank(2 % all, in));
    if (!status) status = try_wait(2);
  }
  expect_words(status, "rank 1 sent 4936 bytes to rank");
  if (served) joined->calls->revoke(joined, dil_last_error());
}

/* Rank 0 takes a byte of each in turn, which are late, and is busy itself then,
 * longer than a wait may take, but lives. */
static void await_turns(void) {
  char byte = 0;
  double begun = now();
  joined->is_awaited = self == 0;
  if (self) usleep((useconds_t)(0.7e6 * self * joined->timeout));
  for (int32_t i = 1; i < all; i++) {
    if (self == i)
      post(1, (link_transfer){.to = 0, .from = -1, .send = &byte,
                              .send_bytes = 1});
    if (!self) post(1, from_rank(i, &byte));
    if (!self || self == i) wait_for(1);
  }
  while (!self && now() < begun + 3 * joined->timeout) {
    link_heartbeat(joined);
    usleep(1000);
  }
}

static void awaited(void) {
  await_turns();
  if (link_dismiss(joined)) wrong("dismissal", dil_last_error());
}

/* Three timeouts on it says nothing any more: all others name it, and in time. */
static void forsaken(void) {
  double begun = now(), timeout = joined->timeout;
  await_turns();
  if (self) {
    expect_words(link_dismiss(joined), "rank 0 is silent");
    double took = now() - begun;
    if (took < 3.5 * timeout) wrong("forsaken", "rank 0 was named too early");
    if (took > 5.5 * timeout) wrong("forsaken", "rank 0 was named too late");
    joined->calls->revoke(joined, dil_last_error());
  }
  usleep((useconds_t)(1e6 * (begun + 6 * timeout - now()))); /* together */
}

/* The last rank says nothing; each other waits for the next one. All name the
 * last, and none takes much longer than the timeout. */
static void chain(void) {
  char byte, words[64];
  double start = now(), most = joined->timeout + 2;
  snprintf(words, sizeof words, "rank %d is silent", all - 1);
  if (self < all - 1) {
    post(1, from_rank(self + 1, &byte));
    expect_words(try_wait(1), words);
    if (now() - start > most) wrong("chain", "took too long");
    joined->calls->revoke(joined, dil_last_error());
  }
  usleep((useconds_t)(1e6 * (start + most - now()))); /* all leave together */
}

/* While this is set, no thread can be started. */
static bool no_threads;

/* Takes the place of the C library's, also for dilrt-mpi.so. */
DIL_API int pthread_create(pthread_t *thread, const pthread_attr_t *how,
                           void *(*begin)(void *), void *context) {
  return no_threads ? EAGAIN
                    : real_pthread_create(thread, how, begin, context);
}

/* A link that cannot have its courier gives back its communicator: there are
 * more of them here than MPI can number at once. */
static void unserved(void) {
  enum { TIMES = 66000 }; /* MPI numbers them with 16 bits */
  dil_link *none = NULL;
  no_threads = true;
  for (int i = 0; i < TIMES; i++) {
    dil_status status = mpi->link(0, 1, &none);
    if (status != DIL_ENVIRONMENT || none) wrong("unserved", "status");
    if (!strstr(dil_last_error(), "no thread for the link"))
      wrong("unserved", dil_last_error());
  }
  no_threads = false;
}

/* Two links that are revoked one after the other tell two reasons. */
static void revoked_twice(void) {
  char byte;
  dil_link *first = joined;
  if (mpi->link(0, 1, &joined)) wrong("second link", dil_last_error());
  if (self == 0) {
    joined->calls->revoke(joined, "second reason");
    first->calls->revoke(first, "first reason");
    return;
  }
  post(1, from_rank(0, &byte));
  expect_words(try_wait(1), "second reason");
  joined = first;
  post(1, from_rank(0, &byte));
  expect_words(try_wait(1), "first reason");
}

static const struct {
  const char *name;
  void (*run)(void);
  bool fails;     /* the link is not to be ended in order */
} trials[] = {{"overlap", overlap, false},     {"reordered", reordered, false},
              {"slow", slow, false},           {"truncated", truncated, true},
              {"awaited", awaited, false},     {"forsaken", forsaken, true},
              {"chain", chain, true},          {"unserved", unserved, false},
              {"revoked_twice", revoked_twice, true}};

int main(int count, char **word) {
  void *symbol;
  size_t i = 0;
  if (count != 2) return 2;
  while (i < sizeof trials / sizeof *trials && strcmp(trials[i].name, word[1]))
    i++;
  if (i == sizeof trials / sizeof *trials) return 2;
  if (dil_module_open("dilrt-mpi.so", DIL_MPI_SYMBOL, &symbol))
    wrong("module", dil_last_error());
  mpi = ((dil_mpi_init)symbol)();
  if (mpi->open(&self, &all) || mpi->link(0, 1, &joined))
    wrong("link", dil_last_error());
  trials[i].run();
  printf("good\n");
  fflush(stdout);
  if (trials[i].fails) { /* leaves as a rank that has failed, not the first */
    sleep(1);
    _exit(0);
  }
  meet();
  link_free(joined);
  return mpi->close(1) != DIL_OK;
}
