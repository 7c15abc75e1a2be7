/* host.c - tensors and kernels for tests of the public interface. */
#include "host.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The size of a dimension that is whatever a call brings. */
enum { HOST_ANY = 5 };

const dil_sizes host_sizes = {1, 96, 96};
const char *host_text = "pattern p {\n"
                        "  heads 2; head_dim 16; dtype f32;\n"
                        "  branch near { segment 32; }\n"
                        "  branch far { segment 64; dilation 2; }\n"
                        "}\n";

void host_modules(void) {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  for (int i = 0; i < 2; i++)
    if (strrchr(path, '/')) *strrchr(path, '/') = 0;
  setenv("DIL_MODULE_DIR", path, 0);
  setenv("DIL_CACHE", "off", 0); /* the compilers themselves are tested */
}

void host_must(dil_status status) {
  ck_assert_msg(status == DIL_OK, "%s: %s", dil_status_name(status),
                dil_last_error());
}

void host_refused(dil_status status, dil_status want, const char *words) {
  ck_assert_msg(status == want, "%s, wanted %s", dil_status_name(status),
                dil_status_name(want));
  ck_assert_msg(strstr(dil_last_error(), words) != NULL,
                "'%s' does not say '%s'", dil_last_error(), words);
}

static void fill_dltensor(DLTensor *t, int64_t count, uint32_t seed,
                          int output) {
  for (int64_t i = 0; i < count; i++) {
    seed = seed * 1664525u + 1013904223u;
    float x = (float)(seed >> 8) / (float)(1 << 23) - 1;
    if (t->dtype.code == kDLFloat && t->dtype.bits == 32)
      ((float *)t->data)[i] = output ? NAN : x;
  }
}

void host_call_make(host_call *c, const dil_kernel *kernel,
                    const dil_sizes *sizes) {
  *c = (host_call){.arguments = DIL_ARGUMENTS_INIT};
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_kernel_describe(kernel, &info));
  ck_assert_int_le(info.input_count, HOST_INPUTS);
  for (int32_t i = 0; i < DIL_TENSOR_INPUT + info.input_count; i++) {
    if (i > DIL_TENSOR_LSE && i < DIL_TENSOR_INPUT) continue;
    dil_tensor_info tensor = DIL_TENSOR_INFO_INIT;
    host_must(dil_kernel_tensor(kernel, i, sizes, &tensor));
    int64_t count = 1;
    memcpy(c->shape[i], tensor.shape, sizeof tensor.shape);
    for (int32_t axis = 0; axis < tensor.rank; axis++) {
      if (tensor.shape[axis] < 0) c->shape[i][axis] = HOST_ANY;
      count *= c->shape[i][axis];
    }
    c->tensor[i] = (DLTensor){.device = {kDLCPU, 0},
                              .ndim = tensor.rank,
                              .dtype = tensor.dtype,
                              .shape = c->shape[i]};
    /* Room for tests that claim more, which must not reach into others. */
    c->tensor[i].data = calloc(2 * (size_t)count + 1, tensor.dtype.bits / 8u);
    ck_assert_ptr_nonnull(c->tensor[i].data);
    int output = i == DIL_TENSOR_O || i == DIL_TENSOR_LSE;
    fill_dltensor(&c->tensor[i], count, (uint32_t)i + 1, output);
    if (i >= DIL_TENSOR_INPUT) c->inputs[i - DIL_TENSOR_INPUT] = &c->tensor[i];
  }
  c->arguments.q = &c->tensor[DIL_TENSOR_Q];
  c->arguments.k = &c->tensor[DIL_TENSOR_K];
  c->arguments.v = &c->tensor[DIL_TENSOR_V];
  c->arguments.o = &c->tensor[DIL_TENSOR_O];
  c->arguments.lse = info.has_lse ? &c->tensor[DIL_TENSOR_LSE] : NULL;
  c->arguments.inputs = c->inputs;
  c->arguments.input_count = info.input_count;
}

void host_call_free(host_call *c) {
  for (int32_t i = 0; i < HOST_TENSORS; i++) free(c->tensor[i].data);
}

void host_open(dil_context *context, dil_program **program,
               dil_kernel **kernel) {
  host_must(dil_program_parse(context, "p.dil", host_text, strlen(host_text),
                              NULL, program));
  host_must(dil_program_kernel(*program, NULL, NULL, kernel));
}

dil_kernel *host_kernel(const dil_context_options *options, const char *text) {
  dil_context *context;
  dil_program *program;
  dil_kernel *kernel;
  host_must(dil_context_new(options, &context));
  host_must(dil_program_parse(context, "test.dil", text, strlen(text), NULL,
                              &program));
  host_must(dil_program_kernel(program, NULL, NULL, &kernel));
  dil_program_free(program);
  dil_context_free(context);
  return kernel;
}
