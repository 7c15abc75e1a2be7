/* documents_table.h - the table of a plan without the one mask that keeps documents
 * apart. Where the input of that mask is sorted, kernels of this table take the call as a
 * packed one (runtime/cuda/documents.h). */
#ifndef DIL_RUNTIME_TABLES_DOCUMENTS_TABLE_H
#define DIL_RUNTIME_TABLES_DOCUMENTS_TABLE_H

#include "runtime/plan_table.h"

/* The table points into this struct, which stays where it is. */
typedef struct documents_table {
  dil_table table;
  dil_predicate predicate;
} documents_table;

/* Of a table with one predicate. */
void documents_table_fill(const dil_table *from, documents_table *out);

#endif
