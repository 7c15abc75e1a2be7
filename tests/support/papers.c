/* papers.c - see papers.h. Each function follows the words of its paper: sets
 * that are filled, windows that are slid, lists that are walked. */
#include "papers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t paper_number(const paper_mask *m, const char *name, int64_t otherwise) {
  size_t length = strlen(name);
  for (const char *at = m->defines; (at = strstr(at, name)) != NULL; at++)
    if (at[length] == '=' && (at == m->defines || at[-1] == ' '))
      return strtoll(at + length + 1, NULL, 10);
  return otherwise;
}

static int64_t paper_wanted(const paper_mask *m, const char *name) {
  int64_t value = paper_number(m, name, INT64_MIN);
  if (value == INT64_MIN) {
    fprintf(stderr, "'%s' does not say %s\n", m->defines, name);
    abort();
  }
  return value;
}

void paper_look_back(paper_mask *m) {
  int64_t ahead = paper_number(m, "ahead", INT64_MAX / 2);
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = 0; j < m->M; j++)
      if (j > i + ahead) m->sees[i][j] = false;
}

/* ---- sequences ----------------------------------------------------------- */

void paper_dense(paper_mask *m) {
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = 0; j < m->M; j++) m->sees[i][j] = true;
}

void paper_window(paper_mask *m) {
  int64_t w = paper_wanted(m, "w");
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = i - w; j <= i + w; j++)
      if (j >= 0 && j < m->M) m->sees[i][j] = true;
}

/* StreamingLLM: the latest keys and the first ones. */
void paper_streaming(paper_mask *m) {
  paper_window(m);
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = 0; j < paper_wanted(m, "sinks") && j < m->M; j++)
      m->sees[i][j] = true;
}

/* Longformer 3.1: a window with gaps of size dilation d. Each row walks back, w
 * keys in all with its own, in steps of r. */
void paper_dilated_window(paper_mask *m) {
  int64_t w = paper_wanted(m, "w"), r = paper_wanted(m, "r");
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t n = 0, j = i; n < w && j >= 0; n++, j -= r)
      m->sees[i][j] = true;
}

/* T5: "causal with prefix": full attention within the prefix, causal behind
 * it. */
void paper_prefix(paper_mask *m) {
  int64_t p = paper_wanted(m, "p");
  for (int64_t i = 0; i < m->M; i++) {
    for (int64_t j = 0; j <= i; j++) m->sees[i][j] = true;
    for (int64_t j = i + 1; j < p && j < m->M; j++) m->sees[i][j] = true;
  }
}

/* Sparse Transformer 4.3: A1 = {t, .., i} with t = max(0, i - l), and A2 = {j :
 * (i - j) mod l = 0}, j <= i. */
void paper_strided(paper_mask *m) {
  int64_t l = paper_wanted(m, "l");
  for (int64_t i = 0; i < m->M; i++) {
    for (int64_t j = i > l ? i - l : 0; j <= i; j++) m->sees[i][j] = true;
    for (int64_t j = i; j >= 0; j -= l) m->sees[i][j] = true;
  }
}

/* The same: A1 = {j : floor(j / l) = floor(i / l)}, and A2 = {j : j mod l in
 * {t,
 * .., l}} with t = l - c, j <= i. Head h of several places has its stretch of c
 * so many stretches before the end. */
void paper_fixed(paper_mask *m) {
  int64_t l = paper_wanted(m, "l"), c = paper_wanted(m, "c");
  int64_t end = l - c * (m->h % paper_number(m, "places", 1));
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t block = 0; block <= i; block += l)
      for (int64_t j = block; j < block + l && j <= i; j++)
        if (i < block + l || (j >= block + end - c && j < block + end))
          m->sees[i][j] = true;
}

static void paper_globals(paper_mask *m, const bool *global) {
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = 0; j < m->M && global[i]; j++)
      m->sees[i][j] = m->sees[j][i] = true;
}

void paper_longformer(paper_mask *m) {
  bool first[PAPER_MOST] = {false};
  for (int64_t i = 0; i < paper_wanted(m, "g") && i < m->M; i++)
    first[i] = true;
  paper_window(m);
  paper_globals(m, first);
}

void paper_longformer_global(paper_mask *m) {
  paper_window(m);
  paper_globals(m, m->chosen);
}

/* ---- BigBird ------------------------------------------------------------- */

/* `hash` of the language reference. */
static uint32_t paper_hash(const int64_t *arguments, int count) {
  uint32_t x = 0x9E3779B9;
  for (int k = 0; k < count; k++) {
    x ^= (uint32_t)arguments[k];
    x ^= x >> 16;
    x *= 0x7FEB352D;
    x ^= x >> 15;
    x *= 0x846CA68B;
    x ^= x >> 16;
  }
  return x >> 1;
}

static void paper_block(paper_mask *m, int64_t bi, int64_t bj, int64_t size) {
  for (int64_t i = bi * size; i < (bi + 1) * size && i < m->M; i++)
    for (int64_t j = bj * size; j < (bj + 1) * size && j < m->M; j++)
      m->sees[i][j] = true;
}

/* Of the blocks whose share of the sequence begins in stretch t of r, one. */
static void paper_random_block(paper_mask *m, int64_t bi, int64_t t, int64_t nb,
                               int64_t size) {
  int64_t blocks[PAPER_MOST], count = 0, r = paper_wanted(m, "r");
  for (int64_t bj = 0; bj < nb; bj++)
    if (bj * r >= t * nb && bj * r < (t + 1) * nb) blocks[count++] = bj;
  const int64_t about[] = {m->h, bi, t, paper_number(m, "draw", 1)};
  if (count) paper_block(m, bi, blocks[paper_hash(about, 4) % count], size);
}

/* In blocks: a window, global ones, and for each block of queries r random
 * ones. */
void paper_bigbird(paper_mask *m) {
  int64_t size = paper_wanted(m, "size"), nb = (m->M + size - 1) / size;
  int64_t near = paper_wanted(m, "near"), g = paper_wanted(m, "g");
  for (int64_t bi = 0; bi < nb; bi++) {
    for (int64_t bj = 0; bj < nb; bj++)
      if (llabs(bi - bj) <= near || bi < g || bj < g)
        paper_block(m, bi, bj, size);
    for (int64_t t = 0; t < paper_wanted(m, "r"); t++)
      paper_random_block(m, bi, t, nb, size);
  }
}

/* ---- LongNet ------------------------------------------------------------- */

/* Segments of w rows; of each the rows that head h's comb takes. The first
 * offset is h mod r (the paper), or h / ceil(H / r) (torchscale). */
static void paper_comb(paper_mask *m, int64_t w, int64_t r) {
  int64_t share = (m->H + r - 1) / r;
  int64_t offset = paper_number(m, "blocks", 0) ? m->h / share : m->h % r;
  for (int64_t start = 0; start < m->M; start += w)
    for (int64_t i = start + offset; i < start + w && i < m->M; i += r)
      for (int64_t j = start + offset; j < start + w && j < m->M; j += r)
        m->sees[i][j] = true;
}

void paper_longnet(paper_mask *m) {
  int64_t w = paper_wanted(m, "w"), last = paper_number(m, "last", 12);
  paper_comb(m, w, 1);
  paper_comb(m, 2 * w, 2);
  paper_comb(m, 4 * w, 4);
  paper_comb(m, 8 * w, last == 12 ? 6 : 8);
  paper_comb(m, 16 * w, last);
}

/* ---- grids --------------------------------------------------------------- */

/* The labels of Swin along one axis: the axis is padded to whole windows and
 * turned by the shift; slices 0, 1 and 2 of it do not see each other. */
static int64_t swin_label(int64_t at, int64_t extent, int64_t w,
                          int64_t shift) {
  int64_t padded = (extent + w - 1) / w * w;
  int64_t turned = (at - shift + padded) % padded;
  int64_t slice = shift == 0                ? 0
                  : turned < padded - w     ? 0
                  : turned < padded - shift ? 1
                                            : 2;
  return turned / w * 3 + slice;
}

void paper_swin(paper_mask *m) {
  int64_t wide = paper_wanted(m, "wide"), w = paper_wanted(m, "w");
  int64_t shift = paper_number(m, "shift", w / 2);
  int64_t tall = (m->M + wide - 1) / wide;
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = 0; j < m->M; j++)
      m->sees[i][j] = swin_label(i / wide, tall, w, shift) ==
                          swin_label(j / wide, tall, w, shift) &&
                      swin_label(i % wide, wide, w, shift) ==
                          swin_label(j % wide, wide, w, shift);
}

typedef struct grid_axis {
  int64_t extent, kernel, dilation;
  bool causal;
} grid_axis;

/* NATTEN along one axis: of the cells of the query's residue, `kernel`
 * neighbouring ones, slid inwards until they are all there; a causal window
 * ends at the query and is clipped. */
static bool axis_sees(const grid_axis *a, int64_t at, int64_t key) {
  int64_t cells[PAPER_MOST], count = 0, mine = 0, first, last;
  for (int64_t cell = at % a->dilation; cell < a->extent; cell += a->dilation) {
    if (cell == at) mine = count;
    cells[count++] = cell;
  }
  first = a->causal ? mine - a->kernel + 1 : mine - a->kernel / 2;
  last = first + a->kernel - 1;
  while (!a->causal && last >= count) first--, last--;
  while (!a->causal && first < 0) first++, last++;
  for (int64_t k = first; k <= last; k++)
    if (k >= 0 && k < count && cells[k] == key) return true;
  return false;
}

/* The axis called z, y or x. */
static grid_axis axis_of(const paper_mask *m, char letter, int64_t extent) {
  const char kernel[] = {'k', letter, 0}, dilation[] = {'r', letter, 0};
  const char past[] = {'p', 'a', 's', 't', '_', letter, 0};
  int64_t k = paper_number(m, "k", 7), r = paper_number(m, "r", 1);
  return (grid_axis){extent, paper_number(m, kernel, k),
                     paper_number(m, dilation, r),
                     paper_number(m, past, 0) != 0};
}

/* Of two axes, or of three where the defines say `tall`. */
void paper_neighborhood(paper_mask *m) {
  int64_t wide = paper_wanted(m, "wide"), rows = (m->M + wide - 1) / wide;
  int64_t tall = paper_number(m, "tall", rows), plane = tall * wide;
  grid_axis z = axis_of(m, 'z', (m->M + plane - 1) / plane);
  grid_axis y = axis_of(m, 'y', tall), x = axis_of(m, 'x', wide);
  for (int64_t i = 0; i < m->M; i++)
    for (int64_t j = 0; j < m->M; j++)
      m->sees[i][j] = (tall == rows || axis_sees(&z, i / plane, j / plane)) &&
                      axis_sees(&y, i % plane / wide, j % plane / wide) &&
                      axis_sees(&x, i % wide, j % wide);
}

/* ---- block diffusion ----------------------------------------------------- */

void paper_block_causal(paper_mask *m) {
  int64_t size = paper_wanted(m, "size");
  for (int64_t end = size; end < m->M + size; end += size)
    for (int64_t i = end - size; i < end && i < m->M; i++)
      for (int64_t j = 0; j < end && j < m->M; j++) m->sees[i][j] = true;
}

/* BD3-LM, over [x_t, x_0] of n tokens each: block diagonal in either half,
 * offset block causal from x_t to x_0, block causal in x_0. */
void paper_block_diffusion(paper_mask *m) {
  int64_t n = m->M / 2, size = paper_wanted(m, "size");
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) {
      bool diagonal = i / size == j / size, before = i / size > j / size;
      m->sees[i][j] = diagonal;
      m->sees[i][n + j] = before;
      m->sees[n + i][n + j] = diagonal || before;
    }
}

/* ---- what the call brings ------------------------------------------------ */

/* SpecInfer: a draft sees the accepted text and its ancestors. */
void paper_tree(paper_mask *m) {
  int64_t accepted = m->M - m->N;
  for (int64_t n = 0; n < m->N; n++) {
    for (int64_t j = 0; j < accepted; j++) m->sees[accepted + n][j] = true;
    for (int64_t c = n; c >= 0; c = m->parent[c])
      m->sees[accepted + n][accepted + c] = true;
  }
}

/* Each document by itself is a stream of StreamingLLM. */
void paper_documents(paper_mask *m) {
  int64_t w = paper_wanted(m, "w"), sinks = paper_wanted(m, "sinks");
  for (int64_t i = 0, start = 0; i < m->M; i++) {
    if (i > 0 && m->document[i] != m->document[i - 1]) start = i;
    for (int64_t j = start; j < m->M; j++)
      if (m->document[j] == m->document[i] &&
          ((j >= i - w && j <= i + w) || j < start + sinks))
        m->sees[i][j] = true;
  }
}
