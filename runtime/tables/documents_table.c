/* documents_table.c - see documents_table.h. In: the table of a plan whose one mask
 * compares an input with itself. Out: the same table, whose predicate is a window. */
#include "documents_table.h"

void documents_table_fill(const dil_table *from, documents_table *out) {
  out->predicate = from->predicates[0];
  out->predicate.masked = false;
  out->table = *from;
  out->table.predicates = &out->predicate;
}
