/* session_join.c - the rendezvous of a topology's ranks: threads of this
 * process, an MPI job, a file, or a port of rank 0's host. In: a topology and
 * the environment. Out: links. */
#include "session_ranks.h"
#include "interface.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/ring/rows_module.h"
#include <string.h>

/* With NCCL the ranks are one process or several: processes with DIL_MEET, an
 * MPI job, or processes that a launcher started together. */
static dil_status find_nccl_way(session_ranks *t) {
  dil_status status = DIL_OK;
  bool asked = environment_text("DIL_MEET") != NULL;
  t->job = asked || launch_by_mpi();
  if (!t->job && t->launched.ranks > 1)
    t->job = launch_meeting(t->meet, sizeof t->meet, &status);
  else if (asked)
    launch_meeting(t->meet, sizeof t->meet, &status);
  return status;
}

dil_status session_ranks_way(session_ranks *t, const topology *on) {
  t->job = on->link == LINK_MPI || on->link == LINK_PROCESS;
  dil_status status = launch_read(&t->launched);
  if (status) return status;
  if (on->link == LINK_NCCL && on->devices > 1) return find_nccl_way(t);
  if (on->link == LINK_PROCESS &&
      !launch_meeting(t->meet, sizeof t->meet, &status))
    return dil_fail(DIL_USAGE, "topology '%s' is of processes: where do they "
                    "meet? say DIL_MEET=FILE or DIL_MEET=HOST:PORT, the same "
                    "for all, and DIL_RANK=0..%lld", on->name,
                    (long long)on->devices - 1);
  return status;
}

bool session_ranks_in_file(const session_ranks *t) {
  return *t->meet && !socket_is_address(t->meet);
}

/* The command that starts so many ranks, by the launcher that set the count. */
static const char *start_hint(const session_ranks *t, int64_t ranks) {
  const char *by = t->launched.ranks_by ? t->launched.ranks_by : "";
  return arena_print(t->of->arena,
                     !strcmp(by, "WORLD_SIZE")
                         ? "`torchrun --no-python --nproc-per-node %lld dil run "
                           "...`, on one host"
                     : !strncmp(by, "SLURM", 5) ? "`srun -n %lld dil run ...`"
                                                : "`mpirun -n %lld dil run ...`",
                     (long long)ranks);
}

static dil_status check_count(session_ranks *t, const topology *on,
                              int64_t ranks) {
  const char *by = t->launched.ranks_by;
  if (ranks == on->devices) return DIL_OK;
  const char *why =
      arena_print(t->of->arena, "topology '%s' has %lld device%s, and there "
                  "%s %lld process%s%s%s%s", on->name, (long long)on->devices,
                  on->devices == 1 ? "" : "s", ranks == 1 ? "is" : "are",
                  (long long)ranks, ranks == 1 ? "" : "es", by ? " (" : "",
                  by ? by : "", by ? ")" : "");
  diag_report(t->of->diag, SEVERITY_ERROR, on->at,
              start_hint(t, on->devices), "%s", why);
  return dil_fail(DIL_USAGE, "%s", why);
}

static dil_status open_mpi(session_ranks *t, const topology *on,
                           double timeout) {
  void *symbol;
  int32_t ranks = 0;
  dil_status status = dil_module_open("dilrt-mpi.so", DIL_MPI_SYMBOL, &symbol);
  if (status) return status;
  t->mpi = ((dil_mpi_init)symbol)();
  if (t->mpi->version != DIL_INTERFACE)
    return dil_fail(DIL_ENVIRONMENT, "dilrt-mpi.so is of another version of "
                                     "dil");
  status = t->mpi->open(&t->task.rank, &ranks);
  if (!status) status = check_count(t, on, ranks);
  return status ? status : t->mpi->link(0, timeout, &t->world);
}

static dil_status find_rank(session_ranks *t, const topology *on) {
  const launch *l = &t->launched;
  int64_t last = on->devices - 1;
  if (l->ranks >= 0 && check_count(t, on, l->ranks)) return DIL_USAGE;
  if (l->rank < 0)
    return dil_fail(DIL_USAGE, "ranks meet at '%.99s': which one is this? say "
                    "DIL_RANK=0..%lld", t->meet, (long long)last);
  if (l->rank > last)
    return dil_fail(DIL_USAGE, "%s is %lld, and topology '%s' has ranks "
                    "0..%lld", l->rank_by, (long long)l->rank, on->name,
                    (long long)last);
  t->task.rank = (int32_t)l->rank;
  return DIL_OK;
}

/* Meets the other ranks in a file or at HOST:PORT. */
static dil_status open_meeting(session_ranks *t, const topology *on,
                               double timeout) {
  enum { PATIENCE = 30 }; /* seconds; processes start at different times */
  int32_t ranks = (int32_t)on->devices;
  double patience = on->timeout > PATIENCE ? on->timeout : PATIENCE;
  dil_status status = find_rank(t, on);
  if (status) return status;
  return session_ranks_in_file(t)
             ? file_link_new(t->meet, t->task.rank, ranks, timeout, &t->world)
             : socket_link_new(t->meet, t->task.rank, ranks, patience, timeout,
                               &t->world);
}

dil_status session_ranks_world(session_ranks *t, const topology *on,
                               double timeout) {
  return *t->meet ? open_meeting(t, on, timeout) : open_mpi(t, on, timeout);
}

static dil_status ring_in_file(const session_ranks *t, int32_t group,
                               dil_link **link) {
  const mesh *on = &t->task.mesh;
  char own[DIL_PATH_MAX];
  if (snprintf(own, sizeof own, "%s.ring%d", t->meet, group) >=
      (int)sizeof own)
    return dil_fail(DIL_USAGE, "DIL_MEET is too long");
  return file_link_new(own, t->task.rank % on->ring, on->ring, on->timeout,
                       link);
}

dil_status session_ranks_ring(session_ranks *t) {
  const mesh *on = &t->task.mesh;
  int32_t ring = on->ring, group = t->task.rank / ring;
  dil_link **link = &t->task.link;
  dil_status status =
      !*t->meet ? t->mpi->link(group, on->timeout, link)
      : session_ranks_in_file(t)
          ? ring_in_file(t, group, link)
          : socket_link_part(t->world, group * ring, ring, on->timeout, link);
  if (status) return status;
  (*link)->first = group * ring;
  (*link)->above = t->world;
  return DIL_OK;
}

dil_status session_ranks_nccl(session_ranks *t, const topology *on) {
  if (on->link != LINK_NCCL || on->devices == 1) return DIL_OK;
  if (!t->on_gpu)
    return dil_fail(DIL_UNSUPPORTED, "topology '%s' is linked by NCCL, which "
                    "joins GPUs: say --device cuda", on->name);
  return rows_module_open(&t->task.nccl);
}
