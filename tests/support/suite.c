/* suite.c - see suite.h. */
#include "suite.h"
#include <stdlib.h>

int suite_run(Suite *suite, enum fork_status processes) {
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, processes);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}

bool suite_is_long(void) {
  return getenv("DIL_TEST_LONG") != NULL;
}
