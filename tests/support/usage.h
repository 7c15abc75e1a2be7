/* usage.h - the public functions, what a good call of each is given, and what
 * each answers where one of these is wrong: test_usage.c goes through it. */
#ifndef DIL_TESTS_SUPPORT_USAGE_H
#define DIL_TESTS_SUPPORT_USAGE_H

#include "host.h"
#include <stdbool.h>

/* Parameters point to these, or have these values: the tests write over them. */
typedef struct usage_world {
  dil_context *context, *no_context;
  dil_program *program, *no_program;
  dil_kernel *kernel, *no_kernel, *backward;
  dil_rank *rank, *no_rank; /* a ring of one */
  /* Outputs; what a call has made goes before the next. */
  dil_context *new_context, **context_place;
  dil_program *new_program, **program_place;
  dil_kernel *new_kernel, **kernel_place;
  dil_rank *new_rank, **rank_place;
  void *new_memory, **memory_place;
  int64_t bytes, *bytes_place;
  char text[64], *text_place;
  size_t room;
  /* Structs, and pointers to them. */
  dil_context_options context_options, *context_given;
  dil_program_options program_options, *program_given;
  dil_kernel_options kernel_options, *kernel_given;
  dil_attention_options branches, *branches_given, preset, *preset_given;
  dil_sizes sizes, *sizes_given, tuned;
  dil_stats stats, *stats_given;
  dil_kernel_info info, *info_given;
  dil_tensor_info tensor, *tensor_given;
  dil_arguments *arguments_given;
  dil_gradients gradients, *gradients_given;
  dil_rank_options rank_options, *rank_given;
  dil_topology_info topology, *topology_given;
  int64_t rows, positions[96], *positions_place;
  host_call call;
  int64_t strides[4];
  dil_define define, window;
  int64_t segment, dilation, sides[2];
  /* The rest. */
  const char *name, *path, *source, *kernel_name, *topology_name;
  size_t length;
  void *stream, *device, *host;
  int64_t copied;
  int32_t status, index;
} usage_world;
extern usage_world usage;

/* Objects, once for all calls; options, pointers to them and tensors, for each
 * test anew. */
void usage_open(void);
void usage_close(void);
void usage_set(void);
void usage_unset(void);
/* Whether calls have left an object; and frees it. */
bool usage_made(void);
void usage_drop(void);

/* Something that a call reads: a parameter, or a field behind one. `zero` is
 * the answer where it is NULL or 0, `other` that at each further value of its
 * kind. Of a function without a status DIL_USAGE means its harmless value. */
typedef struct usage_slot {
  char kind;             /* p pointer, s pointer to a struct with a size, w i32,
                            l i64, f i64 at its far ends alone, d double */
  void *at;
  dil_status zero, other;
} usage_slot;

enum { PARAMETERS = 6 };
typedef struct usage_function {
  const char *name;
  void *address;
  char result;           /* s status, p text, w number, v nothing */
  const char *harmless;  /* of a text */
  usage_slot slot[PARAMETERS];
} usage_function;
extern const usage_function functions[];
extern const int function_count;

/* Fields behind the parameters of a function. */
typedef struct field {
  const char *function, *name;
  usage_slot slot;
} field;
extern const field fields[];
extern const int field_count;

#endif
