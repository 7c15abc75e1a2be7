/* progress.c - a bar on standard error for work that takes long. It is drawn
 * on a terminal only, by whichever thread comes first when the time is there;
 * in a pipe it is silent. */
#include "command.h"
#include <unistd.h>

enum { BAR_WIDTH = 32, FIRST_MS = 500, EVERY_MS = 100 };

void progress_start(progress *p, const char *label, int64_t total) {
  *p = (progress){.label = label, .total = total, .start = message_clock()};
  p->shown = isatty(STDERR_FILENO) && total > 0;
  atomic_init(&p->done, 0);
  atomic_init(&p->next, FIRST_MS);
  atomic_flag_clear(&p->drawing);
}

static void draw(const progress *p, int64_t done, double seconds) {
  double share = (double)done / (double)p->total;
  int full = (int)(share * BAR_WIDTH);
  char bar[BAR_WIDTH + 1] = {0};
  for (int i = 0; i < BAR_WIDTH; i++) bar[i] = i < full ? '#' : '.';
  fprintf(stderr, "\r%s [%s] %3.0f %%, %.0f s left ", p->label, bar,
          100 * share, seconds * (1 - share) / share);
  fflush(stderr);
}

void progress_add(progress *p, int64_t count) {
  int64_t done = atomic_fetch_add(&p->done, count) + count;
  if (!p->shown) return;
  double seconds = message_clock() - p->start;
  if ((int64_t)(1000 * seconds) < atomic_load(&p->next)) return;
  if (atomic_flag_test_and_set(&p->drawing)) return;
  atomic_store(&p->next, (int64_t)(1000 * seconds) + EVERY_MS);
  draw(p, done, seconds);
  atomic_flag_clear(&p->drawing);
}

void progress_end(progress *p) {
  if (p->shown && atomic_load(&p->next) != FIRST_MS) fputs("\r\033[K", stderr);
}
