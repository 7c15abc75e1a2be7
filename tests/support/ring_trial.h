/* ring_trial.h - calls on ranks that are threads, for the suites of rings:
 * meshes and ways of exchange to try, a run and its outcome, and ranks whose
 * links a test spoils. */
#ifndef DIL_TESTS_SUPPORT_RING_TRIAL_H
#define DIL_TESTS_SUPPORT_RING_TRIAL_H

#include "gradients.h"
#include "runtime/ring/ranks.h"

#define MESH(ring, heads, batch, layout) \
  { ring, heads, batch, DIL_##layout, 0, 30, false, 0 }

enum { MESHES = 10, WAYS = 4, COMING = 4, RANKS_MOST = 16 };
extern const mesh meshes[MESHES];
/* Branches that gather: none, all, or only some. */
extern const uint64_t ways[WAYS];
/* Branches whose queries come: all, some, or none. */
extern const uint64_t coming[COMING];

/* A test's request to a rank group, and its results. */
typedef struct ring_trial {
  mesh mesh;
  ring_checkpoint checkpoint;
  void (*spoil)(dil_ring *ring, int32_t rank);
} ring_trial;

typedef struct ring_outcome {
  dil_status status;
  char text[256];
  rank_report of[RANKS_MOST];
  double seconds;
} ring_outcome;

/* The queries of branches coming[which % COMING] come. */
void ring_trial_come(ring_trial *t, int which);
/* Of the direction of the kernel's plan, one thread a rank. */
rank_group_task ring_trial_task(const kernel_made *k, const ring_trial *t);
/* Ends the test where there can be no such group. */
rank_group *ring_trial_group(const rank_group_task *task);
ring_outcome ring_trial_run(const kernel_made *k, const ring_trial *t,
                            const dil_call *call);
ring_outcome ring_trial_backward(const kernel_made *k, const ring_trial *t,
                                 const dil_backward_call *call);
int64_t ring_bytes_sent(const ring_outcome *r);

/* ---- a call for gradients ------------------------------------------------ */

typedef struct gradient_scene {
  tested_pattern *s;
  kernel_made *k;
  gradient_data *g;
} gradient_scene;

/* Two batch rows; training. Ends the test where the text is wrong. */
gradient_scene gradient_scene_open(const char *text, int64_t N, int64_t M);
void gradient_scene_close(gradient_scene *c);
ring_outcome gradient_scene_run(const gradient_scene *c, const ring_trial *t);
/* Ends the test unless the run gives the oracle's gradients. */
ring_outcome gradient_scene_agrees(const gradient_scene *c,
                                   const ring_trial *t);

/* ---- ranks that a test spoils -------------------------------------------- */

typedef dil_status ring_post(dil_link *link, int32_t slot,
                             const link_transfer *t);
typedef dil_status ring_wait(dil_link *link, int32_t slot);

/* The calls of a link before it was spoiled, for a test's own to call. */
extern const link_calls *link_below;
/* NULL: the link's own. */
void ring_spoil_link(dil_ring *r, int32_t rank, ring_post *post,
                     ring_wait *wait);
/* Of all runs that follow until the next call of it, the first one that comes
 * to this step fails there, on this rank of a ring, by DIL_INTERNAL. */
void ring_fail_next(int32_t rank, int32_t step);
/* `spoil` of such runs. */
void ring_fail_once(dil_ring *r, int32_t rank);
/* `spoil`: rank 2 has an input that its pattern does not declare, and fails. */
void ring_add_input(dil_ring *r, int32_t rank);

#endif
