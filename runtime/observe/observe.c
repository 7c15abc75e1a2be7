/* observe.c - the three ways to see what goes on, together: see observe.h. */
#include "observe.h"
#include "log.h"
#include "metrics.h"
#include "trace.h"

dil_status dil_observe_open(void) {
  dil_status status = log_open();
  if (!status) status = trace_open();
  return status ? status : metrics_open();
}

dil_status dil_observe_flush(void) {
  dil_status traced = trace_flush(), counted = metrics_write();
  return traced ? traced : counted;
}
