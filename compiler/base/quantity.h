/* quantity.h - numbers with units, for people. */
#ifndef DIL_COMPILER_BASE_QUANTITY_H
#define DIL_COMPILER_BASE_QUANTITY_H

/* "1.25 GiB", "340 KiB", ... into `text`; returns it. */
enum { QUANTITY_TEXT = 32 };
const char *quantity_bytes(double bytes, char text[QUANTITY_TEXT]);
/* "1.25 T", "340 G", ...: powers of 1000. */
const char *quantity_scaled(double number, char text[QUANTITY_TEXT]);
/* "1.25 s", "340 us", ... */
const char *quantity_time(double seconds, char text[QUANTITY_TEXT]);

#endif
