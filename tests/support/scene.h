/* scene.h - a kernel, a call with the oracle's answer, and a device on the
 * processor to stream it over, for the suites of streamed runs. */
#ifndef DIL_TESTS_SUPPORT_SCENE_H
#define DIL_TESTS_SUPPORT_SCENE_H

#include "numeric.h"
#include "runtime/stream/stream.h"
#include <stdatomic.h>

typedef struct scene {
  subject *s;
  kernel_made *k;        /* refused: the rest is not there */
  data *d;
  ring_device *device;
  dil_threads *threads;
  _Atomic int64_t pairs; /* that the last stream told of */
} scene;

/* A call of that shape, training, over two batch rows if it does not say; the
 * seeds are the scene's own. `force` is plan_force bits. Ends the test where
 * the text is wrong. */
scene *scene_open(const char *text, call_shape of, unsigned force);
void scene_close(scene *c);
/* A run over the call in chunks of that size, which counts its pairs from
 * zero. */
dil_stream scene_stream(scene *c, stream_chunks cut);

#endif
