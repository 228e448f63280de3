/* What a level and a batch are made of. */
#ifndef HMC_INTERNAL_H
#define HMC_INTERNAL_H

#include <stddef.h>

#include "kernels.h"
#include "team.h"

#define PAGE 16 /* places of a page of keys and values */

typedef struct {
  hmc_operation is;
  packed product; /* where it has matrices */
} operation;

/* A cache: keys and values of one attention. */
typedef struct {
  int32_t heads, width, key_bytes, value_bytes; /* of one number */
  size_t keys, values; /* own caches: where they begin within a page */
} plane;

struct hmc_level {
  int32_t vocabulary, positions, source_vocabulary, pad, eos, start, listed;
  int32_t values, *strides; /* floats between rows of each value */
  int32_t widest, most_inputs; /* stride of the widest value; bytes of the widest quantised row */
  int32_t encode_count, step_count, own_count, source_count, attend_count;
  operation *encode, *step;
  plane *own, *source;
  size_t page_bytes;
  int64_t bytes;
};

typedef struct {
  double rank, total;
  int32_t length, row, complete;
  float final;
} hypothesis;

typedef struct {
  int32_t source, position; /* source tokens; target tokens read */
  uint8_t *memory; /* keys and values of the source */
  size_t *at; /* [2 · source planes] where keys and values of each begin */
  uint8_t **pages;
  int32_t page_count;
  packed projection; /* of the tokens in `listed`, [projection.outputs] ids; in levels whose sentences have lists */
  int32_t *listed;
  int32_t room; /* target positions for which the arrays below have room */
  int32_t *ancestors, *moved; /* [rows, room] place of each token of each row; the second is for reordering */
  /* search */
  hmc_rules rules;
  double *penalties; /* [limit + 1] */
  int32_t *tokens, *parents; /* [room, rows] history */
  float *scores; /* [room, rows] */
  double totals[HMC_MOST_ROWS];
  int32_t last[HMC_MOST_ROWS];
  hypothesis *ended;
  int32_t ended_count, ended_most, state;
  int32_t place; /* in the batch, when the last run began */
} sentence;

struct hmc_batch {
  const hmc_level *level;
  int32_t rows; /* of each sentence */
  hmc_team *team; /* NULL: one thread */
  sentence **sentences, **ended; /* [most] those that run; those that have ended and were not collected */
  int32_t count, ended_count, most;
  float **values; /* [values][capacity, stride] */
  float *scratch; /* [capacity, widest] */
  uint8_t *quantised; /* [capacity, most_inputs] */
  int32_t *tokens, *positions, *nans; /* [capacity] */
  int32_t capacity;
  uint8_t **free_pages;
  int32_t free_count, free_most;
  float *attend; /* room for one attention of each thread */
  size_t attend_room; /* floats of each */
  float *logits; /* [capacity, block] */
  size_t logits_room;
  float *best, *sums; /* [rows of all, K] log-probabilities; [rows of all] */
  int32_t *ids; /* [rows of all, K] */
  size_t best_room;
};

/* Aligned memory, or NULL. */
void *hmc_memory(size_t bytes);

/* ---- weights ---- */

/* A product's weights for the kernels, or in rows. After an error too, the memory goes with `hmc_free_packed`. */
int hmc_pack(packed *p, const hmc_operation *o, int in_rows);

/* The columns `ids` of a product that lies in rows, for the kernels. */
int hmc_pack_listed(const packed *all, const int32_t *ids, int32_t count, packed *p);
size_t hmc_packed_bytes(const packed *p);
void hmc_free_packed(packed *p);

/* ---- memory of a batch ---- */

void hmc_free_sentence(hmc_batch *batch, sentence *s);

/* Frees `*memory` and takes other memory. */
int hmc_grow(void **memory, size_t bytes);

/* Room for so many rows. What was there is lost. */
int hmc_make_room(hmc_batch *batch, int32_t rows);

/* Runs a task in all threads of the batch, or in this one alone where it is small: products, or numbers that are looked
   at, below which threads would wait longer than they compute. */
void hmc_divide(const hmc_batch *batch, hmc_task run, void *task, int64_t work);

/* ---- operations, of all rows of `batch->tokens` ---- */

void hmc_embed(const hmc_batch *batch, const operation *op, int rows);
void hmc_linear(const hmc_batch *batch, const operation *op, int rows);

/* Rows `first` … `last` − 1 in steps of 8 bits, for `hmc_multiply`; nothing for a product of floats. */
void hmc_quantise_rows(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last);

/* Columns first … last − 1 of a product → y [rows], `y_stride` floats apart. x: rows `stride` floats apart. */
void hmc_multiply(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last, int rows,
                  float *y, int y_stride);

/* The same of rows `row` … `row` + rows − 1, in this thread; y: of the first of them. */
void hmc_multiply_here(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last, int row,
                       int rows, float *y, int y_stride);

/* Rows first … first + n − 1, those of one sentence. */
int hmc_attend_encoder(hmc_batch *batch, const hmc_operation *o, int first, int n);
void hmc_store_source(const hmc_batch *batch, const hmc_operation *o, sentence *s, int first);
int hmc_attend_self(hmc_batch *batch, const hmc_operation *o);
int hmc_attend_source(hmc_batch *batch, const hmc_operation *o, float *attention, int32_t longest);

/* ---- steps ---- */

/* Row r of a sentence continues its row parents[r]. */
void hmc_move(const hmc_batch *batch, sentence *s, const int32_t *parents);

/* Sets what the rows of a step read: the last token of each, and its place. */
int hmc_begin_step(hmc_batch *batch, const int32_t *tokens);
void hmc_end_step(hmc_batch *batch);

int hmc_encode_sentences(hmc_batch *batch, sentence **sentences, int32_t count, const int32_t *const *tokens);

/* One step of all rows, up to the input of the candidates. `batch->tokens` holds the last token of each row. attention:
   see `hmc_step`. */
int hmc_forward(hmc_batch *batch, float *attention, int32_t longest);

/* After `hmc_forward`: the `wanted` best tokens of every row with their log-probabilities → batch->ids, batch->best. */
int hmc_best(hmc_batch *batch, int32_t wanted);

#endif
