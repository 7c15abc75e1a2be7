/* shared_file.h - the file in which ranks of one host meet, and whose mapping
 * is the shared memory of their link. Internal to link_file.c. */
#ifndef DIL_RUNTIME_LINK_SHARED_FILE_H
#define DIL_RUNTIME_LINK_SHARED_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PIECE = 1 << 16, REASON = 256, RANKS_MOST = 256 };

typedef struct file_entry { /* a rank's entry in the file */
  atomic_int pid;          /* 0: no process has taken this rank */
  atomic_int left;         /* the rank has freed its link */
  _Atomic double last_heartbeat; /* by the clock of the host */
} file_entry;

typedef struct mailbox {   /* a mailbox from one rank to another */
  atomic_int full;
  int32_t bytes;           /* of this piece */
  int64_t size;            /* of the whole message */
  char piece[PIECE];
} mailbox;

/* State of the link. FAILS: a rank writes the reason; FAILED: the reason is
 * there; OVER: rank 0 has dismissed all, and the link cannot fail any more. */
enum { GOES_ON, FAILS, FAILED, OVER };

typedef struct shared_file {
  char magic[8];
  int32_t ranks;
  atomic_int came;         /* how many ranks have met; below 0: spoiled */
  atomic_int state;
  char reason[REASON];
  bool lost[RANKS_MOST];   /* ranks that the failure has cost */
  file_entry entry[RANKS_MOST];
  mailbox mailbox[];       /* [from * ranks + to] */
} shared_file;

/* All functions return the mapping, or NULL; the caller unmaps it. A size is in
 * bytes, of the whole file. */

/* Maps the file of `ranks` ranks; odd: the head of a file of another number of
 * ranks. */
shared_file *shared_file_open(const char *path, int32_t ranks, size_t size,
                              bool odd);
/* Rank 0 makes the file under another name, so that no rank sees half of it.
 * NULL: *taken is the process that has the name, or errno says why. */
shared_file *shared_file_make(const char *path, int32_t ranks, size_t size,
                              int *taken);
/* Waits until rank 0 has made the file, and takes this rank's entry. NULL: it
 * is past `end`; or process *taken has the entry; or *taken is -1, and rank 0
 * counts another number of ranks. */
shared_file *shared_file_await(const char *path, int32_t rank, int32_t ranks,
                               double end, size_t size, int *taken);
/* Makes the rendezvous fail for all with this reason, unless all have met. */
void shared_file_spoil(shared_file *b, const char *why);

#endif
