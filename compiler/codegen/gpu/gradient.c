/* gradient.c - the strategy that makes gradients of every plan:
 * templates/general/gradient.cu with mma.sync. One variant makes dQ, one dK and
 * dV. Where heads are wide, the sums of a tile of both do not fit into the
 * registers of a thread, and dK and dV have a variant each. One variant makes
 * the gradients of inputs that scores read. Configurations differ in their
 * tiles. */
#include "gpu.h"

typedef struct tiles {
  int32_t warps;   /* of 16 rows each */
  int32_t columns; /* rows of the other side, of a visit */
  int32_t blocks;  /* least thread blocks of a processor */
  bool lenient;    /* registers may spill: no smaller tile exists */
} tiles;

/* Configurations in order of preference: f32, 16-bit types. The last of each
 * row fits every chip. */
enum { CHOICES = 5, NARROW = 80, WIDE = 128 };
/* Bytes that a kernel which holds keys needs in scratch memory, for a second
 * tile. */
enum { GRADIENT_SCRATCH = 128 };

static const tiles choices[2][CHOICES] = {
    {{4, 32, 2, false},
     {4, 32, 1, false},
     {4, 16, 1, false},
     {2, 16, 1, false},
     {1, 16, 1, true}},
    {{4, 64, 2, false},
     {4, 64, 1, false},
     {4, 32, 1, false},
     {4, 16, 1, false},
     {2, 16, 1, true}},
};

/* The gradients that each variant makes, and its name. */
typedef struct made {
  int32_t makes;
  const char *name;
} made;
static const made narrow[] = {{GRADIENT_Q, "dq"},
                              {GRADIENT_K | GRADIENT_V, "dkv"}};
static const made wide[] = {
    {GRADIENT_Q, "dq"}, {GRADIENT_K, "dk"}, {GRADIENT_V, "dv"}};
static const made inputs = {GRADIENT_INPUTS, "inputs"};

static const made *find_variant(const dil_table *t, int32_t variant) {
  bool is_wide = t->head_dim + t->value_dim > 2 * WIDE;
  int32_t count = is_wide ? 3 : 2;
  if (variant == count && has_score_reads(t)) return &inputs;
  if (variant >= count) return NULL;
  return is_wide ? &wide[variant] : &narrow[variant];
}

static int64_t scratch_bytes(const dil_table *t, const tiles *tl) {
  return general_scratch_bytes(t) + GRADIENT_SCRATCH +
         general_patch_bytes(t, 16 * tl->warps, tl->columns);
}

/* The shared memory of a thread block, as templates/general/general_sizes.cuh
 * and gradient.cu lay it out. */
static int64_t shared_bytes(const dil_table *t, const made *m,
                            const tiles *tl) {
  int64_t rows = 16 * tl->warps,
          facts = rows > tl->columns ? rows : tl->columns;
  int64_t width = t->head_dim > t->value_dim ? t->head_dim : t->value_dim;
  int64_t pitches =
      general_pitch(t, t->head_dim) + general_pitch(t, t->value_dim);
  int64_t loop = (rows + tl->columns) * pitches + 5 * tl->columns + 8 * facts +
                 (t->dropout > 0 ? 4 * tl->columns : 0) +
                 (m->makes & GRADIENT_INPUTS ? 8 * rows * tl->columns : 0);
  int64_t end = rows * (width | 1) * 4;
  return scratch_bytes(t, tl) + (loop > end ? loop : end);
}

static const tiles *gradient_choose(const gpu_request *r, const made *m,
                                    int32_t fallback) {
  const dil_table *t = &r->common.plan->table;
  bool is_narrow = t->head_dim <= NARROW && t->value_dim <= NARROW;
  for (int32_t i = 0; i < CHOICES; i++) {
    const tiles *tl = &choices[t->dtype != DIL_F32][i];
    if ((tl->blocks == 1 || is_narrow) &&
        shared_bytes(t, m, tl) <= gpu_shared_limit(r->arch) && fallback-- == 0)
      return tl;
  }
  return NULL;
}

static bool gradient_write(const gpu_request *r, int32_t variant,
                           int32_t fallback, dil_cuda_code *code,
                           source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const made *m = find_variant(t, variant);
  const tiles *tl = m ? gradient_choose(r, m, fallback) : NULL;
  if (!tl) return false;
  *code = (dil_cuda_code){.family = m->makes & GRADIENT_Q ? "gradient"
                                                          : "gradient keys",
                          .arch = r->arch,
                          .lenient = tl->lenient,
                          .threads = 32 * tl->warps,
                          .shared = (int32_t)shared_bytes(t, m, tl),
                          .tile_rows = 16 * tl->warps,
                          .tile_keys = tl->columns};
  code->knob[GRADIENT_KNOB_PARTS] = 1;
  code->knob[GRADIENT_KNOB_MAKES] = m->makes;
  snprintf(code->variant, sizeof code->variant, "gradient %s %s %dx%d d%d",
           m->name, dil_dtype_name(t->dtype), code->tile_rows, tl->columns,
           t->head_dim);
  bool holds_keys = m->makes & (GRADIENT_K | GRADIENT_V);
  put(text, "#define TURNED_BITS %d\n", holds_keys);
  general_put_tables(text, r->common.plan, holds_keys);
  put_expressions(text, r->common.plan);
  put_slopes(text, r->common.plan);
  put_reads(text, r->common.plan);
  put_cover(text, r->common.plan);
  put(text, "#define MAKES %d\n#define WARPS %d\n#define TILE_KEYS %d\n",
      m->makes, tl->warps, tl->columns);
  put(text, "#define SHARDS %d\n", r->gradients_of_shards);
  put(text, "#define BLOCKS %d\n#define SCRATCH_BYTES %lld\n", tl->blocks,
      (long long)scratch_bytes(t, tl));
  general_put_patches(text, t);
  put(text, "#define SHARED_BYTES %d\n", code->shared);
  put_template(text, "templates/general/gradient.cu");
  return true;
}

static bool gradient_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_gradient = {"gradient", 0, general_can,
                                        gradient_write, gradient_propose};
