/* metrics_ring.c - what each rank of a ring received in each step: series of
 * their own in the metrics, because ranks and steps are as many as a topology
 * says. In: one note a wait, while metrics are on. Out: Prometheus text. */
#include "metrics.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct spot {
  int32_t rank, step;
  int64_t bytes;
  double waited, moving;    /* seconds */
} spot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spot *spots;         /* guarded, with all below */
static int32_t count, room;

/* NULL without memory: a number is lost, the run goes on. */
static spot *find_spot(int32_t rank, int32_t step) {
  for (int32_t i = 0; i < count; i++)
    if (spots[i].rank == rank && spots[i].step == step) return &spots[i];
  if (count == room) {
    int32_t more = room ? 2 * room : 64;
    spot *grown = realloc(spots, (size_t)more * sizeof *grown);
    if (!grown) return NULL;
    spots = grown;
    room = more;
  }
  spots[count] = (spot){.rank = rank, .step = step};
  return &spots[count++];
}

void dil_metrics_step(int32_t rank, int32_t step, int64_t bytes, double waited,
                      double moving) {
  pthread_mutex_lock(&lock);
  spot *s = find_spot(rank, step);
  if (s) {
    s->bytes += bytes;
    s->waited += waited;
    s->moving += moving;
  }
  pthread_mutex_unlock(&lock);
}

static double spot_bytes(const spot *s) { return (double)s->bytes; }
static double spot_waited(const spot *s) { return s->waited; }
static double spot_rate(const spot *s) {
  return s->moving > 0 ? (double)s->bytes / s->moving : 0;
}

static const struct {
  const char *name, *type, *help;
  double (*value)(const spot *s);
} series[] = {
    {"dil_ring_step_bytes_total", "counter",
     "Keys and values that a rank received in a step.", spot_bytes},
    {"dil_ring_step_wait_seconds_total", "counter",
     "Time that a rank waited for them.", spot_waited},
    {"dil_ring_step_bytes_per_second", "gauge",
     "Their least rate, from asking for them until they were known to be "
     "there.",
     spot_rate},
};

void metrics_put_steps(FILE *out) {
  pthread_mutex_lock(&lock);
  for (size_t k = 0; count && k < sizeof series / sizeof *series; k++) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", series[k].name, series[k].help,
            series[k].name, series[k].type);
    for (int32_t i = 0; i < count; i++)
      fprintf(out, "%s{rank=\"%d\",step=\"%d\"} %.9g\n", series[k].name,
              spots[i].rank, spots[i].step, series[k].value(&spots[i]));
  }
  pthread_mutex_unlock(&lock);
}
