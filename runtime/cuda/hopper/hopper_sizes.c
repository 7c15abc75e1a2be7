/* hopper_sizes.c - a cache of launches by the sizes of calls. In: the tables of
 * a pass, the place of a call. Out: a launch without tensors. */
#include "hopper_sizes.h"
#include <string.h>

void sizes_fill(const hopper_form *form, hopper_sized_launch *s) {
  hopper_launch *l = &s->launch;
  memset(l, 0, sizeof *l);
  s->refused = !hopper_tiles_choose(form->table, &s->place, form->tile_rows,
                                    form->processors, l);
  l->group = form->group;
}

const hopper_sized_launch *sizes_find(hopper_sizes *sizes,
                                      const hopper_form *form,
                                      const hopper_place *place) {
  for (int32_t i = 0; i < sizes->count; i++) {
    const hopper_sized_launch *s = &sizes->size[i];
    if (s->pass == form->pass && !memcmp(&s->place, place, sizeof *place))
      return s;
  }
  hopper_sized_launch *s = &sizes->size[sizes->next];
  sizes->next = (sizes->next + 1) % SIZES_KEPT;
  if (sizes->count < SIZES_KEPT) sizes->count++;
  s->pass = form->pass;
  s->place = *place;
  sizes_fill(form, s);
  return s;
}
