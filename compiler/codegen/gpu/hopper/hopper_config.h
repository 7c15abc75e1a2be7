/* hopper_config.h - tile configurations of the Hopper kernels, shared by the
 * two strategies: hopper.c, and hopper_pair.c for masks and scores. */
#ifndef DIL_COMPILER_CODEGEN_GPU_HOPPER_HOPPER_CONFIG_H
#define DIL_COMPILER_CODEGEN_GPU_HOPPER_HOPPER_CONFIG_H

#include "compiler/codegen/gpu/emit/emit.h"
#include "compiler/codegen/gpu/emit/strategy.h"
#include "runtime/tables/launch_layout.h"

/* The shared memory of a thread block, in bytes. */
enum { HOPPER_SHARED_MOST = 227 * 1024 };

/* A tile configuration for one head size. */
typedef struct hopper_config {
  int32_t width; /* head_dim and value_dim up to this */
  int32_t warpgroups, keys, stages;
  int32_t queries; /* query tiles in shared memory: 2, or 1 to save room */
  int32_t staged;  /* 1: O is stored by TMA, through shared memory */
  int32_t producer, consumer; /* registers of a thread; 0: the template's
                                 default */
  bool drops;                 /* the kernel has dropout */
} hopper_config;

/* A strategy's configurations. The rows of one width are in order of
 * preference, and the narrowest width that holds the heads is used. A
 * configuration that does not fit shared memory is skipped. */
typedef struct hopper_configs {
  const hopper_config *row;
  int32_t count;
  bool pairwise;    /* for passes with masks or score chains */
  const char *what; /* for error messages: "masks or scores with " or "" */
  /* Adapts the other fields after a schedule has changed the tile or the
   * stages. */
  void (*adapt)(const dil_table *t, hopper_config *s);
  /* Whether the template can be compiled with a schedule's configuration; fills
   * `reason` if not. */
  bool (*fits)(const hopper_config *s, int32_t rows, char *reason, size_t size);
} hopper_configs;

int32_t hopper_config_bytes(const dil_table *t, const hopper_config *s);
/* hopper_config_can: as gpu_strategy.can. hopper_config_write chooses a
 * configuration and writes its code and macros. False: there is no such
 * configuration. Variant 1 is the kernel of a plan's calls with dropout.
 * hopper_config_put_dropout writes the macro for it, behind the plan's tables.
 */
bool hopper_config_can(const gpu_request *r, const hopper_configs *all,
                       char *reason, size_t size);
bool hopper_config_write(const gpu_request *r, const hopper_configs *all,
                         int32_t variant, int32_t fallback, hopper_config *s,
                         dil_cuda_code *code, source_text *text);
void hopper_config_put_dropout(const gpu_request *r, const hopper_config *s,
                               source_text *text);
/* Tells the template and the run time whether the kernel takes packed calls. */
void hopper_config_put_documents(const gpu_request *r, const hopper_config *s,
                                 dil_cuda_code *code, source_text *text);
/* Whether the segments of every pass divide one another. */
bool hopper_config_is_nested(const dil_table *t);
/* Writes the rows of the tables of a kernel's launch, for hopper_launch.h. */
void hopper_put_layout(const launch_layout *layout, source_text *text);

/* Whether one branch is the whole of a pattern: all rows of all heads may see all
 * keys. */
bool hopper_is_whole(const dil_table *t);
/* Elements of a head in shared memory, a multiple of 32. */
int32_t hopper_width(int32_t size);
/* Writes the widths of heads: in shared memory, and of products. */
void hopper_put_widths(const dil_table *t, source_text *text);

/* hopper_pair.c: whether some list has blocks that would fill no tile of 128 keys,
 * or of the rows of all warpgroups. */
bool hopper_has_short_blocks(const block_lists *l);
/* hopper_pair.c: tells the run time of the lists, for hopper_list_fill. */
void hopper_put_list_knobs(const block_lists *l, dil_cuda_code *code);

/* hopper_grid.c: returns whether the strategy for grids has kernels for a pass. */
bool hopper_grid_takes(const dil_table *t, int32_t pass);

#endif
