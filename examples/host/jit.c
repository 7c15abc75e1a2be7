/* jit.c - a host that compiles: a .dil file or a preset becomes a kernel in
 * this process, and runs on numbers of the host's own.
 *
 *   cc jit.c $(pkg-config --cflags --libs dil) -lm -o jit
 *   ./jit preset:longformer 4096
 */
#include <dil/dil.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = DIL_TENSOR_LSE + 1 };

/* One call's tensors, in memory of the host. */
typedef struct call {
  DLTensor tensor[TENSORS]; /* q, k, v, o, lse */
  int64_t shape[TENSORS][DIL_RANK_MAX];
} call;

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, dil_last_error());
  return 1;
}

/* What the kernel says that tensor `index` must be, as memory. */
static int make_tensor(call *c, const dil_kernel *kernel, int32_t index,
                       const dil_sizes *sizes) {
  dil_tensor_info info = DIL_TENSOR_INFO_INIT;
  DLTensor *t = &c->tensor[index];
  size_t bytes, count = 1;
  if (dil_kernel_tensor(kernel, index, sizes, &info)) return failed("shape");
  for (int32_t axis = 0; axis < info.rank; axis++) {
    c->shape[index][axis] = info.shape[axis];
    count *= (size_t)info.shape[axis];
  }
  *t = (DLTensor){.device = {kDLCPU, 0},
                  .ndim = info.rank,
                  .dtype = info.dtype,
                  .shape = c->shape[index]};
  bytes = count * info.dtype.bits / 8;
  t->data = calloc(bytes + 1, 1);
  if (!t->data) return failed("memory");
  /* The high byte of a float that is small in each of the three formats. */
  for (size_t i = 1; i < bytes && index <= DIL_TENSOR_V; i += 2)
    if (info.dtype.bits == 16 || i % 4 == 3)
      ((unsigned char *)t->data)[i] = (unsigned char)(0x2a + 5 * (rand() % 4));
  return 0;
}

static int run(dil_kernel *kernel, int64_t queries) {
  dil_sizes sizes = {1, queries, queries};
  dil_arguments a = DIL_ARGUMENTS_INIT;
  call c = {0};
  int status = 0;
  for (int32_t i = 0; i < TENSORS && !status; i++)
    status = make_tensor(&c, kernel, i, &sizes);
  a.q = &c.tensor[DIL_TENSOR_Q];
  a.k = &c.tensor[DIL_TENSOR_K];
  a.v = &c.tensor[DIL_TENSOR_V];
  a.o = &c.tensor[DIL_TENSOR_O];
  a.lse = &c.tensor[DIL_TENSOR_LSE];
  if (!status && dil_kernel_run(kernel, &a)) status = failed("run");
  if (!status) {
    const float *lse = c.tensor[DIL_TENSOR_LSE].data;
    printf("lse of the last row: %.4f\n", lse[queries - 1]);
    status = !isfinite(lse[queries - 1]);
  }
  for (int32_t i = 0; i < TENSORS; i++) free(c.tensor[i].data);
  return status;
}

static int describe(dil_kernel *kernel, int64_t queries) {
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  dil_sizes sizes = {1, queries, queries};
  int64_t bytes;
  if (dil_kernel_describe(kernel, &info) ||
      dil_kernel_workspace(kernel, &sizes, &bytes))
    return failed("kernel");
  printf("%s on %s (%s): %d heads of %d, %lld bytes of scratch memory\n",
         info.name, info.device, info.target, info.heads, info.head_dim,
         (long long)bytes);
  return 0;
}

int main(int argc, char **argv) {
  const char *path = argc > 1 ? argv[1] : "preset:longnet";
  int64_t queries = argc > 2 ? atoll(argv[2]) : 1024;
  dil_context *context = NULL;
  dil_program *program = NULL;
  dil_kernel *kernel = NULL;
  int status;
  if (dil_context_new(NULL, &context) ||
      dil_program_read(context, path, NULL, &program) ||
      dil_program_kernel(program, NULL, NULL, &kernel))
    status = failed(path);
  else
    status = describe(kernel, queries) || run(kernel, queries);
  dil_kernel_free(kernel);
  dil_program_free(program);
  dil_context_free(context);
  return status;
}
