/* key_list.h - keys of lists, for passes that visit them alone. */
#ifndef DIL_RUNTIME_CPU_KEY_LIST_H
#define DIL_RUNTIME_CPU_KEY_LIST_H

#include "cpu_run.h"
#include "runtime/rowset/walk.h"

/* Fills r->listed from the tables of the call, in so many bytes that are aligned
 * to 64. */
int64_t key_list_bytes(const cpu_run *r);
void key_list_fill(cpu_run *r, char *memory);
/* The positions of the keys that the list at `index` has for a batch row and head,
 * rising. */
int32_t *key_list_line(const cpu_run *r, int32_t index, int64_t b,
                       int32_t head, int32_t *count);
/* The most keys of a head that the pass visits; -1: it visits no list. */
int64_t key_list_room(const cpu_run *r, const dil_pass *pass);
/* Whether the pass visits a list that heads do not share. */
bool key_list_is_of_heads(const dil_table *t, const dil_pass *pass);
/* Key rows of a batch row and head: those of the call, or of the pass's list. */
void key_list_open(const cpu_run *r, const dil_pass *pass, int64_t b,
                   int32_t head, class_table *s);

#endif
