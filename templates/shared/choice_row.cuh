/* choice_row.cuh - what is known of a choice of blocks when a kernel is compiled:
 * dil_choice of runtime/plan_table.h. */
#ifndef DIL_TEMPLATES_SHARED_CHOICE_ROW_H
#define DIL_TEMPLATES_SHARED_CHOICE_ROW_H

enum { DIL_ESTIMATE_MEAN, DIL_ESTIMATE_EACH, DIL_ESTIMATE_INPUT };

struct dil_choice_row {
  int branch, rows;
  int query_block, block;
  int left, right; /* DIL_FAR: no bound */
  int most;
  int estimate;    /* DIL_ESTIMATE_... */
  int gate;
  int group;       /* heads that choose as one */
  /* Blocks of cells: those of a block and of the grid along each axis, the last one
   * the fastest; extent[0] 0: M over the others. cell[0] 0: blocks of positions. */
  int cell[3], extent[3];
  double share;    /* of `keep mass`; 0: it is `keep top` */
};

#endif
