/* test_checkpoint.c - runs that go on from what they have kept: files that are
 * damaged in any way are refused, and a stream that fails at any pair of chunks
 * is resumed to the same bits, by the same call alone. */
#include "runtime/base/status.h"
#include "runtime/ring/checkpoint.h"
#include "tests/support/stream_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char prefix[64], file[80];

static void name_files(void) {
  snprintf(prefix, sizeof prefix, "/tmp/test_kept.%d", (int)getpid());
  snprintf(file, sizeof file, "%s.state", prefix);
}

/* ---- files --------------------------------------------------------------- */

static char *read_whole(size_t *size) {
  FILE *in = fopen(file, "rb");
  ck_assert(in != NULL);
  fseek(in, 0, SEEK_END);
  *size = (size_t)ftell(in);
  rewind(in);
  char *bytes = malloc(*size + 1);
  ck_assert_int_eq(fread(bytes, 1, *size, in), *size);
  fclose(in);
  return bytes;
}

static void write_whole(const char *bytes, size_t size) {
  FILE *out = fopen(file, "wb");
  ck_assert(out != NULL);
  ck_assert_int_eq(fwrite(bytes, 1, size, out), size);
  fclose(out);
}

static const char words[] = "twenty-nine characters, at so";
static const double numbers[] = {1, 2, 3};

static void write_two_blocks(void) {
  const checkpoint_block blocks[] = {{words, sizeof words}, {NULL, 0},
                                     {numbers, sizeof numbers}};
  ck_assert_int_eq(checkpoint_write(file, blocks, 3), DIL_OK);
}

START_TEST(blocks_come_back) {
  char text[sizeof words];
  double back[3];
  checkpoint_file *f;
  name_files();
  write_two_blocks();
  ck_assert_int_eq(checkpoint_open(file, &f), DIL_OK);
  ck_assert_int_eq(checkpoint_read(f, text, sizeof text), DIL_OK);
  ck_assert_int_eq(checkpoint_read(f, NULL, 0), DIL_OK);
  ck_assert_int_eq(checkpoint_read(f, back, sizeof back), DIL_OK);
  ck_assert_int_eq(checkpoint_read(f, back, 1), DIL_INPUT);
  ck_assert(!memcmp(text, words, sizeof words));
  ck_assert(!memcmp(back, numbers, sizeof back));
  checkpoint_close(f);
  ck_assert_int_eq(unlink(file), 0);
}
END_TEST

static void expect_damaged(void) {
  checkpoint_file *f = NULL;
  ck_assert_int_eq(checkpoint_open(file, &f), DIL_INPUT);
  ck_assert(strstr(dil_last_error(), "is damaged"));
  ck_assert(f == NULL);
}

START_TEST(damage_is_seen) {
  size_t size;
  name_files();
  write_two_blocks();
  char *bytes = read_whole(&size);
  for (size_t i = 0; i < size; i++) {
    bytes[i] ^= 16;
    write_whole(bytes, size);
    expect_damaged();
    bytes[i] ^= 16;
  }
  for (size_t length = 0; length < size; length++) {
    write_whole(bytes, length);
    /* A file of fewer blocks is whole: who reads it misses them. */
    checkpoint_file *f = NULL;
    char text[sizeof words];
    double back[3];
    dil_status status = checkpoint_open(file, &f);
    if (!status) status = checkpoint_read(f, text, sizeof text);
    if (!status) status = checkpoint_read(f, NULL, 0);
    if (!status) status = checkpoint_read(f, back, sizeof back);
    checkpoint_close(f);
    ck_assert_int_eq(status, DIL_INPUT);
  }
  free(bytes);
  unlink(file);
}
END_TEST

START_TEST(what_cannot_be_opened_or_written_is_told) {
  checkpoint_file *f;
  name_files();
  ck_assert_int_eq(checkpoint_open(file, &f), DIL_ENVIRONMENT);
  ck_assert(strstr(dil_last_error(), "cannot open the state"));
  const checkpoint_block block = {words, sizeof words};
  ck_assert_int_eq(checkpoint_write("/nowhere/at/all", &block, 1),
                   DIL_ENVIRONMENT);
  ck_assert(strstr(dil_last_error(), "cannot write the state"));
}
END_TEST

/* ---- streams ------------------------------------------------------------- */

#define P(body) "pattern p { heads 4; head_dim 16; dtype f32; " body " }"

static const char *const patterns[] = {
    P("causal; segments 32, 64, 128; dilations 1, 2, 4;"),
    P("combine mean; branch { segment 50; } branch { dilation 3; }"),
    "pattern p { heads 6 kv 2; head_dim 16; dtype bf16; causal; phase kv;"
    " segments 40, 200; dilations 1, 4; dropout 1.0 / 8; }",
    P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; branch { }"),
    P("input z : f32[H] gradient; sink z[h]; branch { sink 0.1 * row; }"
      " branch { segment 40; dilation 3; heads 1..2; sink log(2.0); }"),
    P("combine mean; sink 0.5; branch { segment 50; sink -1.0; }"
      " branch { dilation 3; sink h == 1 ? inf : -inf; }"),
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

static const stream_chunks cuts[] = {
    {1, 50, 33}, {2, 64, 400}, {3, 128, 64}, {2, 400, 40}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

static const int32_t lengths[] = {150, 0, 97};

static stream_case *open_case(const char *text, const int32_t *of_rows) {
  return stream_case_open(text,
                          (call_shape){.batch = 3,
                                       .queries = 150,
                                       .keys = 150,
                                       .clean = true,
                                       .lengths = of_rows},
                          0);
}

/* A run whose plan has the hash 7. */
static dil_stream stream_of(stream_case *c, stream_chunks cut) {
  dil_stream s = stream_case_stream(c, cut);
  s.checkpoint.plan_hash = 7;
  return s;
}

/* o and lse, one behind the other. */
static char *results(const stream_case *c, size_t *size) {
  const dil_tensor *o = &c->d->call.o, *lse = &c->d->call.lse;
  size_t first = (size_t)dil_tensor_count(o) * dil_dtype_size(o->dtype);
  size_t second = lse->data ? (size_t)dil_tensor_count(lse) * 4 : 0;
  char *bytes = malloc(first + second + 1);
  memcpy(bytes, o->data, first);
  if (second) memcpy(bytes + first, lse->data, second);
  *size = first + second;
  return bytes;
}

static int32_t passes_left;
static const ring_device_calls *real;

static dil_status advance_some(ring_device *d, const dil_call *call,
                               const dil_shard *shard) {
  if (passes_left-- > 0) return real->advance(d, call, shard);
  return dil_fail(DIL_INTERNAL, "this is the end");
}

/* Runs until so many passes are over. */
static void run_some(stream_case *c, dil_stream s, int32_t passes) {
  ring_device_calls calls = *c->device->calls;
  real = c->device->calls;
  calls.advance = advance_some;
  c->device->calls = &calls;
  passes_left = passes;
  ck_assert_int_eq(stream_run(&s), DIL_INTERNAL);
  c->device->calls = real;
}

/* Fails, goes on, fails, and so on to the end. */
static void run_in_pieces(stream_case *c, stream_chunks cut, int32_t passes,
                          int32_t every, int64_t all) {
  data_forget(c->d);
  dil_stream s = stream_of(c, cut);
  s.checkpoint.prefix = prefix;
  s.checkpoint.every = every;
  for (int64_t done = passes; done < all; done += passes) {
    run_some(c, s, passes);
    ck_assert(stream_has_checkpoint(prefix));
    done -= passes % every; /* those are lost */
    s.checkpoint.resume = true;
  }
  atomic_store(&c->pairs, 0);
  ck_assert_msg(!stream_run(&s), "%s", dil_last_error());
  ck_assert_int_eq(atomic_load(&c->pairs), stream_pairs(&s.shape));
  ck_assert(s.facts.chunks <= passes && s.facts.resumed > 0);
}

static void resume_everywhere(stream_case *c, stream_chunks cut) {
  size_t size, again;
  dil_stream s = stream_of(c, cut);
  data_forget(c->d);
  ck_assert_msg(!stream_run(&s), "%s", dil_last_error());
  char *whole = results(c, &size);
  int32_t all = (int32_t)s.facts.chunks;
  for (int32_t passes = 1; passes < all; passes += 1 + passes)
    for (int32_t every = 1; every <= 2 && every <= passes; every++) {
      run_in_pieces(c, cut, passes, every, all);
      char *pieces = results(c, &again);
      ck_assert(!memcmp(whole, pieces, size));
      free(pieces);
    }
  free(whole);
}

START_TEST(streams_go_on_anywhere) {
  name_files();
  stream_case *c = open_case(patterns[_i / 2], _i % 2 ? lengths : NULL);
  for (int i = 0; i < CUTS; i++)
    if (_i % 2 == 0 || cuts[i].batch == 1) resume_everywhere(c, cuts[i]);
  stream_checkpoint_remove(prefix);
  ck_assert(!stream_has_checkpoint(prefix));
  stream_case_close(c);
}
END_TEST

static void expect_refusal(dil_stream s, const char *why) {
  s.checkpoint.resume = true;
  ck_assert_int_eq(stream_run(&s), DIL_INPUT);
  ck_assert_msg(strstr(dil_last_error(), why) != NULL, "%s", dil_last_error());
}

START_TEST(others_are_refused_by_name) {
  name_files();
  stream_case *c = open_case(patterns[3], NULL);
  dil_stream s = stream_of(c, cuts[0]), other;
  s.checkpoint.prefix = prefix;
  s.checkpoint.every = 1;
  run_some(c, s, 17);
  other = s, other.checkpoint.plan_hash = 8;
  expect_refusal(other, "has another plan");
  other = s, other.shape.N--;
  expect_refusal(other, "has another number of queries");
  other = s, other.shape.M--;
  expect_refusal(other, "has another number of keys");
  other = s, other.shape.B--;
  expect_refusal(other, "has another number of batch rows");
  other = s, other.shape.chunks.keys--;
  expect_refusal(other, "has another chunk of keys");
  other = s, other.shape.chunks.queries--;
  expect_refusal(other, "has another chunk of queries");
  other = s, other.shape.chunks.batch++;
  expect_refusal(other, "has another chunk of batch rows");
  dil_call call = *s.call;
  other = s, other.call = &call;
  call.train = 0;
  expect_refusal(other, "has another word on training");
  call = *s.call, call.o.dtype = DIL_BF16;
  expect_refusal(other, "has another type of output");
  call = *s.call, call.seed++;
  expect_refusal(other, "has another seed of dropout");
  call = *s.call, call.scale = 3;
  expect_refusal(other, "has another scale");
  call = *s.call, call.random = 3;
  expect_refusal(other, "has another seed of random numbers");
  call = *s.call, call.lengths = lengths;
  expect_refusal(other, "has another set of lengths");
  dil_tensor doc = call.inputs[0];
  int32_t *copy = calloc((size_t)dil_tensor_count(&doc), sizeof *copy);
  call = *s.call, doc.data = copy, call.inputs = &doc;
  expect_refusal(other, "has another declared input");
  ((float *)c->d->call.o.data)[5] += 1; /* of a chunk that is finished */
  expect_refusal(s, "finished rows beside the state");
  free(copy);
  write_two_blocks();
  expect_refusal(s, "is not the state of a streamed run");
  unlink(file);
  stream_case_close(c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("kept");
  TCase *tests = tcase_create("kept");
  tcase_set_timeout(tests, 240);
  tcase_add_test(tests, blocks_come_back);
  tcase_add_test(tests, damage_is_seen);
  tcase_add_test(tests, what_cannot_be_opened_or_written_is_told);
  tcase_add_loop_test(tests, streams_go_on_anywhere, 0, PATTERNS * 2);
  tcase_add_test(tests, others_are_refused_by_name);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
