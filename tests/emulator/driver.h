/* driver.h - the inside of the emulated libcuda.so.1: contexts, memory, streams
 * of work. Functions named cu... are the driver's own, by their documentation;
 * each locks the whole driver. */
#ifndef DIL_TESTS_EMULATOR_DRIVER_H
#define DIL_TESTS_EMULATOR_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef unsigned long long cu_pointer;

enum { /* CUresult */
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_PEER_ACCESS = 217,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  PEER_ALREADY = 704,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801
};
enum { DEVICES_MOST = 16 };

/* Exported, and declared where it is defined. */
#define SHOWN __attribute__((visibility("default")))
#define CUDA(name, ...)                                                     \
  SHOWN cu_result name(__VA_ARGS__);                                        \
  cu_result name(__VA_ARGS__)

/* ---- device.c ------------------------------------------------------------ */

/* A whole number of the environment. (What is SHOWN is for libnccl.so.2.) */
SHOWN long long wish(const char *name, long long otherwise);
int device_count(void);
/* The device of the current context; -1: there is none. */
SHOWN int device_now(void);
int device_of(cu_context context); /* -1: it is none */
bool device_reaches(int from, int to); /* peer access, or the same */

SHOWN void driver_lock(void);
SHOWN void driver_unlock(void);
/* The result, with words for cuGetErrorString. */
cu_result driver_refuse(cu_result result, const char *why);
/* The fault of a kernel: what every call says from then on; 0: none. */
void driver_break(const char *why);
cu_result driver_broken(void);

/* ---- stream.c --------------------------------------------------------------- */

/* A piece of work of a stream, in its order. What it needs is copied behind it.
 * A run that fails breaks the driver. */
typedef struct work {
  /* Whether it can be run, now that what stands before it is done: with the
   * memory of devices closed. NULL: it always can. */
  bool (*ready)(struct work *);
  void (*run)(struct work *);
  void (*drop)(struct work *); /* NULL: nothing to drop */
  struct work *next;
  int device;
  cu_stream stream;            /* and its place there, from 1 */
  uint64_t at;
  _Alignas(64) char data[];
} work;
SHOWN work *work_new(size_t size, void (*run)(work *));
/* Puts it on the stream, which must be of the current device; 0 or a reason.
 * Takes the work. */
SHOWN cu_result work_put(cu_stream stream, work *w);
/* Runs its stream as far as it, or as far as what is not ready. */
SHOWN void work_push(work *w);
/* Runs what the stream has been given so far. While something is not ready the
 * driver is unlocked. */
cu_result stream_finish(cu_stream stream);
/* Runs all work of a device; of all devices for -1; likewise. */
void streams_finish(int device);

/* Locks, and unlocks whatever the body gives. */
#define LOCKED(body)                                                        \
  do {                                                                      \
    driver_lock();                                                          \
    cu_result locked_result = (body);                                       \
    driver_unlock();                                                        \
    return locked_result;                                                   \
  } while (0)

#endif
