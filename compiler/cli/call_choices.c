/* call_choices.c - blocks that a call chooses by their scores.
 *
 * In: a call setup. Out: room for the lists that a kernel makes; after a run,
 * the tables that these lists stand for, since counts of pairs read tables. Where
 * nothing runs, the oracle chooses: by q and k, or without them by numbers that
 * stand for theirs, so that counts are what is to be expected. */
#include "call_setup.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"
#include <string.h>

bool call_has_choices(const pattern *p) {
  for (int32_t b = 0; b < p->branch_count; b++)
    if (branch_choice(&p->branch[b])) return true;
  return false;
}

static dil_status new_lists(call_setup *b, const dil_choice *c) {
  const pattern *p = b->pattern;
  dil_status status = DIL_OK;
  for (int32_t cols = 0; cols < 2 && !status; cols++) {
    dil_tensor t = dil_choice_list(c, p->heads, b->size[CALL_B],
                                   b->size[CALL_M], cols == 1, NULL);
    status = call_tensor_new(b, t.dtype, t.rank, t.shape,
                             &b->inputs[c->rows + cols]);
  }
  return status;
}

dil_status call_choices_make(call_setup *b) {
  const pattern *p = b->pattern;
  dil_status status = DIL_OK;
  for (int32_t k = 0; k < p->branch_count && !status; k++) {
    if (!branch_choice(&p->branch[k])) continue;
    dil_choice c = pattern_choice(p, k);
    status = new_lists(b, &c);
  }
  b->call.made = call_has_choices(p) ? &b->inputs[p->input_count] : NULL;
  return status;
}

/* ---- files --------------------------------------------------------------- */

const char *call_choice_file(arena *a, const char *file, const char *of,
                             bool cols) {
  size_t length = strlen(file);
  bool ends = length > 4 && !strcmp(file + length - 4, ".npy");
  return arena_print(a, "%.*s%s%s.%s.npy", (int)(ends ? length - 4 : length),
                     file, of ? "." : "", of ? of : "", cols ? "cols" : "rows");
}

static int32_t count_choices(const pattern *p) {
  int32_t count = 0;
  for (int32_t b = 0; b < p->branch_count; b++)
    count += branch_choice(&p->branch[b]) != NULL;
  return count;
}

static const char *choice_name(const call_setup *b, int32_t index) {
  const char *name = b->pattern->branch[index].name;
  if (count_choices(b->pattern) == 1) return NULL;
  return name ? name : arena_print(b->arena, "%d", index);
}

dil_status call_choices_check(const call_setup *b) {
  if (!b->options->selection || call_has_choices(b->pattern)) return DIL_OK;
  return dil_fail(DIL_INPUT, "pattern '%s' chooses no blocks by their scores: "
                  "--selection has no effect", b->pattern->name);
}

dil_status call_choices_write(const call_setup *b) {
  const pattern *p = b->pattern;
  dil_status status = DIL_OK;
  for (int32_t k = 0; k < p->branch_count && b->options->selection; k++) {
    if (!branch_choice(&p->branch[k])) continue;
    dil_choice c = pattern_choice(p, k);
    for (int32_t cols = 0; cols < 2 && !status; cols++)
      status = dil_npy_write(call_choice_file(b->arena, b->options->selection,
                                              choice_name(b, k), cols),
                             &b->inputs[c.rows + cols]);
  }
  return status;
}

/* ---- tables -------------------------------------------------------------- */

dil_status call_choices_take(call_setup *b) {
  const pattern *p = b->pattern;
  dil_status status = DIL_OK;
  for (int32_t k = 0; k < p->branch_count && !status; k++) {
    if (!branch_choice(&p->branch[k])) continue;
    dil_choice c = pattern_choice(p, k);
    dil_tensor *table = &b->inputs[c.rows + 2];
    const dil_tensor *rows = &b->inputs[c.rows];
    if (!table->data) status = call_lists_table(b, c.rows + 2, rows);
    if (!status)
      dil_lists_fill(&p->input[c.rows + 2], rows, rows + 1, table);
  }
  return status;
}

dil_status call_choices_expect(call_setup *b) {
  if (!b->call.made) return DIL_OK;
  dil_status status =
      oracle_choose(b->pattern, &b->call, ORACLE_EXPECTED, b->call.made);
  return status ? status : call_choices_take(b);
}
