/* hopper_setup.c - a case on the device. In: a case. Out: random tensors, a
 * call of them, and the exact rows that results are compared with. */
#include "hopper_bench.h"

enum { SEED = 1 };

/* ---- tensors ------------------------------------------------------------- */

static void fill_random(const bench *x, const setup *s, uint16_t *tensor,
                        uint64_t first, uint64_t count, uint64_t seed) {
  fill_job job = {tensor + first, count, seed, s->c->element};
  if (count) bench_launch(x, x->fill, 1024, 256, &job);
}

void setup_fill(bench *x, setup *s, int from) {
  problem *p = &s->problem;
  uint16_t *const tensor[] = {p->q, p->k, p->v};
  for (int i = 0; i < 3; i++)
    fill_random(x, s, tensor[i], 0, s->count[i], SEED + i);
  for (int i = 1; i < 3 && from < p->M; i++) {
    uint64_t kept = s->count[i] / (uint64_t)p->M * (uint64_t)from;
    fill_random(x, s, tensor[i], kept, s->count[i] - kept, SEED + 8 + i);
  }
  if (s->c->flags & SPOIL)
    bench_launch(x, x->spoil, (unsigned)p->M, 256, p);
}

static void take_tensors(bench *x, setup *s) {
  const bench_case *c = s->c;
  uint16_t **const tensor[] = {&s->problem.q, &s->problem.k, &s->problem.v};
  s->count[0] = (uint64_t)c->B * c->N * c->H * c->D;
  s->count[1] = (uint64_t)c->B * c->M * c->Hkv * c->D;
  s->count[2] = (uint64_t)c->B * c->M * c->Hkv * c->Dv;
  s->o_count = (uint64_t)c->B * c->N * c->H * c->Dv;
  s->lse_count = (uint64_t)c->B * c->N * c->H;
  for (int i = 0; i < 3; i++)
    *tensor[i] = bench_take(x, s->count[i] * 2);
  s->room = bench_take(x, (s->o_count + 2 * BENCH_GUARD) * 2);
  s->lse = bench_take(x, s->lse_count * 4);
  s->o = s->room + BENCH_GUARD;
  setup_fill(x, s, c->M);
}

/* ---- the call ------------------------------------------------------------ */

static dil_tensor tensor_of(void *p, dil_dtype type, int64_t rows,
                            int64_t heads, int64_t dim, const bench_case *c) {
  int64_t shape[] = {c->B, rows, heads, dim};
  return dil_tensor_make(p, type, 4, shape);
}

static void make_call(const bench *x, setup *s) {
  static const bool chained[HEADS];
  const bench_case *c = s->c;
  const problem *p = &s->problem;
  dil_dtype type = s->plan.table.dtype;
  int64_t lse[] = {c->B, c->H, c->N};
  s->call = (dil_call){.size = sizeof s->call,
                       .q = tensor_of(p->q, type, c->N, c->H, c->D, c),
                       .k = tensor_of(p->k, type, c->M, c->Hkv, c->D, c),
                       .v = tensor_of(p->v, type, c->M, c->Hkv, c->Dv, c),
                       .o = tensor_of(s->o, type, c->N, c->H, c->Dv, c),
                       .lse = dil_tensor_make(s->lse, DIL_F32, 3, lse)};
  s->run = (cuda_run){.device = x->device,
                      .table = &s->plan.table,
                      .call = &s->call,
                      .B = c->B,
                      .N = c->N,
                      .M = c->M,
                      .scale = (float)p->scale,
                      .weight = 1,
                      .opening = -1,
                      .state_stride = 1,
                      .chained = chained};
}

static void compute_exact(bench *x, setup *s) {
  reference_job job = {.of = s->problem, .sample = x->sample,
                       .to = x->exact};
  choose_samples(s->c, s->sample);
  must(device_upload(x->device, x->sample, s->sample, sizeof s->sample));
  job.scratch = bench_take(x, SAMPLES * (uint64_t)s->c->M * sizeof(double));
  bench_launch(x, x->reference, SAMPLES, 256, &job);
  must(device_download(x->device, s->exact, x->exact,
                       (int64_t)SAMPLES * (s->c->Dv + 1) * 8));
  device_give(x->device, job.scratch);
}

/* ---- all ----------------------------------------------------------------- */

void setup_open(bench *x, const bench_case *c, setup *s) {
  s->c = c;
  plan_fill(c, &s->plan);
  problem_fill(c, &s->problem);
  take_tensors(x, s);
  make_call(x, s);
  compute_exact(x, s);
}

void setup_close(bench *x, setup *s) {
  void *const memory[] = {s->problem.q, s->problem.k, s->problem.v, s->room,
                          s->lse};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
    device_give(x->device, memory[i]);
}

void setup_run(bench *x, setup *s, const variant *v) {
  must(cuda_hopper.launch(&s->run, 0, &v->code));
  must(device_wait(x->device, NULL));
}
