/* score.c - the form of a plan's only score chain as CUDA C.
 *
 * In: a plan. Out: SCORE_FORM and what the form needs; see emit.h. */
#include "emit.h"
#include <string.h>

static const char *const score_kinds[] = {[SCORE_ANY] = "SCORE_ANY",
                                          [SCORE_LINEAR] = "SCORE_LINEAR",
                                          [SCORE_CAPPED] = "SCORE_CAPPED"};
static const char *const score_distances[] = {[DISTANCE_KEY] = "DISTANCE_KEY",
                                              [DISTANCE_AWAY] = "DISTANCE_AWAY",
                                              [DISTANCE_SIZE] =
                                                  "DISTANCE_SIZE"};

static void put_score_function(source_text *s, const plan *p, const char *head,
                               const expr *e) {
  put(s, "DIL_INLINE float %s {\n  return ", head);
  if (e)
    put_f32(s, p, e);
  else
    put(s, "0.0f");
  put(s, ";\n}\n");
}

score_kind score_kind_of(const plan *p) {
  if (p->table.chain_count != 1) return SCORE_ANY;
  return p->form[0].kind;
}

void put_score_form(source_text *s, const plan *p) {
  const score_form *form = &p->form[0];
  score_kind kind = score_kind_of(p);
  put(s, "#line 1 \"score form of %s\"\n#define SCORE_FORM %s\n", p->table.name,
      score_kinds[kind]);
  if (kind == SCORE_CAPPED)
    put(s, "#define SCORE_CAP %.9ef\n#define SCORE_RATE %.9ef\n", form->cap,
        form->rate);
  if (kind != SCORE_LINEAR) return;
  put(s,
      "#define SCORE_SLOPES %d\n#define SCORE_ROWS %d\n"
      "#define SCORE_DISTANCE %s\n",
      form->slope != NULL, form->row != NULL, score_distances[form->distance]);
  put_score_function(s, p, "dil_slope(const dil_pair &at)", form->slope);
  put_score_function(s, p, "dil_row_score(int i, const dil_pair &at)",
                     form->row);
}
