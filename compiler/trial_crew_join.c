/* trial_crew_join.c - how the ranks of a topology meet: as threads of this
 * process, as processes of an MPI job, in a file, or at a port of rank 0's host.
 * In: a topology and the environment. Out: links. */
#include "interface.h"
#include "setting.h"
#include "trial_crew.h"
#include <string.h>

/* Other processes of a job are there, and this is one of them. */
static bool in_mpi_job(void) {
  return setting_text("OMPI_COMM_WORLD_SIZE") || setting_text("PMI_SIZE");
}

bool bind_is_process(void) {
  return setting_text("DIL_MEET") || in_mpi_job();
}

bool trial_crew_is_job(const topology *on) {
  bool nccl = on->link == LINK_NCCL && on->devices > 1;
  return on->link == LINK_MPI || (nccl && bind_is_process());
}

/* NULL: this is an MPI job. */
static const char *meeting_file(const topology *on) {
  return on->link == LINK_NCCL ? setting_text("DIL_MEET") : NULL;
}

bool trial_crew_in_file(const topology *on) {
  const char *place = meeting_file(on);
  return place && !socket_is_address(place);
}

static dil_status check_count(const topology *on, int32_t ranks) {
  if (ranks == on->devices) return DIL_OK;
  return dil_fail(DIL_USAGE, "topology '%s' has %lld devices, and there are "
                  "%d processes: `mpirun -n %lld dil run ...`", on->name,
                  (long long)on->devices, ranks, (long long)on->devices);
}

static dil_status open_mpi(trial_crew *t, const topology *on, double timeout) {
  void *symbol;
  int32_t ranks = 0;
  dil_status status = dil_module_open("dilrt-mpi.so", DIL_MPI_SYMBOL, &symbol);
  if (status) return status;
  t->mpi = ((dil_mpi_init)symbol)();
  if (t->mpi->version != DIL_INTERFACE)
    return dil_fail(DIL_ENVIRONMENT, "dilrt-mpi.so is of another version of "
                                     "dil");
  status = t->mpi->open(&t->task.rank, &ranks);
  if (!status) status = check_count(on, ranks);
  return status ? status : t->mpi->link(0, timeout, &t->world);
}

/* Our own variable, and those of launchers: the first that is set. */
static dil_status find_rank(const topology *on, int32_t *found) {
  static const char *const names[] = {"DIL_RANK", "SLURM_PROCID", "RANK"};
  int64_t rank = -1;
  dil_status status = DIL_OK;
  for (size_t i = 0; i < sizeof names / sizeof *names && rank < 0; i++)
    if (!status) status = setting_count(names[i], on->devices - 1, &rank);
  if (!status && rank < 0)
    status = dil_fail(DIL_USAGE, "DIL_MEET says where ranks meet: which one is "
                      "this? say DIL_RANK=0..%lld", (long long)on->devices - 1);
  *found = (int32_t)rank;
  return status;
}

/* In a file, or at HOST:PORT. */
static dil_status open_meeting(trial_crew *t, const topology *on,
                               const char *place, double timeout) {
  enum { PATIENCE = 30 }; /* seconds: processes do not begin at once */
  int32_t ranks = (int32_t)on->devices;
  double patience = on->timeout > PATIENCE ? on->timeout : PATIENCE;
  dil_status status = find_rank(on, &t->task.rank);
  if (status) return status;
  return socket_is_address(place)
             ? socket_link_new(place, t->task.rank, ranks, patience, timeout,
                               &t->world)
             : file_link_new(place, t->task.rank, ranks, timeout, &t->world);
}

dil_status trial_crew_world(trial_crew *t, const topology *on,
                            double timeout) {
  const char *path = meeting_file(on);
  return path ? open_meeting(t, on, path, timeout) : open_mpi(t, on, timeout);
}

dil_status trial_crew_ring(trial_crew *t, const topology *on) {
  const char *path = meeting_file(on);
  int32_t ring = (int32_t)on->ring, group = t->task.rank / ring;
  char own[DIL_PATH_MAX];
  if (!path) return t->mpi->link(group, on->timeout, &t->task.link);
  if (socket_is_address(path))
    return socket_link_part(t->world, group * ring, ring, on->timeout,
                            &t->task.link);
  if (snprintf(own, sizeof own, "%s.ring%d", path, group) >= (int)sizeof own)
    return dil_fail(DIL_USAGE, "DIL_MEET is too long");
  return file_link_new(own, t->task.rank % ring, ring, on->timeout,
                       &t->task.link);
}

dil_status trial_crew_nccl(trial_crew *t, const topology *on) {
  void *symbol;
  if (on->link != LINK_NCCL || on->devices == 1) return DIL_OK;
  if (!t->on_gpu)
    return dil_fail(DIL_UNSUPPORTED, "topology '%s' is linked by NCCL, which "
                    "joins GPUs: say --device cuda", on->name);
  dil_status status =
      dil_module_open("dilrt-nccl.so", DIL_NCCL_SYMBOL, &symbol);
  if (status) return status;
  t->task.nccl = ((dil_nccl_init)symbol)();
  if (t->task.nccl->version == DIL_INTERFACE) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "dilrt-nccl.so is of another version of "
                                   "dil");
}
