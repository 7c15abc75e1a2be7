/* arguments_selection.c - where a call writes the blocks that it chooses, from a
 * host's DLPack tensors.
 *
 * In: dil_arguments. Out: the places of a dil_call's lists, or an error that names
 * the list and what is wrong with it. Shapes are the run's own to check. */
#include "context.h"
#include "usage.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"
#include <stdio.h>

enum { LIST_NAME = 32 };

static const char *list_name(int32_t index, char text[LIST_NAME]) {
  snprintf(text, LIST_NAME, "selection[%d]", (int)index);
  return text;
}

/* The place of list `index` among those that the run time makes. */
static int32_t place_of(const dil_table *t, int32_t index) {
  return t->choices[index / 2].rows + index % 2 - t->input_count;
}

/* Lists are written as they lie in memory. */
static dil_status read_list(const dil_kernel *k, const char *name,
                            const DLTensor *from, dil_tensor *to) {
  dil_status status =
      arguments_read_tensor(k->context, name, DIL_I32, from, to);
  if (status) return status;
  if (!dil_tensor_is_row_major(to))
    return dil_fail(DIL_USAGE, "%s must be contiguous", name);
  if (to->data || !dil_tensor_count(to)) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s has no memory", name);
}

static dil_status check_count(const dil_table *t, const dil_arguments *g) {
  int32_t lists = 2 * t->choice_count;
  if (!lists)
    return dil_fail(DIL_USAGE, "kernel '%s' chooses no blocks by their scores: "
                    "selection_count must be 0, got %d", t->name,
                    g->selection_count);
  if (g->selection_count != lists)
    return dil_fail(DIL_USAGE, "kernel '%s' makes %d lists of blocks: "
                    "selection_count must be 0 or %d, got %d", t->name, lists,
                    lists, g->selection_count);
  return dil_usage_list("selection", lists, lists, g->selection);
}

dil_status arguments_read_selection(const dil_kernel *k, const dil_arguments *g,
                                    arguments *a) {
  char name[LIST_NAME];
  const dil_table *t = k->source.table;
  if (!g->selection_count) return DIL_OK;
  dil_status status = check_count(t, g);
  for (int32_t i = 0; i < g->selection_count && !status; i++)
    if (g->selection[i])
      status = read_list(k, list_name(i, name), g->selection[i],
                         &a->made[place_of(t, i)]);
  a->call.made = a->made;
  return status;
}

static dil_status check_list(const dil_kernel *k, const dil_arguments *g,
                             const arguments *a, int32_t index) {
  char name[LIST_NAME], other[LIST_NAME];
  const dil_table *t = k->source.table;
  const dil_tensor *list = &a->made[place_of(t, index)];
  uint64_t flags = g->selection_flags ? g->selection_flags[index] : 0;
  list_name(index, name);
  dil_status status = arguments_check_output(name, list, flags);
  if (!status) status = arguments_check_overlap(k, a, name, list);
  if (!status) status = arguments_check_apart(name, list, "o", &a->call.o);
  if (!status) status = arguments_check_apart(name, list, "lse", &a->call.lse);
  for (int32_t i = 0; i < index && !status; i++)
    status = arguments_check_apart(name, list, list_name(i, other),
                                   &a->made[place_of(t, i)]);
  return status;
}

dil_status arguments_check_selection(const dil_kernel *k, const dil_arguments *g,
                                     const arguments *a) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < g->selection_count && !status; i++)
    if (g->selection[i]) status = check_list(k, g, a, i);
  return status;
}
