/* launch.h - the parameters of the general kernels: one struct that the run
 * time (C) fills and the kernels (CUDA C) read. Strides count elements.
 *
 * The tiles of a pass are numbered by arithmetic on its numbers: position in
 * the grid of the shortest segment, part of it that other segments cut, row of
 * the period, block of rows, split of the keys, head, batch row (walk.cuh says
 * in which order). */
#ifndef DIL_TEMPLATES_SHARED_LAUNCH_H
#define DIL_TEMPLATES_SHARED_LAUNCH_H

enum {
  DIL_BOUNDS_BLOCK = 64, /* elements of the last axis in a block */
  DIL_BOUND_BYTES = 8,   /* its smallest and its largest */
  DIL_PARAMS_BYTES = 1800 /* of dil_params; C and CUDA C both check it */
};

/* Types of inputs. */
enum {
  DIL_INPUT_F32,
  DIL_INPUT_BF16,
  DIL_INPUT_F16,
  DIL_INPUT_I32,
  DIL_INPUT_U8,
  DIL_INPUT_SUM /* of a gradient: float64 that is added to */
};

typedef struct dil_device_input {
  const void *data;
  /* Smallest and largest element of each block: [leading axes][blocks][2], i32
   * or f32 as the input is; a smallest of NaN: some element is. NULL: none. Of a
   * table of bits: the table turned round (cover.cuh). */
  const void *bounds;
  long long dim[4];
  long long stride[4];
} dil_device_input;

enum { /* rows of 16-byte units, which may be copied as such */
       DIL_WHOLE_Q = 1,
       DIL_WHOLE_K = 2,
       DIL_WHOLE_V = 4,
       DIL_WHOLE_O = 8, /* pairs of elements are aligned */
       DIL_DROP = 16,   /* dropout applies */
       DIL_SHARD =
           32, /* of a sequence (dil_shard): every row ends in the state */
       DIL_ALONE = 64, /* the state begins as that of one pass alone */
       DIL_FEW = 128,  /* few rows: a batch row has splits of its own, splits.h */
       DIL_OWN_LISTS = 256, /* dil_lists: no table of lists that a choice makes */
       DIL_GROUP_LISTS = 512, /* K/V heads have lists of keys, key_list.cuh */
       DIL_LIST_ROWS = 1024, /* tiles hold the keys of the pass's list */
       DIL_JOINS = 2048 /* dil_end: states of all passes, which one softmax joins */
};

/* One axis of a pass whose tiles are patches of a grid, as runtime/rowset/patch.h
 * describes it. 0x7fffffff: no bound. */
typedef struct dil_patch_axis {
  int extent, stride;       /* cells; positions from a cell to the next */
  int step, residues;       /* the dilation, and the residues that have cells */
  int left, right, kernel;  /* in cells of a residue */
  int causal;
  int size, count;          /* cells of a patch; patches of a residue */
} dil_patch_axis;

typedef struct dil_params {
  const void *q, *k, *v;
  void *o;
  float *lse;                    /* NULL: not wanted */
  long long q_stride[3], k_stride[3], v_stride[3], o_stride[3]; /* b, n, h */
  long long lse_stride[3];       /* b, n, h */
  /* Of chained heads, and of all in a shard; [batches, rows, heads, Dv]. */
  float *state_o, *state_lse;
  float *partial;                /* [splits][those rows][2 + Dv]: m, l, sums */
  const int *lengths;            /* [B] or NULL */
  /* [batches + 1] of a packed call, whose batch rows are documents; or NULL. N
   * and M, rows and keys below are those of the longest. */
  const int *offsets_q, *offsets_k;
  /* [batches][..], pages_stride apart: the pages of a batch row, or NULL. k and v
   * are then the pool, [page_count][1 << page_shift rows], and not [B][M]. */
  const int *pages;
  long long pages_stride;
  const unsigned *seed_at;       /* in place of the seed below, or NULL */
  int B, N, M;                   /* of the whole sequence */
  int batches, rows;             /* of the call: batch rows, query rows */
  int first, step;               /* where they stand, where M keys are there */
  int key_first, key_step, key_rows; /* where the rows of k and v stand */
  int batch, head;               /* numbers in the whole of the call's first */
  int heads;                     /* of the call, of those of the plan */
  int pass;
  int stride;                    /* positions between the rows of a tile */
  int segment;                   /* the shortest of the pass; 0: none */
  int cells, parts, residues, blocks; /* a head's tiles, by the list above */
  int splits;
  int spread;                    /* heads in turn: long tiles come first */
  int pack;                      /* heads of one K/V head that share a tile */
  int flags;
  int packed_rows, packed_keys;  /* of a packed call's tensors */
  int states;                    /* of a row of a packed call's state */
  int page_shift, page_count;    /* rows of a page are 1 << page_shift */
  long long items;               /* tiles of the whole launch */
  float scale, weight;
  unsigned seed_low, seed_high;
  dil_device_input input[16];
  int patch_axes;                /* 0: tiles are no patches */
  int patch_alone;               /* nothing but the axes decides over pairs */
  dil_patch_axis patch[3];
  unsigned long long left_out;   /* branches whose pairs a shard's gradients leave
                                    out, as bits */
  const unsigned *only_if;       /* the kernels of tables and bounds work only where it
                                    is set; NULL: they work */
} dil_params;

/* The parameters of choose.cuh: a call, one of its choices, and the memory that
 * it needs. Lists of a query block stand in `list`, each with `room` places, until
 * all lengths are known. */
typedef struct dil_choose_params {
  dil_params of;
  /* Of key blocks, [batches][KV_HEADS][depth][width], and for matrix products
   * [batches][KV_HEADS][width][depth]; depth is DIL_CHOOSE_DEPTH of HEAD_DIM. */
  float *means;
  float *query_means; /* of query blocks, [batches][HEADS][queries][depth]; or NULL */
  /* Means of key blocks rounded to elements, as matrix units take them, and how far
   * products with them may be off: of each block, beside the length of the other factor.
   * NULL: no estimates are coarse at first. */
  unsigned short *coarse;
  float *lost; /* [batches][KV_HEADS][width] */
  int *list, *length; /* [batches][HEADS][queries][room], without the last */
  char *own;          /* a thread block's rooms: own_bytes each */
  long long own_bytes;
  int choice;
  int queries, keys;  /* blocks */
  int width;          /* keys, rounded up */
  int sorted;         /* of `keep mass` by a thread block: the power of 2 that holds
                         them */
  int room;
  int strip;          /* blocks of queries that a thread block takes together */
  int joined;         /* the same of dil_choose_join */
  int coarse_bytes;   /* of rows that coarse means meet, in shared memory; 0: none do */
} dil_choose_params;

enum {
  DIL_CHOOSE_THREADS = 256,
  DIL_CHOOSE_WARPS = DIL_CHOOSE_THREADS / 32,
  DIL_CHOOSE_ROWS = 8, /* rows of queries that meet key blocks at once */
  DIL_CHOOSE_TALL = 64, /* the same by matrix products */
  DIL_CHOOSE_STRIP = 32, /* means of queries that do so at once, at most */
  DIL_CHOOSE_PARTS = 3, /* parts of such a mean, 16 bits each */
  DIL_CHOOSE_SHARED = 5 << 10, /* bytes beside those rows, at most */
  DIL_COARSE_ROWS = 256, /* rows that meet coarse means at once, at most */
  DIL_COARSE_BYTES = 72 << 10, /* of shared memory, for these rows */
  DIL_COARSE_MORE = 18 << 10, /* beside them, for DIL_COARSE_MORE_OF of each block */
  DIL_CHOOSE_BYTES = 1904 /* of dil_choose_params, as above */
};

/* Warps that add up a block of keys: a power of 2, 8 at most. */
#define DIL_MEAN_WARPS(block)                                                \
  ((block) < 64 ? 1 : (block) < 128 ? 2 : (block) < 256 ? 4 : 8)

/* Thread blocks that make the means of so many blocks. */
#define DIL_MEAN_BLOCKS(count, block)                                        \
  (((count) * DIL_MEAN_WARPS(block) + DIL_CHOOSE_WARPS - 1) / DIL_CHOOSE_WARPS)

/* Lanes that share a row of so many units, a power of 2. */
#define DIL_MEAN_LANES(units)                                                \
  ((units) <= 1 ? 1 : (units) <= 2 ? 2 : (units) <= 4 ? 4                    \
   : (units) <= 8 ? 8 : (units) <= 16 ? 16 : 32)

/* Whether each row of a block of queries meets the key blocks by matrix products:
 * 16-bit elements, which tf32 holds, and blocks that end where eight rows do. */
#define DIL_CHOOSE_IS_TALL(query_block, each, element_bytes)                 \
  ((each) && (element_bytes) == 2 &&                                         \
   ((query_block) == 1 || (query_block) % 8 == 0))

/* Rows of a strip that meet coarse means at once (choose_coarse.cuh), and whether blocks
 * of queries do so whose rows meet key blocks by products: where they choose alone among
 * so many key blocks. */
#define DIL_COARSE_ROWS_OF(head_dim)                                         \
  ((head_dim) <= 128 ? DIL_COARSE_ROWS : DIL_COARSE_ROWS / 2)
#define DIL_CHOOSE_IS_COARSE(query_block, head_dim, keys)                    \
  ((query_block) > 1 && (head_dim) <= 256 &&                                 \
   (query_block) <= DIL_COARSE_ROWS_OF(head_dim) && DIL_CHOOSE_BY_LANES(keys))

/* Whether blocks of queries have means of their own in memory, which meet the key
 * blocks by matrix products: those of many rows. */
#define DIL_CHOOSE_HAS_MEANS(query_block, mean) ((mean) && (query_block) >= 16)

/* Rows of a strip in whole products of warpgroups; and bytes of the estimates of a query block
 * and of its lanes' words. */
#define DIL_COARSE_WHOLE(rows) (((rows) + 127) / 128 * 128)
#define DIL_COARSE_MORE_OF(width) (((width) + 32) * 4)

/* Key blocks of a lane where some lanes choose for a block of queries
 * (choose_lanes.cuh). */
enum { DIL_CHOOSE_SOME = 16, DIL_CHOOSE_MOST = 32 };
/* Whether they choose among so many key blocks, and how many of them a lane has. */
#define DIL_CHOOSE_BY_LANES(keys) ((keys) <= 32 * DIL_CHOOSE_MOST)
#define DIL_CHOOSE_OF_LANE(keys)                                             \
  ((keys) <= 32 * DIL_CHOOSE_SOME ? DIL_CHOOSE_SOME : DIL_CHOOSE_MOST)

/* Numbers of a mean in memory, with zeros behind them; and of a row of queries in
 * shared memory, where lanes of several rows read at once without conflicts. */
#define DIL_CHOOSE_DEPTH(head_dim) (((head_dim) + 15) / 16 * 16)
#define DIL_CHOOSE_PITCH(head_dim) ((((head_dim) + 15) / 16 | 1) * 16)

/* A gradient, or its sum in f32 over several passes. */
typedef struct dil_gradient {
  void *data;
  long long stride[3]; /* b, n, h */
  int wide;            /* f32, whatever the kernel's elements are */
  int add;             /* to what an earlier pass has left */
  const unsigned char *marks; /* [batches, heads, rows]: only rows that are marked
                          * gain anything; NULL: all do */
} dil_gradient;

/* The gradient of one input and its sums. Tiles that may add to one element are
 * in the same lists, whose tiles come one after the other; each list has its
 * own copies of the sums, one, or one a warp. */
typedef struct dil_input_sums {
  void *data;             /* copies in f64; or f32, the gradient itself */
  long long dim[4], stride[4]; /* of a copy; strides count elements */
  long long count;        /* elements of a copy */
  int apart[3];           /* tiles of other rows, heads, batch rows never add to
                           * one element */
  int input;              /* its number */
  int lists;              /* for tiles that may; 0: there are no sums */
  int copies;             /* of each list */
  int turns;              /* warps of a block add in turn */
  int direct;             /* data is the gradient itself */
  int single;             /* no two pairs of a visit have one element */
  /* Of dil_sink_inputs: whether the pattern's sinks count, and those of which
   * branches. */
  int own;
  unsigned long long among;
  /* Of dil_input_end: the gradient, a DIL_INPUT_... */
  void *gradient;
  long long gradient_stride[4];
  int gradient_type;
} dil_input_sums;

enum { DIL_GRADIENT_BYTES = 2320 }; /* of dil_gradient_params, as above */

/* Facts of a query row, as the pairs of a row need them. */
enum { DIL_FACTS = 2 }; /* lse in units of log2, +inf for none; delta */

/* Lanes of a warp that share a row of so many elements, eight each. */
#define DIL_ROW_LANES(size)                                                    \
  ((size) <= 8    ? 1                                                          \
   : (size) <= 16 ? 2                                                          \
   : (size) <= 32 ? 4                                                          \
   : (size) <= 64 ? 8                                                          \
   : (size) <= 128 ? 16                                                        \
                   : 32)

/* Blocks of 256 threads that make facts, on a processor at once. */
enum { DIL_FACT_BLOCKS = 6 };

/* The parameters of general/gradient.cu. */
typedef struct dil_gradient_params {
  dil_params of;      /* the call; its o is the gradient of o (dO) */
  const void *o;      /* of the forward call, or f32 of one pass: o_wide. NULL:
                       * delta has no part of it */
  long long o_stride[3]; /* b, n, h, as all here */
  int o_wide;
  const float *lse;   /* of the softmax whose weights are meant */
  long long lse_stride[3];
  const float *lse_gradient; /* NULL: 0 */
  long long lse_gradient_stride[3];
  float *facts;       /* [batches, rows, heads][fact_states][DIL_FACTS] */
  int fact_states;    /* of a row, of which `facts` points to one */
  dil_gradient q, k, v; /* data NULL: not wanted */
  /* Of dil_round: f32 [batches, rows, heads, size] becomes `rounded`. */
  const float *sums;
  dil_gradient rounded;
  int sum_rows, sum_heads, sum_size;
  int sum_keys;       /* of dil_clear: these rows are keys */
  dil_input_sums input; /* of the kernels that make gradients of inputs */
  const unsigned *only_if;       /* NULL, or 0: there is nothing to do */
} dil_gradient_params;

#endif
