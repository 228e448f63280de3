/* Memory of a batch, and operations on rows: embeddings, sums, norms and products. */
#include <stdlib.h>

#include "internal.h"

/* ---- memory ---- */

int hmc_grow(void **memory, size_t bytes) {
  free(*memory);
  *memory = hmc_memory(bytes);
  return *memory ? 0 : HMC_NO_MEMORY;
}

int hmc_make_room(hmc_batch *batch, int32_t rows) {
  if (rows <= batch->capacity) return 0;
  const hmc_level *level = batch->level;
  const int32_t more = ROUND_UP(rows, 8);
  batch->capacity = 0;
  int failed = 0;
  for (int i = 0; i < level->values; i++)
    failed |= hmc_grow((void **)&batch->values[i], (size_t)more * level->strides[i] * 4 + 64);
  failed |= hmc_grow((void **)&batch->scratch, (size_t)more * level->widest * 4 + 64);
  failed |= hmc_grow((void **)&batch->quantised, (size_t)more * (level->most_inputs + 8) + 64);
  failed |= hmc_grow((void **)&batch->tokens, (size_t)more * 4);
  failed |= hmc_grow((void **)&batch->positions, (size_t)more * 4);
  failed |= hmc_grow((void **)&batch->nans, (size_t)more * 4);
  if (failed) return HMC_NO_MEMORY;
  batch->capacity = more;
  return 0;
}

void hmc_divide(const hmc_batch *batch, hmc_task run, void *task, int64_t work) {
  hmc_team_run(work < 16384 ? NULL : batch->team, run, task);
}

/* ---- rows ---- */

void hmc_embed(const hmc_batch *batch, const operation *op, int rows) {
  const hmc_operation *o = &op->is;
  const int stride = batch->level->strides[o->output], width = o->outputs;
  float *out = batch->values[o->output];
  for (int r = 0; r < rows; r++, out += stride) {
    const size_t at = (size_t)batch->tokens[r] * width;
    const float factor = o->table_scales ? o->table_scales[batch->tokens[r]] : o->factor;
    const float *position = o->positions + (size_t)batch->positions[r] * width;
    if (o->table_is_int8) {
      const int8_t *row = (const int8_t *)o->table + at;
      for (int i = 0; i < width; i++) out[i] = (float)row[i] * factor + position[i];
    } else {
      const float *row = (const float *)o->table + at;
      for (int i = 0; i < width; i++) out[i] = row[i] * factor + position[i];
    }
  }
}

/* parts + bias + residual of one row. */
static void add_row(const float *parts, const float *bias, const float *residual, int n, float *out) {
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    f8 v = load8(residual + i);
    if (parts) {
      f8 added = load8(parts + i);
      if (bias) added = added + load8(bias + i);
      v = added + v;
    } else if (bias) {
      v = v + load8(bias + i);
    }
    store8(out + i, v);
  }
  for (; i < n; i++) {
    float v = residual[i];
    if (parts)
      v = (bias ? parts[i] + bias[i] : parts[i]) + v;
    else if (bias)
      v = v + bias[i];
    out[i] = v;
  }
}

/* What a thread does of an operation on rows: `linear` has two parts, with a wait between them. */
typedef struct {
  const hmc_batch *batch;
  const operation *op;
  const packed *product;
  const float *value; /* what the product reads, of stride `stride` */
  int stride, rows, first, last; /* columns first … last − 1 */
  float *y;
  int y_stride;
} linear_task;

void hmc_multiply_here(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last, int row,
                       int rows, float *y, int y_stride) {
  if (!p->range.quantised) {
    multiply_floats(p, first, last, x + (size_t)row * stride, stride, rows, y, y_stride);
    return;
  }
  multiply_integers(p, first, last, batch->quantised + (size_t)row * p->padded_inputs, rows, y, y_stride);
  for (int r = 0; r < rows; r++)
    if (batch->nans[row + r])
      for (int i = 0; i < last - first; i++) y[(size_t)r * y_stride + i] = NAN;
}

/* A product of all rows: this part's columns. */
static void multiply_part(void *argument, int part, int parts) {
  const linear_task *t = argument;
  const int all = t->last - t->first;
  const int begin = hmc_share(all, COLUMNS, part, parts), end = hmc_share(all, COLUMNS, part + 1, parts);
  if (begin < end)
    hmc_multiply_here(t->batch, t->product, t->value, t->stride, t->first + begin, t->first + end, 0, t->rows,
                      t->y + begin, t->y_stride);
}

void hmc_multiply(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last, int rows,
                  float *y, int y_stride) {
  linear_task task = {batch, NULL, p, x, stride, rows, first, last, y, y_stride};
  hmc_divide(batch, multiply_part, &task, (int64_t)rows * p->inputs * (last - first) / 16);
}

void hmc_quantise_rows(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last) {
  if (!p->range.quantised) return;
  for (int r = first; r < last; r++)
    batch->nans[r] = quantise_row(x + (size_t)r * stride, p->inputs, p->range,
                                  batch->quantised + (size_t)r * p->padded_inputs);
}

/* Sums, norms and steps of 8 bits: this part's rows. */
static void enter_part(void *argument, int part, int parts) {
  linear_task *t = argument;
  const hmc_batch *batch = t->batch;
  const hmc_operation *o = &t->op->is;
  const int begin = hmc_share(t->rows, 1, part, parts), end = hmc_share(t->rows, 1, part + 1, parts);
  const float *value = batch->values[o->residual >= 0 ? o->residual : o->input];
  if (o->residual >= 0) {
    float *sum = o->sum_output >= 0 ? batch->values[o->sum_output] : batch->scratch;
    for (int r = begin; r < end; r++) {
      const size_t at = (size_t)r * t->stride;
      add_row(o->parts >= 0 ? batch->values[o->parts] + at : NULL, o->sum_bias, value + at, o->inputs, sum + at);
    }
    value = sum;
  }
  if (o->norm_weight) {
    float *normed = o->norm_output >= 0 ? batch->values[o->norm_output] : batch->scratch;
    for (int r = begin; r < end; r++)
      norm_row(value + (size_t)r * t->stride, o->inputs, o->norm_weight, o->norm_bias, o->epsilon,
               normed + (size_t)r * t->stride);
    value = normed;
  }
  if (o->matrices) hmc_quantise_rows(batch, &t->op->product, value, t->stride, begin, end);
}

/* What `enter_part` leaves for the product. */
static const float *entered(const hmc_batch *batch, const hmc_operation *o) {
  if (o->norm_weight) return o->norm_output >= 0 ? batch->values[o->norm_output] : batch->scratch;
  if (o->residual >= 0) return o->sum_output >= 0 ? batch->values[o->sum_output] : batch->scratch;
  return batch->values[o->input];
}

void hmc_linear(const hmc_batch *batch, const operation *op, int rows) {
  const hmc_operation *o = &op->is;
  const int stride = batch->level->strides[o->residual >= 0 ? o->residual : o->input];
  linear_task task = {.batch = batch, .op = op, .stride = stride, .rows = rows};
  hmc_divide(batch, enter_part, &task, rows > 1 ? (int64_t)rows * o->inputs * 4 : 0);
  if (o->matrices)
    hmc_multiply(batch, &op->product, entered(batch, o), stride, 0, op->product.padded_outputs, rows, batch->values[o->output],
             batch->level->strides[o->output]);
}
