/* ring_state.c - the running state of one rank's queries, in memory and as a
 * file: a header that says whose it is, then O and lse in f32, then a sum over
 * all of it. */
#include "ring_state.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dil_status take_floats(ring_device *d, int64_t count, float **floats) {
  void *memory = NULL;
  dil_status status =
      d->calls->take(d, count * (int64_t)sizeof(float), false, &memory);
  *floats = memory;
  return status;
}

dil_status state_new(ring_state *s, const dil_ring *r) {
  const dil_table *t = r->shape.table;
  shard mine = place_queries(&r->shape, r->link->rank);
  ring_device *d = r->device;
  int64_t states = d->calls->states(d), B = r->rows->q[0].shape[0];
  dil_status status = DIL_OK;
  *s = (ring_state){.step = -1};
  for (int32_t i = 0; i < mine.count && !status; i++) {
    s->rows[i] = states * B * mine.comb[i].count * t->heads;
    status = take_floats(d, s->rows[i], &s->lse[i]);
    if (!status)
      status = take_floats(d, s->rows[i] * t->value_dim, &s->o[i]);
  }
  if (status) state_free(s, d);
  return status;
}

void state_free(ring_state *s, ring_device *d) {
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    if (s->o[i]) d->calls->give(d, s->o[i]);
    if (s->lse[i]) d->calls->give(d, s->lse[i]);
    s->o[i] = s->lse[i] = NULL;
  }
}

/* ---- as the host sees it -------------------------------------------------- */

/* Where the device's memory is the host's, it is looked at in place. */
static dil_status mirror_new(const ring_state *s, const dil_ring *r,
                             ring_state *host) {
  size_t width = (size_t)r->shape.table->value_dim * sizeof(float);
  bool good = true;
  *host = *s;
  if (r->device->calls->on_host) return DIL_OK;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    host->o[i] = calloc((size_t)s->rows[i] + 1, width);
    host->lse[i] = calloc((size_t)s->rows[i] + 1, sizeof(float));
    good = good && host->o[i] && host->lse[i];
  }
  return good ? DIL_OK
              : dil_fail(DIL_MEMORY, "no memory to keep the state of a rank");
}

static void mirror_free(ring_state *host, const dil_ring *r) {
  for (int32_t i = 0; i < SHARD_COMBS && !r->device->calls->on_host; i++) {
    free(host->o[i]);
    free(host->lse[i]);
  }
}

/* All floats of the state, to the mirror or from it. */
static dil_status mirror_move(const ring_state *s, const dil_ring *r,
                              const ring_state *host, bool up) {
  const ring_device_calls *calls = r->device->calls;
  int64_t width = r->shape.table->value_dim;
  dil_status status = DIL_OK;
  if (calls->on_host) return DIL_OK;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    float *const there[] = {s->o[i], s->lse[i]};
    float *const here[] = {host->o[i], host->lse[i]};
    const int64_t floats[] = {s->rows[i] * width, s->rows[i]};
    for (int32_t n = 0; n < 2 && !status; n++) {
      int64_t bytes = floats[n] * (int64_t)sizeof(float);
      if (!bytes) continue;
      status = up ? calls->write(r->device, there[n], here[n], bytes)
                  : calls->read(r->device, here[n], there[n], bytes);
    }
  }
  return status;
}

/* ---- the file ------------------------------------------------------------ */

typedef struct header {
  char magic[8];
  uint64_t plan_hash, sum;   /* sum: of the floats */
  int64_t B, N, M, batch, head, seed, train;
  double scale;
  int64_t rows[SHARD_COMBS];
  int32_t rank, ranks, layout, step;
} header;

/* FNV-1a over 32-bit words. */
static uint64_t sum_floats(uint64_t sum, const float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t word;
    memcpy(&word, x + i, sizeof word);
    sum = (sum ^ word) * 0x100000001b3;
  }
  return sum;
}

static uint64_t sum_state(const ring_state *s, int64_t width) {
  uint64_t sum = 0xcbf29ce484222325;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    sum = sum_floats(sum, s->o[i], s->rows[i] * width);
    sum = sum_floats(sum, s->lse[i], s->rows[i]);
  }
  return sum;
}

static header describe(const ring_state *s, const dil_ring *r) {
  header h = {.magic = "dilring1", .plan_hash = r->plan_hash, .B = r->B,
              .N = r->shape.N, .M = r->shape.M, .batch = r->batch,
              .head = r->head, .seed = (int64_t)r->call->seed,
              .train = r->call->train, .scale = r->call->scale,
              .rank = r->link->rank, .ranks = r->link->ranks,
              .layout = r->shape.layout, .step = s->step};
  memcpy(h.rows, s->rows, sizeof h.rows);
  h.sum = sum_state(s, r->shape.table->value_dim);
  return h;
}

static char *file_name(const dil_ring *r, const char *end) {
  size_t size = strlen(r->checkpoint.prefix) + 32;
  char *name = malloc(size);
  if (name)
    snprintf(name, size, "%s.%d%s", r->checkpoint.prefix, r->checkpoint.name,
             end);
  return name;
}

static bool write_all(FILE *out, const ring_state *s, const header *h,
                      int64_t width) {
  bool good = fwrite(h, sizeof *h, 1, out) == 1;
  for (int32_t i = 0; i < SHARD_COMBS && good; i++) {
    size_t count = (size_t)s->rows[i];
    if (!count) continue;
    good = fwrite(s->o[i], (size_t)width * sizeof(float), count, out) == count &&
           fwrite(s->lse[i], sizeof(float), count, out) == count;
  }
  return good && !fflush(out) && !fsync(fileno(out));
}

static dil_status write_file(const ring_state *s, const dil_ring *r) {
  char *name = file_name(r, ""), *aside = file_name(r, ".new");
  header h = describe(s, r);
  dil_status status = DIL_OK;
  FILE *out = name && aside ? fopen(aside, "wb") : NULL;
  bool good = out && write_all(out, s, &h, r->shape.table->value_dim);
  if (out) good &= fclose(out) == 0;
  if (!good || rename(aside, name)) {
    status = dil_fail(DIL_ENVIRONMENT, "cannot write the state '%s': %s",
                      aside ? aside : r->checkpoint.prefix, strerror(errno));
    if (aside) unlink(aside);
  }
  free(name);
  free(aside);
  return status;
}

dil_status state_write(const ring_state *s, const dil_ring *r) {
  ring_state host;
  dil_status status = mirror_new(s, r, &host);
  if (!status) status = mirror_move(s, r, &host, false);
  if (!status) status = write_file(&host, r);
  mirror_free(&host, r);
  return status;
}

static bool read_all(FILE *in, ring_state *s, int64_t width) {
  bool good = true;
  for (int32_t i = 0; i < SHARD_COMBS && good; i++) {
    size_t count = (size_t)s->rows[i];
    if (!count) continue;
    good = fread(s->o[i], (size_t)width * sizeof(float), count, in) == count &&
           fread(s->lse[i], sizeof(float), count, in) == count;
  }
  return good && fgetc(in) == EOF;
}

/* The header but for what only the file can know. */
static bool is_ours(const header *file, const ring_state *s,
                    const dil_ring *r) {
  header mine = describe(s, r);
  mine.step = file->step;
  mine.sum = file->sum;
  return !memcmp(&mine, file, sizeof mine) && file->step >= 0 &&
         file->step < r->link->ranks;
}

static dil_status read_file(ring_state *s, const dil_ring *r) {
  char *name = file_name(r, "");
  FILE *in = name ? fopen(name, "rb") : NULL;
  header h;
  dil_status status = DIL_OK;
  int64_t width = r->shape.table->value_dim;
  if (!in)
    status = dil_fail(DIL_ENVIRONMENT, "cannot open the state '%s': %s",
                      name ? name : r->checkpoint.prefix, strerror(errno));
  else if (fread(&h, sizeof h, 1, in) != 1 || !is_ours(&h, s, r))
    status = dil_fail(DIL_INPUT, "'%s' is not the state of this rank, plan and "
                      "shape", name);
  else if (!read_all(in, s, width) || sum_state(s, width) != h.sum)
    status = dil_fail(DIL_INPUT, "the state '%s' is damaged", name);
  else
    s->step = h.step;
  if (in) fclose(in);
  free(name);
  return status;
}

dil_status state_read(ring_state *s, const dil_ring *r) {
  ring_state host;
  dil_status status = mirror_new(s, r, &host);
  if (!status) status = read_file(&host, r);
  if (!status) status = mirror_move(s, r, &host, true);
  if (!status) s->step = host.step;
  mirror_free(&host, r);
  return status;
}
