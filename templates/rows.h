/* rows.h - the parameters of rows.cu: a struct that the run time (C) fills and
 * the kernels (CUDA C) read. */
#ifndef DIL_TEMPLATES_ROWS_H
#define DIL_TEMPLATES_ROWS_H

enum { DIL_ROWS_PROGRESSIONS = 2, DIL_ROWS_THREADS = 256 };
/* The sizes of the structs below, which C and CUDA C both check. */
enum {
  DIL_ROWS_RUN_BYTES = 40,
  DIL_ROWS_BYTES = 224,
  DIL_ROWS_RANDOM_BYTES = 80
};

/* From the places to the message; from the message to the places; f32 of the
 * message added to the places; zeros to the places. */
enum { DIL_ROWS_PACK, DIL_ROWS_SPREAD, DIL_ROWS_ADD, DIL_ROWS_CLEAR };

/* Rows of one K/V head, at positions low + offset[first + i] + n * period. */
typedef struct dil_rows_run {
  long long low, period;
  long long before;        /* rows of the list that stand before these */
  int kv, progression, first, count;
} dil_rows_run;

/* Rows of keys and values between their places and a message: for each batch
 * row the rows of the list, each its K and then its V. */
typedef struct dil_rows {
  const dil_rows_run *run;
  const int *offset;
  int runs;
  int how;               /* DIL_ROWS_... */
  int unit_bytes;        /* of the units that rows are copied by: 16, 4 or 2 */
  int k_units, v_units;  /* of a row */
  long long rows, items; /* of a batch row; units of all of them */
  char *message;
  char *k[DIL_ROWS_PROGRESSIONS], *v[DIL_ROWS_PROGRESSIONS];
  long long k_stride[DIL_ROWS_PROGRESSIONS][3]; /* bytes: b, row, head */
  long long v_stride[DIL_ROWS_PROGRESSIONS][3];
  long long first[DIL_ROWS_PROGRESSIONS], step[DIL_ROWS_PROGRESSIONS];
} dil_rows;

/* Standard normals by the number of each element in a tensor [B, N, H, D] of
 * which this holds some batch rows, rows and heads. */
typedef struct dil_rows_random {
  void *data;              /* [batches, rows, heads, width], contiguous */
  long long rows, items;   /* items: elements here */
  long long first, step;   /* rows of the whole that stand here */
  long long whole_rows;
  int batch, head, heads, whole_heads, width;
  int dtype;               /* 0 f32, 1 bf16, 2 f16 */
  unsigned seed, tensor;
} dil_rows_random;

#endif
