/* train_ranks.c - the attention of train.c in the processes of an MPI job. Each
 * is a rank: it has some letters of every sequence, and sees the keys of the
 * others. dil moves what the attention needs, MPI adds all else.
 *
 *   mpicc -O2 -DTRAIN_RANKS train.c train_ranks.c -lm \
 *     $(pkg-config --cflags --libs dil) -o train_ranks
 *   mpirun -n 2 ./train_ranks ../data/tokens.txt 300
 *
 * DIL_TRAIN_PLAN is the path of train.dil, where that is not here. The ranks
 * meet at a file in /tmp; those of several hosts at DIL_TRAIN_MEET, the
 * HOST:PORT of the first. */
#include "train.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static dil_context *context;
static dil_program *program;
static dil_kernel *kernel;
static dil_rank *rank;
static int number, ranks;
static const dil_sizes sizes = {BATCH, LETTERS, LETTERS};

static void must(dil_status status) {
  if (status) stop(dil_last_error());
}

static const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value ? value : otherwise;
}

static void make_kernel(void) {
  dil_kernel_options options = DIL_KERNEL_OPTIONS_INIT;
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  options.backward = 1;
  must(dil_context_new(NULL, &context));
  must(dil_program_read(context, setting("DIL_TRAIN_PLAN", "train.dil"), NULL,
                        &program));
  must(dil_program_kernel(program, "attend", &options, &kernel));
  must(dil_kernel_describe(kernel, &info));
  if (info.heads != HEADS || info.head_dim != HEAD_DIM)
    stop("train.h and train.dil have other heads");
}

/* Rank 0 says where the ranks meet. */
static void join_ranks(void) {
  dil_rank_options options = DIL_RANK_OPTIONS_INIT;
  char own[64], meet[256];
  snprintf(own, sizeof own, "/tmp/train_ranks.%lld",
           (long long)(MPI_Wtime() * 1e6));
  snprintf(meet, sizeof meet, "%s", setting("DIL_TRAIN_MEET", own));
  MPI_Bcast(meet, sizeof meet, MPI_CHAR, 0, MPI_COMM_WORLD);
  options.meet = meet;
  options.rank = number;
  options.ranks = ranks;
  options.layout = DIL_RANKS_ZIGZAG; /* as many pairs of letters for each */
  must(dil_rank_new(kernel, &options, &rank));
}

int attention_begin(int place[LETTERS]) {
  int64_t positions[LETTERS], count = 0;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  make_kernel();
  join_ranks();
  must(dil_rank_positions(rank, LETTERS, positions, &count));
  for (int i = 0; i < (int)count; i++) place[i] = (int)positions[i];
  return (int)count;
}

void attention_end(void) {
  dil_rank_free(rank);
  dil_kernel_free(kernel);
  dil_program_free(program);
  dil_context_free(context);
  MPI_Finalize();
}

int attention_speaks(void) {
  return number == 0;
}

/* A call that borrows these tensors. */
typedef struct rank_call {
  DLTensor o, lse;
  const DLTensor *inputs[1];
  dil_arguments arguments;
} rank_call;

static void make_call(rank_call *c, const attended *a) {
  *c = (rank_call){a->o, a->lse, {&a->slope}, DIL_ARGUMENTS_INIT};
  c->arguments.q = &a->q;
  c->arguments.k = &a->k;
  c->arguments.v = &a->v;
  c->arguments.o = &c->o;
  c->arguments.lse = &c->lse;
  c->arguments.inputs = c->inputs;
  c->arguments.input_count = 1;
}

void attention_forward(const attended *a) {
  rank_call c;
  make_call(&c, a);
  must(dil_rank_run(rank, &sizes, &c.arguments));
}

void attention_back(const attended *a, const DLTensor *d_o, DLTensor *dq,
                    DLTensor *dk, DLTensor *dv, DLTensor *dslope) {
  dil_gradients g = DIL_GRADIENTS_INIT;
  rank_call c;
  make_call(&c, a);
  g.forward = &c.arguments;
  g.d_o = d_o;
  g.dq = dq;
  g.dk = dk;
  g.dv = dv;
  g.inputs = &dslope;
  g.input_count = 1;
  must(dil_rank_backward(rank, &sizes, &g));
  /* Every rank has the gradient of the whole; one gives it to the sum. */
  for (int h = 0; h < HEADS && number; h++) ((float *)dslope->data)[h] = 0;
}

void attention_sum(float *numbers, int count) {
  MPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
}
