/* What a step ends with: the best tokens of each row, or all logits. */
#include <stdlib.h>

#include "internal.h"

typedef struct {
  float *logits; /* best first */
  int32_t *ids;
  int32_t count, most;
} best_list;

static void insert(best_list *best, float logit, int32_t id) {
  int at = best->count < best->most ? best->count++ : best->most - 1;
  while (at > 0 && best->logits[at - 1] < logit) {
    best->logits[at] = best->logits[at - 1];
    best->ids[at] = best->ids[at - 1];
    at--;
  }
  best->logits[at] = logit;
  best->ids[at] = id;
}

static void find_best(best_list *best, const float *logits, int n, int32_t first) {
  int i = 0;
  for (; i < n && best->count < best->most; i++) insert(best, logits[i], first + i);
  for (; i + 8 <= n; i += 8) {
    const i8 larger = load8(logits + i) > all8(best->logits[best->most - 1]);
#if defined(__AVX2__)
    if (_mm256_testz_si256((__m256i)larger, (__m256i)larger)) continue;
#else
    int any = 0;
    for (int j = 0; j < 8; j++) any |= larger[j];
    if (!any) continue;
#endif
    for (int j = 0; j < 8; j++)
      if (logits[i + j] > best->logits[best->most - 1]) insert(best, logits[i + j], first + i + j);
  }
  for (; i < n; i++)
    if (logits[i] > best->logits[best->most - 1]) insert(best, logits[i], first + i);
}

typedef struct {
  float highest, total;
} exponentials;

/* Adds a block of logits to a running sum of exponentials. */
static void add_block(exponentials *sum, const float *logits, int n) {
  f8 most = all8(-INFINITY);
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    f8 v = load8(logits + i);
    most = select8(v > most, v, most);
  }
  float larger = sum->highest;
  for (int j = 0; j < 8; j++) larger = most[j] > larger ? most[j] : larger;
  for (; i < n; i++) larger = logits[i] > larger ? logits[i] : larger;
  const float shift = larger == -INFINITY ? 0.0f : larger;
  f8 low = all8(0), high = all8(0);
  for (i = 0; i + LANES <= n; i += LANES) {
    low += exp8(load8(logits + i) - all8(shift));
    high += exp8(load8(logits + i + 8) - all8(shift));
  }
  if (i < n) {
    float part[LANES];
    for (int j = 0; j < LANES; j++) part[j] = i + j < n ? logits[i + j] - shift : -INFINITY;
    low += exp8(load8(part));
    high += exp8(load8(part + 8));
  }
  sum->total = sum->total * exp1(sum->highest - shift) + tree_sum(low, high);
  sum->highest = larger;
}

static float log_of(exponentials sum) {
  if (sum.total != sum.total) return NAN;
  return sum.highest == -INFINITY ? -INFINITY : sum.highest + log1(sum.total);
}

static int logits_memory(hmc_batch *batch, size_t floats) {
  if (floats <= batch->logits_room) return 0;
  batch->logits_room = 0;
  if (hmc_grow((void **)&batch->logits, floats * 4)) return HMC_NO_MEMORY;
  batch->logits_room = floats;
  return 0;
}

static int best_memory(hmc_batch *batch, size_t numbers) {
  if (numbers <= batch->best_room) return 0;
  batch->best_room = 0;
  if (hmc_grow((void **)&batch->best, numbers * 4) || hmc_grow((void **)&batch->ids, numbers * 4)) return HMC_NO_MEMORY;
  if (hmc_grow((void **)&batch->sums, numbers * sizeof(exponentials))) return HMC_NO_MEMORY;
  batch->best_room = numbers;
  return 0;
}

/* ---- the best tokens ---- */

/* What a thread does: of a block of the vocabulary, or of sentences with lists. */
typedef struct {
  hmc_batch *batch;
  const operation *op;
  int wanted, stride; /* numbers between rows of batch->logits */
  int rows, n, first; /* of the block */
} block_task;

/* A block of a row's tokens, n from `first` on of `all`: its best ones, and its sum of exponentials. */
static void look(const block_task *t, int row, int n, int first, int all) {
  const float *logits = t->batch->logits + (size_t)row * t->stride;
  const size_t at = (size_t)row * t->wanted;
  const int most = t->wanted < all ? t->wanted : all;
  best_list best = {t->batch->best + at, t->batch->ids + at, first < most ? first : most, most};
  find_best(&best, logits, n, first);
  add_block((exponentials *)(void *)t->batch->sums + row, logits, n);
}

/* A block of the vocabulary: this part's rows. */
static void block_part(void *argument, int part, int parts) {
  const block_task *t = argument;
  for (int r = hmc_share(t->rows, 1, part, parts); r < hmc_share(t->rows, 1, part + 1, parts); r++)
    look(t, r, t->n, t->first, t->batch->level->vocabulary);
}

/* The lists of this part's sentences, in blocks too. Ids are places in the list until the last block was seen. */
static void lists_part(void *argument, int part, int parts) {
  const block_task *t = argument;
  const hmc_batch *batch = t->batch;
  const int block = t->op->is.block, rows = batch->rows;
  for (int i = hmc_share(batch->count, 1, part, parts); i < hmc_share(batch->count, 1, part + 1, parts); i++) {
    const sentence *s = batch->sentences[i];
    const packed *p = &s->projection;
    float *logits = batch->logits + (size_t)i * rows * t->stride;
    for (int first = 0; first < p->outputs; first += block) {
      const int last = first + block < p->padded_outputs ? first + block : p->padded_outputs;
      const int n = last < p->outputs ? last - first : p->outputs - first;
      hmc_multiply_here(batch, p, batch->values[t->op->is.input], batch->level->strides[t->op->is.input], first, last,
                        i * rows, rows, logits, t->stride);
      for (int r = 0; r < rows; r++) look(t, i * rows + r, n, first, p->outputs);
    }
    const int most = t->wanted < p->outputs ? t->wanted : p->outputs;
    for (int r = 0; r < rows; r++) {
      int32_t *ids = batch->ids + (size_t)(i * rows + r) * t->wanted;
      for (int j = 0; j < most; j++) ids[j] = s->listed[ids[j]];
    }
  }
}

/* Work of products with all lists, as `hmc_divide` counts it. */
static int64_t work_of_lists(const hmc_batch *batch) {
  int64_t work = 0;
  for (int i = 0; i < batch->count; i++)
    work += (int64_t)batch->rows * batch->sentences[i]->projection.outputs * batch->sentences[i]->projection.inputs / 16;
  return batch->count > 1 ? work : 0;
}

/* Tokens of which a row has logits. */
static int tokens_of(const hmc_batch *batch, int row) {
  return batch->level->listed ? batch->sentences[row / batch->rows]->projection.outputs : batch->level->vocabulary;
}

int hmc_best(hmc_batch *batch, int32_t wanted) {
  const hmc_level *level = batch->level;
  const operation *op = level->step + level->step_count - 1;
  const packed *p = &op->product;
  const int rows = batch->count * batch->rows, stride = level->strides[op->is.input], block = op->is.block;
  block_task task = {.batch = batch, .op = op, .wanted = wanted, .stride = block + COLUMNS, .rows = rows};
  if (logits_memory(batch, (size_t)rows * task.stride) || best_memory(batch, (size_t)rows * wanted)) return HMC_NO_MEMORY;
  exponentials *sums = (exponentials *)(void *)batch->sums;
  const float *x = batch->values[op->is.input];
  hmc_quantise_rows(batch, p, x, stride, 0, rows);
  for (int r = 0; r < rows; r++) sums[r] = (exponentials){-INFINITY, 0};
  if (level->listed) hmc_divide(batch, lists_part, &task, work_of_lists(batch));
  for (int first = 0; !level->listed && first < level->vocabulary; first += block) {
    const int last = first + block < p->padded_outputs ? first + block : p->padded_outputs;
    task.first = first;
    task.n = last < level->vocabulary ? last - first : level->vocabulary - first;
    hmc_multiply(batch, p, x, stride, first, last, rows, batch->logits, task.stride);
    hmc_divide(batch, block_part, &task, rows > 1 ? (int64_t)rows * task.n : 0);
  }
  for (int r = 0; r < rows; r++) {
    const float sum = batch->nans[r] && p->range.quantised ? NAN : log_of(sums[r]);
    const int there = tokens_of(batch, r);
    for (int j = 0; j < wanted; j++) {
      float *best = batch->best + (size_t)r * wanted + j;
      *best = j < there ? *best - sum : -INFINITY;
      if (j >= there) batch->ids[(size_t)r * wanted + j] = level->pad;
    }
  }
  return 0;
}

int hmc_rank(const float *logits, int32_t rows, int32_t width, int32_t block, int32_t wanted, int32_t *ids,
             float *sums) {
  if (rows < 0 || width < 1 || block < 1 || wanted < 1 || wanted > width) return HMC_BAD_ARGUMENT;
  float *found = malloc((size_t)wanted * 4);
  if (!found) return HMC_NO_MEMORY;
  for (int r = 0; r < rows; r++, logits += width, ids += wanted) {
    best_list best = {found, ids, 0, wanted};
    exponentials sum = {-INFINITY, 0};
    for (int first = 0; first < width; first += block) {
      const int n = first + block < width ? block : width - first;
      find_best(&best, logits + first, n, first);
      add_block(&sum, logits + first, n);
    }
    sums[r] = log_of(sum);
  }
  free(found);
  return 0;
}

void hmc_exp(float *values, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const f8 found = exp8(load8(values + i));
    memcpy(values + i, &found, sizeof found);
  }
  for (; i < count; i++) values[i] = exp1(values[i]);
}

/* ---- all logits ---- */

/* Products with the lists of this part's sentences. */
static void list_logits_part(void *argument, int part, int parts) {
  const block_task *t = argument;
  const hmc_batch *batch = t->batch;
  const int rows = batch->rows;
  for (int i = hmc_share(batch->count, 1, part, parts); i < hmc_share(batch->count, 1, part + 1, parts); i++) {
    const packed *p = &batch->sentences[i]->projection;
    hmc_multiply_here(batch, p, batch->values[t->op->is.input], batch->level->strides[t->op->is.input], 0,
                      p->padded_outputs, i * rows, rows, batch->logits + (size_t)i * rows * t->stride, t->stride);
  }
}

static int all_logits(hmc_batch *batch, const int32_t *tokens, float *logits, int32_t width, float *attention,
                      int32_t longest) {
  const hmc_level *level = batch->level;
  const operation *op = level->step + level->step_count - 1;
  const int rows = batch->count * batch->rows;
  int error = hmc_begin_step(batch, tokens);
  if (!error) error = hmc_forward(batch, attention, longest);
  if (error) return error;
  const int stride = level->strides[op->is.input];
  const float *x = batch->values[op->is.input];
  block_task task = {.batch = batch, .op = op, .stride = ROUND_UP(width, COLUMNS)};
  if (logits_memory(batch, (size_t)rows * task.stride)) return HMC_NO_MEMORY;
  hmc_quantise_rows(batch, &op->product, x, stride, 0, rows);
  if (level->listed)
    hmc_divide(batch, list_logits_part, &task, work_of_lists(batch));
  else
    hmc_multiply(batch, &op->product, x, stride, 0, op->product.padded_outputs, rows, batch->logits, task.stride);
  for (int r = 0; r < rows; r++) {
    const int there = tokens_of(batch, r);
    float *row = logits + (size_t)r * width;
    memcpy(row, batch->logits + (size_t)r * task.stride, (size_t)there * 4);
    for (int j = there; j < width; j++) row[j] = -INFINITY;
  }
  hmc_end_step(batch);
  return 0;
}

int hmc_step(hmc_batch *batch, const int32_t *tokens, float *logits, int32_t width, float *attention, int32_t longest) {
  if (!batch || !batch->count || width > batch->level->vocabulary + 1) return HMC_BAD_ARGUMENT;
  if (!batch->level->listed && width != batch->level->vocabulary) return HMC_BAD_ARGUMENT;
  for (int i = 0; i < batch->count; i++) {
    if (batch->level->listed && batch->sentences[i]->projection.outputs > width) return HMC_BAD_ARGUMENT;
    if (attention && batch->sentences[i]->source > longest) return HMC_BAD_ARGUMENT;
  }
  hmc_team_begin(batch->team);
  const int error = all_logits(batch, tokens, logits, width, attention, longest);
  hmc_team_end(batch->team);
  return error;
}
