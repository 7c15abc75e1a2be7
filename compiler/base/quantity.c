/* quantity.c - numbers with units, for people. In: a number of bytes, of seconds
 * or of anything. Out: three or four digits of it and a unit. */
#include "quantity.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>

/* The number with its unit, three or four digits of it. */
static const char *quantity_print(double number, double step,
                                const char *const *unit, int32_t count,
                                char *text) {
  int32_t index = 0;
  while (index + 1 < count && fabs(number) >= step) {
    number /= step;
    index++;
  }
  int digits = fabs(number) >= 100 || number == floor(number) ? 0
               : fabs(number) >= 10                           ? 1
                                                              : 2;
  snprintf(text, QUANTITY_TEXT, "%.*f %s", digits, number, unit[index]);
  return text;
}

const char *quantity_bytes(double bytes, char text[QUANTITY_TEXT]) {
  static const char *const unit[] = {"bytes", "KiB", "MiB",
                                     "GiB",   "TiB", "PiB"};
  return quantity_print(bytes, 1024, unit, 6, text);
}

const char *quantity_scaled(double number, char text[QUANTITY_TEXT]) {
  static const char *const unit[] = {"", "K", "M", "G", "T", "P", "E"};
  return quantity_print(number, 1000, unit, 7, text);
}

const char *quantity_time(double seconds, char text[QUANTITY_TEXT]) {
  static const char *const unit[] = {"us", "ms", "s"};
  return quantity_print(seconds * 1e6, 1000, unit, 3, text);
}
