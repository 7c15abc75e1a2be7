/* test_ring_handshake.c - what ranks of a ring must have alike, word by word:
 * what they say to each other before any row moves, and whose a kept state is.
 * There is one rank; what the other says is what it has said itself before a
 * change. */
#include "runtime/ring/checkpoint.h"
#include "runtime/ring/ring_device.h"
#include "runtime/ring/ring_state.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 3, WIDTH = 2 };

typedef struct handshake_rank {
  dil_ring ring;
  dil_table table;
  dil_call call;
  dil_link link;
  ring_device device;
  ring_state state;
  float o[ROWS + 1][WIDTH], lse[ROWS + 1];
  char prefix[64];
} handshake_rank;

/* ---- the other rank ------------------------------------------------------ */

static char heard[256], said[256];

static dil_status answer(dil_link *link, int32_t slot, const link_transfer *t) {
  (void)link, (void)slot;
  ck_assert_int_eq(t->send_bytes, t->receive_bytes);
  ck_assert_int_le(t->send_bytes, (int64_t)sizeof said);
  memcpy(said, t->send, (size_t)t->send_bytes);
  memcpy(t->receive, heard, (size_t)t->receive_bytes);
  return DIL_OK;
}

static dil_status at_once(dil_link *link, int32_t slot) {
  (void)link, (void)slot;
  return DIL_OK;
}

static const link_calls other = {.post = answer, .wait = at_once};
static const ring_device_calls host = {.on_host = true};

static void open_rank(handshake_rank *r) {
  *r = (handshake_rank){.table = {.value_dim = WIDTH},
                        .call = {.seed = 5, .scale = 1},
                        .link = {.calls = &other, .ranks = 2},
                        .device = {&host},
                        .state = {.step = 1, .rows = {ROWS}}};
  snprintf(r->prefix, sizeof r->prefix, "/tmp/test_agree.%d", (int)getpid());
  r->state.o[0] = r->o[0];
  r->state.lse[0] = r->lse;
  r->ring = (dil_ring){.shape = {.table = &r->table, .ranks = 2, .N = 7,
                                 .M = 9},
                       .B = 2, .link = &r->link, .device = &r->device,
                       .call = &r->call, .plan_hash = 11,
                       .checkpoint = {.prefix = r->prefix}};
}

/* ---- one change each ----------------------------------------------------- */

static void plan_of(handshake_rank *r) {
  r->ring.plan_hash++;
}
static void layout_of(handshake_rank *r) {
  r->ring.shape.layout = DIL_STRIPED;
}
static void exchange_of(handshake_rank *r) {
  r->ring.shape.gathered = 1;
}
static void batch_of(handshake_rank *r) {
  r->ring.B++;
}
static void queries_of(handshake_rank *r) {
  r->ring.shape.N++;
}
static void keys_of(handshake_rank *r) {
  r->ring.shape.M++;
}
static void first_of(handshake_rank *r) {
  r->ring.batch++;
}
static void head_of(handshake_rank *r) {
  r->ring.head++;
}
static void train_of(handshake_rank *r) {
  r->call.train = 1;
}
static void seed_of(handshake_rank *r) {
  r->call.seed++;
}
static void scale_of(handshake_rank *r) {
  r->call.scale = 0.5;
}
static void rank_of(handshake_rank *r) {
  r->link.rank = 1;
}
static void ranks_of(handshake_rank *r) {
  r->link.ranks = 3;
}
static void rows_of(handshake_rank *r) {
  r->state.rows[0]++;
}
static void resume_of(handshake_rank *r) {
  r->ring.checkpoint.resume = true;
}

static const struct change {
  void (*make)(handshake_rank *r);
  const char *word; /* of the handshake; NULL: it is no part of it */
  bool state;       /* of what a kept state is known by */
} changes[] = {
    {plan_of, "plan", true},
    {layout_of, "layout", true},
    {exchange_of, "way of exchange", false},
    {batch_of, "number of batch rows", true},
    {queries_of, "number of queries", true},
    {keys_of, "number of keys", true},
    {first_of, "first batch row", true},
    {head_of, NULL, true},
    {train_of, "word on training", true},
    {seed_of, "seed", true},
    {scale_of, "scale", true},
    {rank_of, NULL, true},
    {ranks_of, "number of ranks", true},
    {rows_of, NULL, true},
    {resume_of, "word on resuming: all ranks resume, or none", false},
};
enum { CHANGES = sizeof changes / sizeof *changes };

START_TEST(ranks_agree_on_each_word) {
  const struct change *c = &changes[_i];
  char words[80];
  handshake_rank r;
  open_rank(&r);
  ring_handshake(&r.ring, r.ring.B); /* whatever was heard */
  memcpy(heard, said, sizeof heard);
  ck_assert_int_eq(ring_handshake(&r.ring, r.ring.B), DIL_OK);
  c->make(&r);
  dil_status status = ring_handshake(&r.ring, r.ring.B);
  ck_assert_int_eq(status, c->word ? DIL_PEER : DIL_OK);
  snprintf(words, sizeof words, "has another %s", c->word ? c->word : "");
  ck_assert_msg(!c->word || strstr(dil_last_error(), words), "%s",
                dil_last_error());
}
END_TEST

static const ring_digest data = {.sum = {1, 2, 3}}; /* that a state is of */

START_TEST(a_state_is_known_by_each_word) {
  const struct change *c = &changes[_i];
  char file[80];
  handshake_rank r;
  open_rank(&r);
  snprintf(file, sizeof file, "%s.0", r.prefix);
  for (int i = 0; i < ROWS; i++) r.lse[i] = (float)i + 1;
  ck_assert_msg(!state_write(&r.state, &r.ring, &data), "%s", dil_last_error());
  memset(r.lse, 0, sizeof r.lse);
  ck_assert_msg(!state_read(&r.state, &r.ring, &data), "%s", dil_last_error());
  ck_assert(r.state.step == 1 && r.lse[ROWS - 1] == ROWS);
  r.state.step = 0;
  c->make(&r);
  dil_status status = state_read(&r.state, &r.ring, &data);
  unlink(file);
  ck_assert_int_eq(status, c->state ? DIL_INPUT : DIL_OK);
  ck_assert_int_eq(r.state.step, c->state ? 0 : 1);
  ck_assert_msg(!c->state || strstr(dil_last_error(), "is not the state of"),
                "%s", dil_last_error());
}
END_TEST

/* A step that no ring of so many ranks has: the file is another's. */
START_TEST(a_step_beyond_the_ring_is_refused) {
  char file[80];
  handshake_rank r;
  open_rank(&r);
  snprintf(file, sizeof file, "%s.0", r.prefix);
  r.state.step = _i ? 2 : -1;
  ck_assert_msg(!state_write(&r.state, &r.ring, &data), "%s", dil_last_error());
  dil_status status = state_read(&r.state, &r.ring, &data);
  unlink(file);
  ck_assert_int_eq(status, DIL_INPUT);
}
END_TEST

/* The step is another's where the data that a run reads is. */
START_TEST(a_state_of_other_data_is_refused) {
  char file[80], words[60];
  ring_digest changed = data;
  handshake_rank r;
  open_rank(&r);
  snprintf(file, sizeof file, "%s.0", r.prefix);
  ck_assert_msg(!state_write(&r.state, &r.ring, &data), "%s", dil_last_error());
  r.state.step = 0;
  changed.sum[_i]++;
  dil_status status = state_read(&r.state, &r.ring, &changed);
  unlink(file);
  ck_assert_int_eq(status, DIL_INPUT);
  ck_assert_int_eq(r.state.step, 0);
  snprintf(words, sizeof words, "is of a run with another %s: resume",
           ring_digest_words[_i]);
  ck_assert_msg(strstr(dil_last_error(), words), "%s", dil_last_error());
}
END_TEST

/* The second state's word lies between the layout and the step. */
START_TEST(a_second_state_is_refused_by_name) {
  enum { STEP = sizeof(int32_t), WORD = sizeof(int16_t), STATE = 112,
         BYTES = STATE + sizeof(ring_digest) };
  char file[80], header[BYTES];
  checkpoint_file *in = NULL;
  handshake_rank r;
  open_rank(&r);
  snprintf(file, sizeof file, "%s.0", r.prefix);
  ck_assert_msg(!state_write(&r.state, &r.ring, &data), "%s", dil_last_error());
  ck_assert_int_eq(checkpoint_open(file, &in), DIL_OK);
  ck_assert_int_eq(checkpoint_read(in, header, BYTES), DIL_OK);
  checkpoint_close(in);
  header[STATE - STEP - WORD] = 3;
  const checkpoint_block block = {header, BYTES};
  ck_assert_int_eq(checkpoint_write(file, &block, 1), DIL_OK);
  dil_status status = state_read(&r.state, &r.ring, &data);
  unlink(file);
  ck_assert_int_eq(status, DIL_UNSUPPORTED);
  ck_assert_msg(strstr(dil_last_error(), "has a second state, of kind 3"),
                "%s", dil_last_error());
}
END_TEST

/* ---- what a run backward reads ------------------------------------------- */

enum { READ_ROWS = 3, READ_WIDTH = 10, READ = READ_ROWS * READ_WIDTH };

typedef struct reads {
  handshake_rank rank;
  ring_rows rows;
  ring_gradients gradients;
  dil_tensor wanted, input;
  float of[DIGEST_COUNT][2 * READ], sums[3][READ];
} reads;

static dil_tensor rows_at(float *at, int64_t apart) {
  const int64_t shape[] = {1, READ_ROWS, 1, READ_WIDTH};
  dil_tensor t = dil_tensor_make(at, DIL_F32, 4, shape);
  for (int i = 0; i < 4; i++) t.stride[i] *= apart;
  return t;
}

/* Elements lie `apart` elements from each other. */
static void open_reads(reads *r, int64_t apart) {
  *r = (reads){0};
  open_rank(&r->rank);
  dil_tensor *const to[DIGEST_COUNT] = {
      r->rows.q,           r->rows.keys.k,   r->rows.keys.v, r->rows.o, r->rows.lse,
      r->gradients.output, r->gradients.lse, &r->input};
  for (int t = 0; t < DIGEST_COUNT; t++) {
    *to[t] = rows_at(r->of[t], apart);
    for (int i = 0; i < READ; i++) r->of[t][i * apart] = (float)(t * READ + i);
  }
  r->gradients.dq[0] = rows_at(r->sums[0], 1);
  r->gradients.keys.k[0] = rows_at(r->sums[1], 1);
  r->gradients.keys.v[0] = rows_at(r->sums[2], 1);
  for (int i = 1; i < PROGRESSIONS_MOST; i++)
    r->gradients.dq[i].rank = r->gradients.keys.k[i].rank =
        r->gradients.keys.v[i].rank = 1;
  r->gradients.wanted = &r->wanted;
  r->rank.call.inputs = &r->input;
  r->rank.call.input_count = 1;
  r->rank.ring.rows = &r->rows;
  r->rank.ring.gradients = &r->gradients;
}

static dil_status write_sums(const reads *r) {
  ring_digest digest;
  ck_assert_int_eq(ring_digest_of(&r->rank.ring, &digest), DIL_OK);
  return state_write_gradients(&r->rank.ring, &digest, 1);
}

static dil_status read_sums(const reads *r, int32_t *step) {
  ring_digest digest;
  ck_assert_int_eq(ring_digest_of(&r->rank.ring, &digest), DIL_OK);
  return state_read_gradients(&r->rank.ring, &digest, step);
}

static void expect_other(const reads *r, const char *word) {
  char words[80];
  int32_t step = 7;
  snprintf(words, sizeof words, "another %s: resume with", word);
  ck_assert_int_eq(read_sums(r, &step), DIL_INPUT);
  ck_assert_msg(strstr(dil_last_error(), words) != NULL, "%s",
                dil_last_error());
  ck_assert_int_eq(step, -1);
}

/* Of each tensor the first element, the last, and one in between. */
START_TEST(kept_sums_are_of_the_data_that_they_were_made_of) {
  reads r;
  int32_t step;
  open_reads(&r, 1);
  ck_assert_msg(!write_sums(&r), "%s", dil_last_error());
  ck_assert_msg(!read_sums(&r, &step), "%s", dil_last_error());
  ck_assert_int_eq(step, 1);
  for (int t = 0; t < DIGEST_COUNT; t++)
    for (int i = 0; i < READ; i += (READ - 1) / 2) {
      r.of[t][i] += 0.5f;
      expect_other(&r, ring_digest_words[t]);
      r.of[t][i] -= 0.5f;
    }
  for (int i = 1; i < 5; i += 2) r.of[0][i] *= -1; /* two signs cancel nowhere */
  expect_other(&r, "q");
  for (int i = 1; i < 5; i += 2) r.of[0][i] *= -1;
  r.gradients.lse_given = true;
  expect_other(&r, "set of gradients");
  r.gradients.lse_given = false;
  r.wanted.data = r.sums;
  expect_other(&r, "set of gradients");
  open_reads(&r, 2); /* the same data at other places */
  ck_assert_msg(!read_sums(&r, &step), "%s", dil_last_error());
  ck_assert_int_eq(state_forget_gradients(&r.rank.ring), DIL_OK);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("agree");
  TCase *tests = tcase_create("agree");
  tcase_add_loop_test(tests, ranks_agree_on_each_word, 0, CHANGES);
  tcase_add_loop_test(tests, a_state_is_known_by_each_word, 0, CHANGES);
  tcase_add_loop_test(tests, a_step_beyond_the_ring_is_refused, 0, 2);
  tcase_add_loop_test(tests, a_state_of_other_data_is_refused, 0, DIGEST_COUNT);
  tcase_add_test(tests, a_second_state_is_refused_by_name);
  tcase_add_test(tests, kept_sums_are_of_the_data_that_they_were_made_of);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
