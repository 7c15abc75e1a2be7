/* launcher.c - reads what launchers leave in the environment; see launcher.h. */
#include "launcher.h"
#include "environment.h"
#include "status.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A launcher that stands earlier is nearer to the process: torchrun is started
 * by srun, and mpirun in a job of Slurm, never the other way. */
static const struct launcher {
  const char *rank, *ranks, *local;
} launchers[] = {
    {"DIL_RANK", NULL, NULL},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"PMIX_RANK", NULL, NULL},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static int32_t find_launcher(void) {
  int32_t i = 0;
  while (i < LAUNCHERS && !environment_text(launchers[i].rank)) i++;
  return i;
}

const char *launch_rank(void) {
  int32_t i = find_launcher();
  return i < LAUNCHERS ? environment_text(launchers[i].rank) : NULL;
}

static dil_status read_number(const char *name, int64_t *number,
                              const char **by) {
  if (*number >= 0 || !name || !environment_text(name)) return DIL_OK;
  *by = name;
  return environment_count(name, INT32_MAX, number);
}

/* A fact that a launcher does not give may come from one below it. */
dil_status launch_read(launch *l) {
  *l = (launch){.rank = -1, .ranks = -1, .local = -1};
  dil_status status = DIL_OK;
  for (int32_t i = find_launcher(); i < LAUNCHERS && !status; i++) {
    status = read_number(launchers[i].rank, &l->rank, &l->rank_by);
    if (!status)
      status = read_number(launchers[i].ranks, &l->ranks, &l->ranks_by);
    if (!status)
      status = read_number(launchers[i].local, &l->local, &l->local_by);
  }
  return status;
}

static dil_status print_place(const char *host, int64_t port, char *place,
                              size_t size) {
  bool bare = strchr(host, ':') && *host != '['; /* IPv6 */
  int length = snprintf(place, size, bare ? "[%s]:%lld" : "%s:%lld", host,
                        (long long)port);
  return length < (int)size ? DIL_OK
                            : dil_fail(DIL_USAGE, "MASTER_ADDR is too long");
}

bool launch_meeting(char *place, size_t size, dil_status *status) {
  const char *meet = environment_text("DIL_MEET");
  const char *host = environment_text("MASTER_ADDR"),
             *agent = environment_text("TORCHELASTIC_USE_AGENT_STORE");
  int64_t port = -1;
  *status = DIL_OK;
  if (meet && snprintf(place, size, "%s", meet) >= (int)size)
    *status = dil_fail(DIL_USAGE, "DIL_MEET is too long");
  if (meet || !host) return meet != NULL;
  *status = environment_count("MASTER_PORT", 65535, &port);
  if (!*status && port < 0)
    *status = dil_fail(DIL_USAGE, "MASTER_ADDR is '%.99s', and MASTER_PORT is "
                       "not set", host);
  if (!*status)
    *status = print_place(host, port + (agent && !strcmp(agent, "True")),
                          place, size);
  return true;
}

bool launch_by_mpi(void) {
  return environment_text("OMPI_COMM_WORLD_SIZE") ||
         environment_text("PMI_SIZE");
}
