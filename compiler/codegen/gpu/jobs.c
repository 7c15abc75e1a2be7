/* jobs.c - see jobs.h. In: the variants of a request. Out: their cubins. Each variant goes
 * through its configurations until the gate accepts one; variants are compiled at the same
 * time, a thread each. */
#include "jobs.h"
#include "runtime/base/status.h"
#include "runtime/cuda/chips.h"
#include <assert.h>
#include <stdlib.h>

static void job_show_source(FILE *out, const dil_cuda_code *code,
                            const source_text *text) {
  if (!out || text->lost) return;
  fprintf(out, "// %s, sm_%d%s: %d threads, %d bytes of shared memory\n%s\n",
          code->variant, code->arch, cuda_chip_suffix(code->arch),
          code->threads, code->shared, text->text);
}

/* Compiles one configuration; *more becomes false if there is none. */
static dil_status job_compile(const gpu_request *r, const gpu_strategy *s, int32_t variant,
                              int32_t fallback, dil_cuda_code *code, bool *more) {
  source_text text = {0};
  *more = s->write(r, variant, fallback, code, &text);
  dil_status status = DIL_OK;
  if (*more) {
    job_show_source(r->cuda, code, &text);
    if (r->source_only) {
      free(text.text);
      return DIL_OK;
    }
    if (r->ptxas)
      fprintf(r->ptxas, "%s, sm_%d%s\n", code->variant, code->arch,
              cuda_chip_suffix(code->arch));
    status = nvrtc_compile(&text, code, r->ptxas, r->stop, r->cubins);
    if (status == DIL_UNSUPPORTED && r->ptxas)
      fprintf(r->ptxas, "%s\n", dil_last_error());
  }
  free(text.text);
  return status;
}

void job_run(gpu_job *j) {
  bool again;
  j->status =
      job_compile(&j->request, j->strategy, j->variant, 0, &j->code, &again);
  for (int32_t n = 1; again && j->status == DIL_UNSUPPORTED; n++) {
    dil_status next =
        job_compile(&j->request, j->strategy, j->variant, n, &j->code, &again);
    if (again) j->status = next;
  }
  if (j->status)
    snprintf(j->problem, sizeof j->problem, "%s", dil_last_error());
}

static void *job_run_in_thread(void *context) {
  job_run(context);
  return NULL;
}

/* Starts a job in a thread, or runs it here if no thread can be made. */
static void job_start(gpu_job *j) {
  FILE *wanted[2] = {j->request.cuda, j->request.ptxas}, *own[2] = {0};
  bool lost = false;
  for (int i = 0; i < 2; i++) {
    if (wanted[i]) own[i] = open_memstream(&j->text[i], &j->length[i]);
    lost = lost || (wanted[i] && !own[i]);
  }
  j->request.cuda = own[0];
  j->request.ptxas = own[1];
  if (lost) {
    j->status = DIL_MEMORY;
    snprintf(j->problem, sizeof j->problem, "no memory for a report");
    return;
  }
  bool compiles = !j->request.source_only &&
                  !(j->request.cubins && j->request.cubins->only);
  j->running = compiles && !pthread_create(&j->thread, NULL, job_run_in_thread, j);
  if (!j->running) job_run(j);
}

static void job_finish(gpu_job *j, const gpu_request *asked) {
  FILE *wanted[2] = {asked->cuda, asked->ptxas};
  FILE *own[2] = {j->request.cuda, j->request.ptxas};
  if (j->running) pthread_join(j->thread, NULL);
  for (int i = 0; i < 2; i++) {
    if (own[i]) fclose(own[i]);
    if (own[i]) fwrite(j->text[i], 1, j->length[i], wanted[i]);
    free(j->text[i]);
  }
}

dil_status jobs_list(const gpu_request *r, const gpu_strategy *s, gpu_jobs *jobs) {
  char reason[256] = "";
  if (!s->can(r, reason, sizeof reason)) {
    if (r->ptxas) fprintf(r->ptxas, "%s: %s\n", s->name, reason);
    if (s != &strategy_general) return DIL_OK;
    return dil_fail(DIL_UNSUPPORTED, "no kernel for sm_%d: %s", r->arch,
                    reason);
  }
  for (int32_t m = 0;; m++) {
    source_text text = {0};
    dil_cuda_code code;
    bool more = s->write(r, m, 0, &code, &text);
    free(text.text);
    if (!more) break;
    assert(jobs->count < GPU_CODES_MAX);
    jobs->job[jobs->count++] =
        (gpu_job){.request = *r, .strategy = s, .variant = m, .code = code};
  }
  return DIL_OK;
}

void job_put_code(const gpu_job *j, int32_t index, gpu_codes *out) {
  out->variant[out->count] = index;
  out->code[out->count++] = j->code;
}

/* Takes the result of a job. A variant that the gate refused is left out. It is
 * an error if the variant is the last, since no other takes its calls, or if
 * knobs ask for it. */
static dil_status job_take(const gpu_jobs *jobs, int32_t index, gpu_codes *out) {
  const gpu_job *j = &jobs->job[index];
  bool last = index + 1 == jobs->count;
  if (j->status == DIL_UNSUPPORTED && !last && !j->request.knobs)
    return DIL_OK;
  if (j->status) return dil_fail(j->status, "%s", j->problem);
  if (!j->request.source_only) job_put_code(j, index, out);
  return DIL_OK;
}

dil_status jobs_run(const gpu_request *request, gpu_jobs *jobs, gpu_codes *out) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < jobs->count; i++)
    if (!jobs->job[i].deferred) job_start(&jobs->job[i]);
  for (int32_t i = 0; i < jobs->count; i++) {
    if (jobs->job[i].deferred) {
      job_put_code(&jobs->job[i], i, out);
      continue;
    }
    job_finish(&jobs->job[i], request);
    dil_status next = job_take(jobs, i, out);
    if (!status) status = next;
  }
  return status;
}
