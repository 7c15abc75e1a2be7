/* packed_shapes.h - packed calls of the suite about the Hopper kernels. */
#ifndef DIL_TESTS_UNIT_CUDA_PACKED_SHAPES_H
#define DIL_TESTS_UNIT_CUDA_PACKED_SHAPES_H

#include "tests/support/gpu_case.h"
#include <math.h>

/* Packed calls: documents of no row, of one, of 129 and of many; behind them rows of
 * nobody, which hold NaN. */
static const int32_t packed_rows[] = {0, 0, 1, 130, 130, 1100, 1101, 1390, 1390};
static const int32_t packed_keys[] = {0, 64, 64, 300, 900, 1500, 1500, 1501, 1790};
/* One key in all, so that most phases of a dilation have none. */
static const int32_t lonely_rows[] = {0, 190, 191, 292}, lonely_keys[] = {0, 0, 1, 1};
/* One document has nearly all rows, and each of 25 others has one at most. */
static const int32_t uneven_rows[] = {0,    1300, 1301, 1302, 1303, 1304, 1305, 1306, 1307,
                                      1308, 1309, 1310, 1311, 1312, 1313, 1314, 1315, 1316,
                                      1317, 1318, 1319, 1320, 1321, 1322, 1323, 1323, 1324};
/* One of 200 rows, and 700 of one row: more than a block has threads. */
#define TEN_ROWS(n) \
  n, (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, (n) + 8, (n) + 9
#define HUNDRED_ROWS(n) \
  TEN_ROWS(n), TEN_ROWS((n) + 10), TEN_ROWS((n) + 20), TEN_ROWS((n) + 30), \
      TEN_ROWS((n) + 40), TEN_ROWS((n) + 50), TEN_ROWS((n) + 60), TEN_ROWS((n) + 70), \
      TEN_ROWS((n) + 80), TEN_ROWS((n) + 90)
static const int32_t many_rows[] = {0, HUNDRED_ROWS(200), HUNDRED_ROWS(300),
                                    HUNDRED_ROWS(400), HUNDRED_ROWS(500),
                                    HUNDRED_ROWS(600), HUNDRED_ROWS(700),
                                    HUNDRED_ROWS(800), 900};
static double of_nobody(int32_t tensor, const int64_t *at, double number) {
  return tensor == 0 && at[1] >= 1390 ? NAN : bad_values(tensor, at, number);
}
static double keys_of_nobody(int32_t tensor, const int64_t *at, double number) {
  return at[1] >= (tensor == 0 ? 1390 : 1790) ? NAN : number;
}
#define PACKED(how) \
  {.batch = 1, .queries = 1400, .keys = 1400, .seed = 7, .layout = how, \
   .clean = true, .offsets = packed_rows, .documents = 8, .element = of_nobody}
#define PACKED_UNEVEN \
  {.batch = 1, .queries = 1324, .keys = 1324, .seed = 7, .clean = true, \
   .offsets = uneven_rows, .documents = 26}
#define PACKED_APART(how) \
  {.batch = 1, .queries = 1400, .keys = 1800, .seed = 7, .layout = how, \
   .clean = true, .offsets = packed_rows, .key_offsets = packed_keys, \
   .documents = 8, .element = keys_of_nobody}

#endif
