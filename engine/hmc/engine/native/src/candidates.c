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

/* What a thread does of a block of the vocabulary. */
typedef struct {
  hmc_batch *batch;
  int rows, stride, n, first, wanted, most;
} block_task;

/* The best tokens of a block, and its sum of exponentials: this part's rows. */
static void block_part(void *argument, int part, int parts) {
  const block_task *t = argument;
  hmc_batch *batch = t->batch;
  for (int r = hmc_share(t->rows, 1, part, parts); r < hmc_share(t->rows, 1, part + 1, parts); r++) {
    const float *logits = batch->logits + (size_t)r * t->stride;
    const size_t at = (size_t)r * t->wanted;
    best_list best = {batch->best + at, batch->ids + at, t->first < t->most ? t->first : t->most, t->most};
    find_best(&best, logits, t->n, t->first);
    add_block((exponentials *)(void *)batch->sums + r, logits, t->n);
  }
}

int hmc_best(hmc_batch *batch, int32_t wanted) {
  const hmc_level *level = batch->level;
  const operation *op = level->step + level->step_count - 1;
  const hmc_operation *o = &op->is;
  const int rows = batch->count * batch->rows, stride = level->strides[o->input];
  const int most = wanted < level->vocabulary ? wanted : level->vocabulary;
  const int logits_stride = o->block + COLUMNS;
  if (logits_memory(batch, (size_t)rows * logits_stride) || best_memory(batch, (size_t)rows * wanted)) return HMC_NO_MEMORY;
  exponentials *sums = (exponentials *)(void *)batch->sums;
  const float *x = batch->values[o->input];
  hmc_quantise_rows(batch, &op->product, x, stride, 0, rows);
  for (int r = 0; r < rows; r++) sums[r] = (exponentials){-INFINITY, 0};
  for (int first = 0; first < level->vocabulary; first += o->block) {
    const int last = first + o->block < op->product.padded_outputs ? first + o->block : op->product.padded_outputs;
    const int n = last < level->vocabulary ? last - first : level->vocabulary - first;
    hmc_multiply(batch, &op->product, x, stride, first, last, rows, batch->logits, logits_stride);
    block_task task = {batch, rows, logits_stride, n, first, wanted, most};
    hmc_divide(batch, block_part, &task, rows > 1 ? (int64_t)rows * n : 0);
  }
  for (int r = 0; r < rows; r++) {
    const float sum = batch->nans[r] && op->product.range.quantised ? NAN : log_of(sums[r]);
    for (int j = 0; j < wanted; j++) {
      float *best = batch->best + (size_t)r * wanted + j;
      *best = j < most ? *best - sum : -INFINITY;
      if (j >= most) batch->ids[(size_t)r * wanted + j] = level->pad;
    }
  }
  return 0;
}

static int all_logits(hmc_batch *batch, const int32_t *tokens, float *logits, float *attention, int32_t longest) {
  const hmc_level *level = batch->level;
  const operation *op = level->step + level->step_count - 1;
  const hmc_operation *o = &op->is;
  const int rows = batch->count * batch->rows;
  int error = hmc_begin_step(batch, tokens);
  if (!error) error = hmc_forward(batch, attention, longest);
  if (error) return error;
  const int stride = level->strides[o->input], width = op->product.padded_outputs;
  if (logits_memory(batch, (size_t)rows * width)) return HMC_NO_MEMORY;
  hmc_quantise_rows(batch, &op->product, batch->values[o->input], stride, 0, rows);
  hmc_multiply(batch, &op->product, batch->values[o->input], stride, 0, width, rows, batch->logits, width);
  for (int r = 0; r < rows; r++)
    memcpy(logits + (size_t)r * level->vocabulary, batch->logits + (size_t)r * width, (size_t)level->vocabulary * 4);
  hmc_end_step(batch);
  return 0;
}

int hmc_step(hmc_batch *batch, const int32_t *tokens, float *logits, float *attention, int32_t longest) {
  if (!batch || !batch->count) return HMC_BAD_ARGUMENT;
  for (int i = 0; attention && i < batch->count; i++)
    if (batch->sentences[i]->source > longest) return HMC_BAD_ARGUMENT;
  hmc_team_begin(batch->team);
  const int error = all_logits(batch, tokens, logits, attention, longest);
  hmc_team_end(batch->team);
  return error;
}
