/* session_ranks_gpu.c - the shared state of ranks on GPUs: the plan's code, the
 * kernels that move rows (rows.cu), and the devices. In: a compilation. Out: a
 * rank_group_gpu. */
#include "command.h"
#include "session_cuda.h"
#include "session_ranks.h"
#include "runtime/api/device_cuda.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include <stdlib.h>

/* Chooses the one device of a process: the device that --device names, or that
 * of its local rank (its number on its host), or else that of its rank. */
static dil_status take_own(session_ranks *t, const options *o, int32_t count) {
  const launch *l = &t->launched;
  int64_t local = l->local >= 0 ? l->local : l->rank;
  if (!o->device.numbered && count > 1 && l->local >= count)
    return dil_fail(DIL_USAGE, "%s is %lld, and this host has %d GPUs for its "
                    "processes", l->local_by, (long long)l->local, count);
  if (!o->device.numbered && local < 0) return DIL_OK;
  t->gpu.first = o->device.numbered ? (int32_t)o->device.number
                                    : (int32_t)(local % count);
  t->gpu.devices = 1;
  return DIL_OK;
}

/* Returns whether the launcher gives each process of this host one GPU of its
 * own. */
static bool is_told_apart(const session_ranks *t, int32_t count) {
  return t->job && count == 1 && environment_text("CUDA_VISIBLE_DEVICES");
}

static dil_status count_devices(session_ranks *t, const options *o,
                                const topology *on) {
  int32_t count = 0;
  dil_status status = dil_cuda_module_open(&t->gpu.cuda);
  if (!status) status = t->gpu.cuda->devices(&count);
  if (status) return status;
  t->gpu.first = (int32_t)o->device.number;
  t->gpu.devices = count - t->gpu.first;
  if (t->gpu.devices > on->devices) t->gpu.devices = (int32_t)on->devices;
  if (t->gpu.devices < 1)
    return dil_fail(DIL_USAGE, "there is no device cuda:%d, of %d",
                    t->gpu.first, count);
  bool here = !t->job || (session_ranks_in_file(t) && !o->device.numbered);
  if (here && is_told_apart(t, count)) here = false;
  if (t->gpu.devices < on->devices && on->link == LINK_NCCL && here)
    return dil_fail(DIL_UNSUPPORTED, "topology '%s' is linked by NCCL, which "
                    "wants a GPU for each rank: %lld ranks, %d GPU%s", on->name,
                    (long long)on->devices, t->gpu.devices,
                    t->gpu.devices == 1 ? "" : "s");
  if (t->gpu.devices < on->devices && here)
    message_note("%lld ranks share %d GPU%s", (long long)on->devices,
                 t->gpu.devices, t->gpu.devices == 1 ? "" : "s");
  return t->job ? take_own(t, o, count) : DIL_OK;
}

static dil_status check_topology(const topology *on) {
  if (on->link == LINK_MPI || on->link == LINK_PROCESS)
    return dil_fail(DIL_UNSUPPORTED, "topology '%s' is linked by %s, which "
                    "moves memory of the host: say `link nccl` or `link "
                    "thread` for GPUs", on->name,
                    on->link == LINK_MPI ? "MPI" : "files or sockets");
  return DIL_OK;
}

dil_status session_ranks_gpu(session_ranks *t, compilation *c,
                             const options *o) {
  options own = *o;
  dil_status status = check_topology(c->topology);
  if (!status) status = count_devices(t, o, c->topology);
  own.device.number = t->gpu.first; /* no context on another's GPU */
  if (!status) status = session_cuda_context(&own, &t->context);
  return status ? status : session_cuda_codes(c, t->context, &t->code, &t->gpu);
}

void session_ranks_gpu_free(session_ranks *t) {
  free(t->gpu.rows.cubin);
  dil_context_free(t->context);
}
