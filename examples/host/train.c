/* train.c - trains a small transformer on the letters of a text. Attention runs
 * both ways in a library that was made ahead of time; all the rest is plain C.
 *
 *   dil build train.dil --backward --standalone -o libattend --emit=a,h
 *   cc -O2 train.c train_one.c libattend.a -lm -lpthread -o train
 *   ./train ../data/tokens.txt 300
 *
 * It prints the loss, in nats a letter, and fails where a call does. With
 * train_ranks.c in place of train_one.c it trains on the processes of an MPI
 * job, each of which has some letters of every sequence. */
#include "train.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  HIDDEN = 4 * WIDTH,
  LAYERS = 2,
  SYMBOLS = 64, /* different letters at most */
  TEXT_MOST = 1 << 16
};

/* This process's letters of a sequence, their places there, and its rows. */
static int own_letters, place[LETTERS], own_rows;

void stop(const char *why) {
  fprintf(stderr, "train: %s\n", why);
  exit(1);
}

/* ---- numbers ------------------------------------------------------------- */

static uint32_t random_state = 1;

static float random_number(void) { /* between -1 and 1 */
  random_state = random_state * 1664525u + 1013904223u;
  return (float)(random_state >> 8) / (float)(1 << 23) - 1;
}

/* A parameter with its gradient, and Adam's two averages (arXiv 1412.6980). */
typedef struct parameter {
  int rows, columns;
  float *value, *gradient, *mean, *square;
} parameter;

enum { PARAMETERS_MOST = 2 + 5 * LAYERS };
static parameter *trained[PARAMETERS_MOST];
static int trained_count;

static void make_parameter(parameter *p, int rows, int columns, float size) {
  size_t count = (size_t)rows * (size_t)columns;
  *p = (parameter){rows, columns, calloc(4 * count, sizeof(float)), NULL, NULL,
                   NULL};
  if (!p->value) stop("no memory");
  p->gradient = p->value + count;
  p->mean = p->gradient + count;
  p->square = p->mean + count;
  for (size_t i = 0; i < count; i++) p->value[i] = size * random_number();
  trained[trained_count++] = p;
}

static void step_parameter(parameter *p, int step) {
  const float rate = 3e-3f, keep = 0.9f, keep_square = 0.99f;
  float mean_part = 1 - powf(keep, (float)step);
  float square_part = 1 - powf(keep_square, (float)step);
  for (int i = 0; i < p->rows * p->columns; i++) {
    float g = p->gradient[i];
    p->mean[i] = keep * p->mean[i] + (1 - keep) * g;
    p->square[i] = keep_square * p->square[i] + (1 - keep_square) * g * g;
    p->value[i] -= rate * (p->mean[i] / mean_part) /
                   (sqrtf(p->square[i] / square_part) + 1e-8f);
    p->gradient[i] = 0;
  }
}

/* y += x w, for all rows. */
static void multiply(const float *x, const parameter *w, float *y) {
  for (int r = 0; r < own_rows; r++)
    for (int i = 0; i < w->rows; i++) {
      const float *row = w->value + i * w->columns;
      float factor = x[r * w->rows + i];
      for (int j = 0; j < w->columns; j++)
        y[r * w->columns + j] += factor * row[j];
    }
}

/* dx += dy w^T, and the gradient of w += x^T dy. */
static void multiply_back(const float *x, const float *dy, parameter *w,
                          float *dx) {
  for (int r = 0; r < own_rows; r++)
    for (int i = 0; i < w->rows; i++) {
      const float *row = w->value + i * w->columns, *d = dy + r * w->columns;
      float *gradient = w->gradient + i * w->columns;
      float factor = x[r * w->rows + i], sum = 0;
      for (int j = 0; j < w->columns; j++) {
        gradient[j] += factor * d[j];
        sum += d[j] * row[j];
      }
      dx[r * w->rows + i] += sum;
    }
}

static float scale_of(const float *row) {
  float sum = 1e-5f;
  for (int i = 0; i < WIDTH; i++) sum += row[i] * row[i] / WIDTH;
  return 1 / sqrtf(sum);
}

/* Each row divided by its root mean square (arXiv 1910.07467). */
static void normalise(const float *x, float *y) {
  for (int r = 0; r < own_rows; r++) {
    float scale = scale_of(x + r * WIDTH);
    for (int i = 0; i < WIDTH; i++)
      y[r * WIDTH + i] = scale * x[r * WIDTH + i];
  }
}

static void normalise_back(const float *x, const float *dy, float *dx) {
  for (int r = 0; r < own_rows; r++) {
    const float *row = x + r * WIDTH, *d = dy + r * WIDTH;
    float scale = scale_of(row), dot = 0;
    for (int i = 0; i < WIDTH; i++) dot += d[i] * row[i];
    dot *= scale * scale * scale / WIDTH;
    for (int i = 0; i < WIDTH; i++)
      dx[r * WIDTH + i] += scale * d[i] - dot * row[i];
  }
}

/* ---- attention ----------------------------------------------------------- */

/* A layer, with all that it keeps from its forward run. q, k and v stand beside each other in
 * one row: [BATCH, own_letters, 3, WIDTH]. */
typedef struct layer {
  parameter mix, out, up, down, slope;
  float x[ROWS * WIDTH], normal[ROWS * WIDTH];
  float qkv[ROWS * 3 * WIDTH], o[ROWS * WIDTH];
  float lse[BATCH * HEADS * LETTERS];
  float y[ROWS * WIDTH], normal_y[ROWS * WIDTH], hidden[ROWS * HIDDEN];
  attended attended; /* the gradients read it again */
} layer;

static DLTensor tensor(float *data, int dimensions, int64_t *shape,
                       int64_t *strides) {
  return (DLTensor){data, {kDLCPU, 0}, dimensions, {kDLFloat, 32, 1},
                    shape, strides, 0};
}

static void set_strides(int64_t strides[4], int64_t pitch) {
  strides[0] = own_letters * pitch;
  strides[1] = pitch;
  strides[2] = HEAD_DIM;
  strides[3] = 1;
}

static void attention(layer *l) {
  attended *a = &l->attended;
  *a = (attended){.row_shape = {BATCH, own_letters, HEADS, HEAD_DIM},
                  .slope_shape = {HEADS},
                  .lse_shape = {BATCH, HEADS, own_letters}};
  set_strides(a->qkv_strides, 3 * WIDTH);
  set_strides(a->o_strides, WIDTH);
  a->q = tensor(l->qkv, 4, a->row_shape, a->qkv_strides);
  a->k = tensor(l->qkv + WIDTH, 4, a->row_shape, a->qkv_strides);
  a->v = tensor(l->qkv + 2 * WIDTH, 4, a->row_shape, a->qkv_strides);
  a->o = tensor(l->o, 4, a->row_shape, a->o_strides);
  a->lse = tensor(l->lse, 3, a->lse_shape, NULL);
  a->slope = tensor(l->slope.value, 1, a->slope_shape, NULL);
  attention_forward(a);
}

static void attention_gradients(layer *l, float *d_o, float *dqkv) {
  attended *a = &l->attended;
  DLTensor gradient = a->o, dq = a->q, dk = a->k, dv = a->v;
  DLTensor dslope = a->slope;
  gradient.data = d_o;
  dq.data = dqkv;
  dk.data = dqkv + WIDTH;
  dv.data = dqkv + 2 * WIDTH;
  dslope.data = l->slope.gradient; /* written: each layer has its own */
  attention_back(a, &gradient, &dq, &dk, &dv, &dslope);
}

/* ---- layers -------------------------------------------------------------- */

static void make_layer(layer *l) {
  float size = 1 / sqrtf(WIDTH);
  make_parameter(&l->mix, WIDTH, 3 * WIDTH, size);
  make_parameter(&l->out, WIDTH, WIDTH, size);
  make_parameter(&l->up, WIDTH, HIDDEN, size);
  make_parameter(&l->down, HIDDEN, WIDTH, size / 2);
  make_parameter(&l->slope, 1, HEADS, 0.1f);
}

/* y = x + attention(normal(x)) out;  x = y + relu(normal(y) up) down */
static void layer_forward(layer *l, float *x) {
  memcpy(l->x, x, sizeof l->x);
  normalise(l->x, l->normal);
  memset(l->qkv, 0, sizeof l->qkv);
  multiply(l->normal, &l->mix, l->qkv);
  attention(l);
  memcpy(l->y, l->x, sizeof l->y);
  multiply(l->o, &l->out, l->y);
  normalise(l->y, l->normal_y);
  memset(l->hidden, 0, sizeof l->hidden);
  multiply(l->normal_y, &l->up, l->hidden);
  for (int i = 0; i < ROWS * HIDDEN; i++)
    if (l->hidden[i] < 0) l->hidden[i] = 0;
  memcpy(x, l->y, sizeof l->y);
  multiply(l->hidden, &l->down, x);
}

static float d_hidden[ROWS * HIDDEN], d_qkv[ROWS * 3 * WIDTH];
static float d_normal[ROWS * WIDTH], d_o[ROWS * WIDTH];

/* dx is the gradient of the layer's output, then of its input. */
static void layer_back(layer *l, float *dx) {
  memset(d_hidden, 0, sizeof d_hidden);
  multiply_back(l->hidden, dx, &l->down, d_hidden);
  for (int i = 0; i < ROWS * HIDDEN; i++)
    if (l->hidden[i] == 0) d_hidden[i] = 0;
  memset(d_normal, 0, sizeof d_normal);
  multiply_back(l->normal_y, d_hidden, &l->up, d_normal);
  normalise_back(l->y, d_normal, dx);
  memset(d_o, 0, sizeof d_o);
  multiply_back(l->o, dx, &l->out, d_o);
  attention_gradients(l, d_o, d_qkv);
  memset(d_normal, 0, sizeof d_normal);
  multiply_back(l->normal, d_qkv, &l->mix, d_normal);
  normalise_back(l->x, d_normal, dx);
}

/* ---- the model ----------------------------------------------------------- */

static parameter embedding, unembedding;
static layer layers[LAYERS];
static float x[ROWS * WIDTH], top[ROWS * WIDTH], logits[ROWS * SYMBOLS];
static float d_top[ROWS * WIDTH], dx[ROWS * WIDTH];

static void make_model(void) {
  make_parameter(&embedding, SYMBOLS, WIDTH, 1);
  make_parameter(&unembedding, WIDTH, SYMBOLS, 1 / sqrtf(WIDTH));
  for (int i = 0; i < LAYERS; i++) make_layer(&layers[i]);
}

/* Turns the logits of a row into the gradient of its loss, which it returns. */
static float row_loss(float *row, int next) {
  float most = row[0], sum = 0;
  for (int i = 1; i < SYMBOLS; i++) most = row[i] > most ? row[i] : most;
  float own = row[next] - most;
  for (int i = 0; i < SYMBOLS; i++) sum += row[i] = expf(row[i] - most);
  for (int i = 0; i < SYMBOLS; i++) row[i] /= sum * ROWS;
  row[next] -= 1.0f / ROWS;
  return logf(sum) - own;
}

/* The loss of all rows, those of other processes too. */
static float forward(const int *letter, const int *next) {
  float loss = 0;
  for (int r = 0; r < own_rows; r++)
    memcpy(x + r * WIDTH, embedding.value + letter[r] * WIDTH,
           WIDTH * sizeof(float));
  for (int i = 0; i < LAYERS; i++) layer_forward(&layers[i], x);
  normalise(x, top);
  memset(logits, 0, sizeof logits);
  multiply(top, &unembedding, logits);
  for (int r = 0; r < own_rows; r++)
    loss += row_loss(logits + r * SYMBOLS, next[r]) / ROWS;
  attention_sum(&loss, 1);
  return loss;
}

static void backward(const int *letter) {
  memset(d_top, 0, sizeof d_top);
  memset(dx, 0, sizeof dx);
  multiply_back(top, logits, &unembedding, d_top);
  normalise_back(x, d_top, dx);
  for (int i = LAYERS; i-- > 0;) layer_back(&layers[i], dx);
  for (int r = 0; r < own_rows; r++)
    for (int i = 0; i < WIDTH; i++)
      embedding.gradient[letter[r] * WIDTH + i] += dx[r * WIDTH + i];
  for (int i = 0; i < trained_count; i++)
    attention_sum(trained[i]->gradient, trained[i]->rows * trained[i]->columns);
}

/* ---- the text ------------------------------------------------------------ */

static int text[TEXT_MOST], text_count;

/* Letters get numbers as they are met; those beyond SYMBOLS share the last. */
static void read_text(const char *path) {
  int number[256] = {0}, known = 0;
  FILE *in = fopen(path, "rb");
  if (!in) stop("cannot open the text");
  for (int c; text_count < TEXT_MOST && (c = getc(in)) != EOF;) {
    if (!number[c]) number[c] = known < SYMBOLS ? ++known : SYMBOLS;
    text[text_count++] = number[c] - 1;
  }
  fclose(in);
  if (text_count < 2 * LETTERS) stop("the text is too short");
}

static void take_batch(int *letter, int *next) {
  for (int b = 0; b < BATCH; b++) {
    random_number();
    int start = (int)(random_state >> 8) % (text_count - LETTERS - 1);
    for (int i = 0; i < own_letters; i++) {
      letter[b * own_letters + i] = text[start + place[i]];
      next[b * own_letters + i] = text[start + place[i] + 1];
    }
  }
}

int main(int argc, char **argv) {
  static int letter[ROWS], next[ROWS];
  const char *path = argc > 1 ? argv[1] : "examples/data/tokens.txt";
  int steps = argc > 2 ? atoi(argv[2]) : 300;
  float recent = 0;
  read_text(path);
  own_letters = attention_begin(place);
  own_rows = BATCH * own_letters;
  make_model();
  for (int step = 1; step <= steps; step++) {
    take_batch(letter, next);
    float loss = forward(letter, next);
    recent = step == 1 ? loss : 0.95f * recent + 0.05f * loss;
    int due = step == 1 || step % 50 == 0 || step == steps;
    if (due && attention_speaks())
      printf("step %4d  loss %.3f\n", step, (double)recent);
    backward(letter);
    for (int i = 0; i < trained_count; i++) step_parameter(trained[i], step);
  }
  attention_end();
  return 0;
}
