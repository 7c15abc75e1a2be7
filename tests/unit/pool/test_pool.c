/* test_pool.c - blocks of memory: never two in one place, kept and reused,
 * within the bound, in the order of streams. The device with streams is made
 * up: a stream is a count of the work that was put on it and of what is done,
 * and the test itself does the work. */
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/pool/pool.h"
#include "tests/support/suite.h"
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- a device that the test can look into -------------------------------- */

typedef struct fake_stream {
  int64_t put, done;
} fake_stream;

typedef struct fake_event {
  fake_stream *stream;
  int64_t at;
} fake_event;

typedef struct fake {
  int64_t room, used;
  int takes, gives, events, follows;
  bool mark_fails, nameless; /* nobody can tell which stream a handle is */
} fake;

static dil_status fake_take(void *user, int64_t bytes, void **memory) {
  fake *f = user;
  if (bytes > f->room - f->used) return dil_fail(DIL_MEMORY, "no room");
  f->used += bytes;
  f->takes++;
  *memory = malloc((size_t)bytes);
  return DIL_OK;
}

static void fake_give(void *user, void *memory, int64_t bytes) {
  fake *f = user;
  f->used -= bytes;
  f->gives++;
  free(memory);
}

static dil_status fake_mark(void *user, void *stream, void **event) {
  fake *f = user;
  if (f->mark_fails) return dil_fail(DIL_ENVIRONMENT, "no events left");
  if (!*event) {
    *event = calloc(1, sizeof(fake_event));
    f->events++;
  }
  fake_stream *s = stream;
  *(fake_event *)*event = (fake_event){s, s->put};
  return DIL_OK;
}

static bool fake_passed(void *user, void *event) {
  (void)user;
  fake_event *e = event;
  return e->stream->done >= e->at;
}

static dil_status fake_follow(void *user, void *stream, void *event) {
  fake *f = user;
  (void)stream;
  (void)event;
  f->follows++;
  return DIL_OK;
}

static void fake_forget(void *user, void *event) {
  fake *f = user;
  f->events--;
  free(event);
}

static uint64_t fake_identify(void *user, void *stream) {
  (void)user;
  (void)stream;
  return POOL_NO_STREAM;
}

static pool *fake_pool(fake *f, int64_t max) {
  pool_source source = {.name = "fake",
                        .take = fake_take,
                        .give = fake_give,
                        .mark = fake_mark,
                        .passed = fake_passed,
                        .follow = fake_follow,
                        .forget = fake_forget,
                        .identify = f->nameless ? fake_identify : NULL,
                        .user = f};
  pool_options options = {.max = max};
  pool *p;
  ck_assert_int_eq(dil_pool_new(&source, &options, &p), DIL_OK);
  return p;
}

static pool_block *take(pool *p, int64_t bytes, fake_stream *stream) {
  pool_block *b;
  ck_assert_int_eq(dil_pool_take_block(p, bytes, stream, &b), DIL_OK);
  return b;
}

/* ---- classes ------------------------------------------------------------- */

START_TEST(no_block_is_much_larger_than_asked) {
  fake f = {.room = INT64_C(1) << 62};
  pool_stats s;
  for (int64_t bytes = 1; bytes < INT64_C(1) << 26;
       bytes += 1 + bytes / 7 * (1 + bytes % 3)) {
    fake_stream stream = {0, 0};
    pool *p = fake_pool(&f, 0);
    pool_block *b = take(p, bytes, &stream);
    dil_pool_read_stats(p, &s);
    ck_assert_int_ge(s.held, bytes);
    ck_assert_int_le(s.held, bytes <= 4096 ? 4096 : bytes + bytes / 8);
    memset(dil_pool_memory(b), 1, (size_t)bytes);
    dil_pool_give_block(p, b);
    dil_pool_free(p);
  }
  ck_assert_int_eq(f.used, 0);
}
END_TEST

START_TEST(sizes_that_cannot_be) {
  fake f = {.room = 1 << 20};
  fake_stream s = {0, 0};
  pool *p = fake_pool(&f, 0);
  pool_block *b;
  ck_assert_int_eq(dil_pool_take_block(p, -1, &s, &b), DIL_MEMORY);
  ck_assert_int_eq(dil_pool_take_block(p, INT64_MAX, &s, &b), DIL_MEMORY);
  ck_assert_int_eq(dil_pool_take_block(p, 1 << 21, &s, &b), DIL_MEMORY);
  ck_assert_ptr_null(b);
  b = take(p, 0, &s);
  dil_pool_give_block(p, b);
  dil_pool_free(p);
  ck_assert_int_eq(f.used, 0);
  ck_assert_int_eq(f.events, 0);
}
END_TEST

/* ---- reuse --------------------------------------------------------------- */

START_TEST(the_same_stream_gets_it_again) {
  fake f = {.room = 1 << 30};
  fake_stream s = {1, 0}; /* its work is never done */
  pool *p = fake_pool(&f, 0);
  pool_stats stats;
  for (int i = 0; i < 10; i++) {
    pool_block *b = take(p, 100000 - i, &s);
    s.put++;
    dil_pool_give_block(p, b);
  }
  ck_assert_int_eq(f.takes, 1);
  ck_assert_int_eq(f.follows, 0);
  dil_pool_read_stats(p, &stats);
  ck_assert_int_eq(stats.takes, 10);
  ck_assert_int_eq(stats.fresh, 1);
  ck_assert_double_eq_tol(pool_reuse_rate(&stats), 0.9, 1e-9);
  ck_assert_int_eq(stats.in_use, 0);
  ck_assert_int_eq(stats.cached, stats.held);
  ck_assert_int_eq(stats.peak, stats.held);
  dil_pool_free(p);
  ck_assert_int_eq(f.used, 0);
  ck_assert_int_eq(f.events, 0);
}
END_TEST

START_TEST(another_stream_gets_it_when_the_work_is_done) {
  fake f = {.room = 1 << 30};
  fake_stream one = {0, 0}, two = {0, 0};
  pool *p = fake_pool(&f, 0);
  pool_block *b = take(p, 100000, &one);
  void *memory = dil_pool_memory(b);
  one.put++;
  dil_pool_give_block(p, b);
  b = take(p, 100000, &two); /* the first is still at work */
  ck_assert_ptr_ne(dil_pool_memory(b), memory);
  one.done = one.put;
  pool_block *c = take(p, 100000, &two);
  ck_assert_ptr_eq(dil_pool_memory(c), memory);
  ck_assert_int_eq(f.follows, 0);
  dil_pool_give_block(p, b);
  dil_pool_give_block(p, c);
  dil_pool_free(p);
}
END_TEST

START_TEST(streams_that_nobody_knows_are_not_the_same) {
  fake f = {.room = 1 << 30, .nameless = true};
  fake_stream s = {1, 0}; /* its work is never done */
  pool *p = fake_pool(&f, 0);
  pool_block *b = take(p, 100000, &s);
  dil_pool_give_block(p, b);
  pool_block *c = take(p, 100000, &s);
  ck_assert_int_eq(f.takes, 2);
  dil_pool_give_block(p, c);
  dil_pool_free(p);
}
END_TEST

/* At the bound the stream waits for the other one, rather than fail. */
START_TEST(at_the_bound_a_stream_waits) {
  fake f = {.room = 1 << 30};
  fake_stream one = {0, 0}, two = {0, 0};
  pool *p = fake_pool(&f, 150000);
  pool_block *b = take(p, 100000, &one);
  void *memory = dil_pool_memory(b);
  one.put++;
  dil_pool_give_block(p, b);
  b = take(p, 100000, &two);
  ck_assert_ptr_eq(dil_pool_memory(b), memory);
  ck_assert_int_eq(f.follows, 1);
  dil_pool_give_block(p, b);
  dil_pool_free(p);
}
END_TEST

START_TEST(the_bound_is_hard) {
  fake f = {.room = 1 << 30};
  fake_stream s = {0, 0};
  pool *p = fake_pool(&f, 1 << 20);
  pool_block *b = take(p, 700000, &s), *c;
  ck_assert_int_eq(dil_pool_take_block(p, 700000, &s, &c), DIL_MEMORY);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "DIL_POOL_MAX"));
  ck_assert_int_le(f.used, 1 << 20);
  dil_pool_give_block(p, b);
  c = take(p, 1 << 20, &s); /* what was kept makes room */
  ck_assert_int_le(f.used, 1 << 20);
  ck_assert_int_eq(f.gives, 1);
  dil_pool_give_block(p, c);
  dil_pool_free(p);
}
END_TEST

START_TEST(under_pressure_what_is_kept_goes_back) {
  fake f = {.room = 1 << 20};
  fake_stream s = {0, 0};
  pool *p = fake_pool(&f, 0);
  pool_block *b[4];
  for (int i = 0; i < 4; i++) b[i] = take(p, 200000, &s);
  for (int i = 0; i < 4; i++) dil_pool_give_block(p, b[i]);
  b[0] = take(p, 900000, &s); /* fits only without the four */
  ck_assert_int_eq(f.gives, 4);
  dil_pool_give_block(p, b[0]);
  dil_pool_free(p);
}
END_TEST

START_TEST(what_cannot_be_marked_is_not_kept) {
  fake f = {.room = 1 << 20, .mark_fails = true};
  fake_stream s = {0, 0};
  pool *p = fake_pool(&f, 0);
  dil_pool_give_block(p, take(p, 5000, &s));
  ck_assert_int_eq(f.used, 0);
  dil_pool_free(p);
}
END_TEST

START_TEST(what_lies_idle_goes_back) {
  pool_options options = {.idle = 20000000};
  pool *p = pool_new_host(NULL, &options);
  pool_stats s;
  void *a = pool_take(p, 1 << 20), *b = pool_take(p, 100);
  pool_give(p, a);
  for (int i = 0; i < 20; i++) {
    usleep(5000);
    pool_give(p, b);
    b = pool_take(p, 100);
  }
  dil_pool_read_stats(p, &s);
  ck_assert_int_eq(s.releases, 1);
  ck_assert_int_eq(s.cached, 0);
  pool_give(p, b);
  dil_pool_free(p);
}
END_TEST

START_TEST(plain_counts_nothing) {
  pool_options options = {.plain = true};
  pool *p = pool_new_host(NULL, &options);
  pool_stats s;
  int64_t before = atomic_load(&dil_metric_value[METRIC_pool_takes]);
  pool_give(p, pool_take(p, 5000));
  dil_pool_read_stats(p, &s);
  ck_assert_int_eq(s.takes, 0);
  ck_assert_int_eq(s.in_use, 0);
  ck_assert_int_gt(s.held, 5000);
  ck_assert_int_eq(atomic_load(&dil_metric_value[METRIC_pool_takes]), before);
  dil_pool_free(p);
}
END_TEST

START_TEST(off_keeps_nothing) {
  pool_options options = {.off = true};
  pool *p = pool_new_host(NULL, &options);
  pool_stats s;
  for (int i = 0; i < 3; i++) pool_give(p, pool_take(p, 5000));
  dil_pool_read_stats(p, &s);
  ck_assert_int_eq(s.fresh, 3);
  ck_assert_int_eq(s.held, 0);
  dil_pool_free(p);
}
END_TEST

/* ---- leaks --------------------------------------------------------------- */

static char said[256];
static int lines;

static void hear(void *user, int32_t level, const char *text) {
  (void)user;
  (void)level;
  lines++;
  snprintf(said, sizeof said, "%s", text);
}

START_TEST(leaks_are_told) {
  pool_options options = {.log = {hear, NULL, DIL_LOG_WARNING}};
  pool *p = pool_new_host(NULL, &options);
  void *memory = pool_take(p, 1000);
  void *start = (char *)memory - POOL_ALIGNMENT;
  pool_give(p, pool_take(p, 2000));
  dil_pool_free(p);
  ck_assert_int_eq(lines, 1);
  ck_assert_ptr_nonnull(strstr(said, "1064 bytes"));
  free(start);
}
END_TEST

/* ---- all at once --------------------------------------------------------- */

enum { THREADS = 4, TURNS = 20000, HELD = 16 };

/* Fills blocks with its own number, and finds it again when they go. */
static void *play(void *argument) {
  pool *p = argument;
  unsigned seed = (unsigned)(uintptr_t)pthread_self();
  struct { char *memory; size_t size; char mark; } held[HELD] = {0};
  intptr_t wrong = 0;
  for (int turn = 0; turn < TURNS; turn++) {
    int i = rand_r(&seed) % HELD;
    if (held[i].memory) {
      for (size_t b = 0; b < held[i].size; b += 97)
        wrong += held[i].memory[b] != held[i].mark;
      wrong += held[i].memory[held[i].size - 1] != held[i].mark;
      pool_give(p, held[i].memory);
      held[i].memory = NULL;
    } else {
      held[i].size = 1 + (size_t)rand_r(&seed) % 9000;
      held[i].mark = (char)rand_r(&seed);
      held[i].memory = pool_take(p, (int64_t)held[i].size);
      wrong += (uintptr_t)held[i].memory % POOL_ALIGNMENT != 0;
      memset(held[i].memory, held[i].mark, held[i].size);
    }
  }
  for (int i = 0; i < HELD; i++) pool_give(p, held[i].memory);
  return (void *)wrong;
}

START_TEST(blocks_that_are_out_never_overlap) {
  pthread_t thread[THREADS];
  pool *p = pool_new_host(NULL, &(pool_options){.max = 1 << 20});
  pool_stats s;
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, play, p), 0);
  for (int i = 0; i < THREADS; i++) {
    void *wrong;
    pthread_join(thread[i], &wrong);
    ck_assert_ptr_null(wrong);
  }
  dil_pool_read_stats(p, &s);
  ck_assert_int_eq(s.in_use, 0);
  ck_assert_int_eq(s.requested, 0);
  ck_assert_double_gt(pool_reuse_rate(&s), 0.9);
  dil_pool_free(p);
}
END_TEST

/* ---- options ------------------------------------------------------------- */

START_TEST(the_environment_chooses) {
  pool_options o;
  ck_assert_int_eq(dil_pool_options_read(&o), DIL_OK);
  ck_assert_int_eq(o.max, 0);
  setenv("DIL_POOL_MAX", "2G", 1);
  setenv("DIL_POOL_IDLE", "3", 1);
  setenv("DIL_POOL", "plain", 1);
  ck_assert_int_eq(dil_pool_options_read(&o), DIL_OK);
  ck_assert_int_eq(o.max, INT64_C(2) << 30);
  ck_assert_int_eq(o.idle, INT64_C(3000000000));
  ck_assert(o.plain);
  setenv("DIL_POOL", "off", 1);
  ck_assert_int_eq(dil_pool_options_read(&o), DIL_OK);
  ck_assert(o.off && !o.plain);
  setenv("DIL_POOL", "maybe", 1);
  ck_assert_int_eq(dil_pool_options_read(&o), DIL_USAGE);
  ck_assert_str_eq(dil_last_error(),
                   "DIL_POOL is 'maybe', not one of on, plain, off");
  setenv("DIL_POOL", "on", 1);
  setenv("DIL_POOL_IDLE", "-3", 1);
  ck_assert_int_eq(dil_pool_options_read(&o), DIL_USAGE);
  unsetenv("DIL_POOL");
  unsetenv("DIL_POOL_MAX");
  unsetenv("DIL_POOL_IDLE");
}
END_TEST

int main(void) {
  alarm(300);
  Suite *suite = suite_create("pool");
  TCase *c = tcase_create("pool");
  tcase_add_test(c, no_block_is_much_larger_than_asked);
  tcase_add_test(c, sizes_that_cannot_be);
  tcase_add_test(c, the_same_stream_gets_it_again);
  tcase_add_test(c, another_stream_gets_it_when_the_work_is_done);
  tcase_add_test(c, at_the_bound_a_stream_waits);
  tcase_add_test(c, streams_that_nobody_knows_are_not_the_same);
  tcase_add_test(c, the_bound_is_hard);
  tcase_add_test(c, under_pressure_what_is_kept_goes_back);
  tcase_add_test(c, what_cannot_be_marked_is_not_kept);
  tcase_add_test(c, what_lies_idle_goes_back);
  tcase_add_test(c, plain_counts_nothing);
  tcase_add_test(c, off_keeps_nothing);
  tcase_add_test(c, leaks_are_told);
  tcase_add_test(c, blocks_that_are_out_never_overlap);
  tcase_add_test(c, the_environment_chooses);
  suite_add_tcase(suite, c);
  return suite_run(suite, CK_NOFORK);
}
