/* peak.c - how fast a device multiplies at most, right now. In: the code of
 * templates/peak.cu. Out: operations a second of a launch that takes about as
 * long as was asked for. */
#include "codes.h"
#include <stddef.h>

enum { BLOCKS_A_PROCESSOR = 2, FIRST_ROUNDS = 64, ROUNDS_MOST = 1 << 24 };

const cuda_family cuda_peak = {.name = "peak", .entry = {"dil_peak"}};

typedef struct peak_launch { /* of templates/peak.cu */
  float *never;
  int rounds;
} peak_launch;
_Static_assert(sizeof(peak_launch) == 16 && offsetof(peak_launch, rounds) == 8,
               "as templates/peak.cu has it");

typedef struct peak_run {
  cuda_run run;
  const cuda_code *code;
  peak_launch launch;
} peak_run;

static dil_status peak_run_once(void *context) {
  peak_run *p = context;
  int64_t blocks =
      (int64_t)p->run.device->facts.processors * BLOCKS_A_PROCESSOR;
  return cuda_launch(&p->run, p->code, 0, blocks, p->code->about.threads,
                     p->code->about.shared, &p->launch);
}

/* A short launch says how long one has to be. */
static dil_status peak_measure_entered(dil_cuda *device, const cuda_code *code,
                                       double seconds, double *rate) {
  peak_run p = {.run = {.device = device}, .code = code};
  double took = 0;
  p.launch.rounds = FIRST_ROUNDS;
  dil_status status = cuda_time(device, CLOCK_ALONE, peak_run_once, &p, &took);
  if (!status)
    status = cuda_time(device, CLOCK_ALONE, peak_run_once, &p, &took);
  if (status) return status;
  double rounds = FIRST_ROUNDS * seconds / took;
  p.launch.rounds = rounds < FIRST_ROUNDS  ? FIRST_ROUNDS
                    : rounds > ROUNDS_MOST ? ROUNDS_MOST
                                           : (int)rounds;
  status = cuda_time(device, CLOCK_ALONE, peak_run_once, &p, &took);
  *rate = (double)code->about.knob[CUDA_PEAK_OPERATIONS] * p.launch.rounds *
          device->facts.processors * BLOCKS_A_PROCESSOR / took;
  return status;
}

dil_status peak_measure(dil_cuda *device, const dil_cuda_code *about,
                        double seconds, double *rate) {
  cuda_code code = {0};
  dil_status status = cuda_enter(device);
  if (status) return status;
  status = code_load(device, about, &code);
  if (!status) status = peak_measure_entered(device, &code, seconds, rate);
  code_unload(device, &code);
  cuda_leave(device);
  return status;
}
