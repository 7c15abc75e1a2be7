/* list_row.cuh - what is known of lists of blocks when a kernel is compiled. */
#ifndef DIL_TEMPLATES_SHARED_LIST_ROW_H
#define DIL_TEMPLATES_SHARED_LIST_ROW_H

struct dil_list_row {
  int query_block, block;
  int heads, batches; /* it differs between heads, between batch rows */
};

#endif
