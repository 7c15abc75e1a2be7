/* command_build.c - `dil build FILE --cuda ARCH,... --emit cubin -o NAME`:
 * kernels without a GPU. In: a file and chips. Out: NAME.FAMILY.ARCH.cubin for
 * each kernel, and a line for each. */
#include "command.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static dil_status write_bytes(const char *path, const void *bytes,
                              size_t size) {
  FILE *out = fopen(path, "wb");
  bool good = out && fwrite(bytes, 1, size, out) == size;
  if (out) good = fclose(out) == 0 && good;
  return good ? DIL_OK
              : dil_fail(DIL_ENVIRONMENT, "cannot write '%s': %s", path,
                         strerror(errno));
}

/* Members of one family are told apart by a number after its name. */
static dil_status write_code(arena *a, const options *o, const gpu_codes *codes,
                             int32_t index) {
  const dil_cuda_code *code = &codes->code[index];
  int32_t before = 0;
  for (int32_t i = 0; i < index; i++)
    before += !strcmp(codes->code[i].family, code->family);
  const char *number = before ? arena_print(a, "%d", before) : "";
  const char *path =
      arena_print(a, "%s.%s%s.sm_%d%s.cubin", o->out, code->family, number,
                  code->arch, code->arch == 90 ? "a" : "");
  dil_status status = write_bytes(path, code->cubin, code->size);
  if (!status)
    printf("%s: %s, %d threads, %d bytes of shared memory, %zu bytes\n", path,
           code->variant, code->threads, code->shared, code->size);
  return status;
}

static dil_status build_arch(arena *a, const options *o, compilation *c,
                             int32_t arch) {
  const gpu_backend *gpu;
  gpu_codes codes = {0};
  gpu_request request = {.plan = c->plan, .arch = arch, .knobs = &c->knobs};
  dil_status status = gpu_compiler_open(&gpu);
  if (!status) status = gpu->compile(&request, &codes);
  for (int32_t i = 0; i < codes.count; i++) {
    if (!status) status = write_code(a, o, &codes, i);
    free(codes.code[i].cubin);
  }
  return driver_refused(c, status);
}

dil_status command_arch(const char **list, int32_t *arch) {
  char *end = NULL;
  const char *at = *list;
  long number = strncmp(at, "sm_", 3) ? 0 : strtol(at + 3, &end, 10);
  if (end && *end == 'a' && number == 90) end++;
  if (!end || end == at + 3 || (*end && *end != ',') || number < 10 ||
      number > 999)
    return message_error(DIL_USAGE, NULL,
                         "--cuda wants chips such as sm_80,sm_90a, got '%s'",
                         at);
  *arch = (int32_t)number;
  *list = end + (*end == ',');
  return DIL_OK;
}

static dil_status check_options(const options *o) {
  if (!o->seen[OPTION_CUDA])
    return message_error(DIL_USAGE, NULL, "`dil build` wants --cuda ARCH,...");
  if (!o->seen[OPTION_OUT])
    return message_error(DIL_USAGE, NULL, "`dil build` wants -o NAME");
  return DIL_OK;
}

dil_status command_build(arena *a, const options *o) {
  dil_status status = check_options(o);
  if (status) return status;
  compilation c = {.arena = a, .diag = diag_new(a)};
  driver_request r = command_request(o, 0);
  r.last = STAGE_plan;
  r.device = KNOB_CUDA;
  status = driver_compile(&r, &c);
  for (const char *list = o->cuda; !status && *list;) {
    int32_t arch;
    status = command_arch(&list, &arch);
    if (status) return status;
    status = build_arch(a, o, &c, arch);
  }
  return message_compiled(o, &c, status);
}
