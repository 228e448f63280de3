/* Weights in the layout of the kernels: a level's, and of its output projection those that a sentence needs. */
#include <stdlib.h>

#include "internal.h"

void *hmc_memory(size_t bytes) { return aligned_alloc(64, ROUND_UP(bytes + 64, 64)); }

size_t hmc_packed_bytes(const packed *p) {
  return (size_t)p->padded_outputs * (size_t)(p->range.quantised ? p->padded_inputs : p->inputs * 4);
}

void hmc_free_packed(packed *p) {
  free(p->integers);
  free(p->floats);
  free(p->scales);
  free(p->bias);
  free(p->offsets);
  *p = (packed){0};
}

/* Zeros, for the sizes that p has. */
static int take_memory(packed *p) {
  const size_t weights = hmc_packed_bytes(p), columns = (size_t)p->padded_outputs;
  uint8_t *memory = hmc_memory(weights);
  p->integers = p->range.quantised ? (int8_t *)memory : NULL;
  p->floats = p->range.quantised ? NULL : (float *)(void *)memory;
  p->scales = hmc_memory(columns * 4);
  p->bias = hmc_memory(columns * 4);
  p->offsets = hmc_memory(columns * 4);
  if (!memory || !p->scales || !p->bias || !p->offsets) return HMC_NO_MEMORY;
  memset(memory, 0, weights);
  memset(p->scales, 0, columns * 4);
  memset(p->bias, 0, columns * 4);
  memset(p->offsets, 0, columns * 4);
  return 0;
}

/* ---- one column; row: its weights, with zeros up to padded_inputs ---- */

static void put_integers(packed *p, int column, const int8_t *row) {
  if (p->in_rows) {
    memcpy(p->integers + (size_t)column * p->padded_inputs, row, (size_t)p->padded_inputs);
    return;
  }
  int8_t *block = p->integers + (size_t)(column / COLUMNS) * COLUMNS * p->padded_inputs + column % COLUMNS * 4;
  for (int k = 0; k < p->padded_inputs; k += 4) memcpy(block + (size_t)k * COLUMNS, row + k, 4);
}

static void put_floats(packed *p, int column, const float *row) {
  if (p->in_rows) {
    memcpy(p->floats + (size_t)column * p->inputs, row, (size_t)p->inputs * 4);
    return;
  }
  float *block = p->floats + (size_t)(column / 8) * 8 * p->inputs + column % 8;
  for (int k = 0; k < p->inputs; k++) block[(size_t)k * 8] = row[k];
}

/* ---- whole products ---- */

static void put_matrix(packed *p, const hmc_matrix *matrix, int first, int8_t *row) {
  for (int c = 0; c < matrix->outputs; c++) {
    if (p->range.quantised) {
      const int8_t *weight = matrix->weight;
      int64_t total = 0;
      for (int k = 0; k < p->inputs; k++) {
        row[k] = weight[(size_t)k * matrix->outputs + c];
        total += row[k];
      }
      put_integers(p, first + c, row);
      p->offsets[first + c] = (int32_t)(total * ((p->range.is_signed ? 0 : p->range.zero) - SHIFT));
      p->scales[first + c] = matrix->scales[c];
    } else {
      put_floats(p, first + c, (const float *)matrix->weight + (size_t)c * p->inputs);
    }
    p->bias[first + c] = matrix->bias ? matrix->bias[c] : 0.0f;
  }
}

int hmc_pack(packed *p, const hmc_operation *o, int in_rows) {
  p->inputs = o->inputs;
  p->outputs = o->outputs;
  p->padded_inputs = ROUND_UP(o->inputs, 8);
  p->padded_outputs = ROUND_UP(o->outputs, COLUMNS);
  p->activation = o->activation;
  p->range = o->range;
  p->in_rows = in_rows;
  int8_t *row = calloc((size_t)p->padded_inputs, 1);
  const int error = row ? take_memory(p) : HMC_NO_MEMORY;
  for (int m = 0, first = 0; !error && m < o->matrices; first += o->matrix[m++].outputs)
    put_matrix(p, o->matrix + m, first, row);
  free(row);
  return error;
}

int hmc_pack_listed(const packed *all, const int32_t *ids, int32_t count, packed *p) {
  *p = *all;
  p->outputs = count;
  p->padded_outputs = ROUND_UP(count, COLUMNS);
  p->in_rows = 0;
  const int error = take_memory(p);
  for (int c = 0; !error && c < count; c++) {
    const size_t id = (size_t)ids[c];
    if (p->range.quantised)
      put_integers(p, c, all->integers + id * (size_t)p->padded_inputs);
    else
      put_floats(p, c, all->floats + id * (size_t)p->inputs);
    p->scales[c] = all->scales[id];
    p->bias[c] = all->bias[id];
    p->offsets[c] = all->offsets[id];
  }
  return error;
}

/* ---- a check when the library is loaded ---- */

#define CHECK_INPUTS 72
#define CHECK_OUTPUTS 96

int hmc_check(void) {
  static int8_t weight[CHECK_INPUTS * CHECK_OUTPUTS];
  float scales[CHECK_OUTPUTS], y[7 * CHECK_OUTPUTS];
  uint8_t x[7 * CHECK_INPUTS];
  for (int i = 0; i < CHECK_OUTPUTS; i++) scales[i] = 1.0f;
  for (int k = 0; k < CHECK_INPUTS; k++) /* neighbours of one sign add up to at most 128 */
    for (int c = 0; c < CHECK_OUTPUTS; c++)
      weight[k * CHECK_OUTPUTS + c] = (int8_t)((c & 1 ? -1 : 1) * (k % 2 ? 1 + c % 3 : 127 - (c + k / 2) % 5 - c % 3));
  for (int i = 0; i < 7 * CHECK_INPUTS; i++) x[i] = (uint8_t)(255 - (i * 37) % 11);
  const hmc_matrix matrix = {.weight = weight, .scales = scales, .outputs = CHECK_OUTPUTS};
  const hmc_operation o = {
    .matrices = 1, .matrix = &matrix, .inputs = CHECK_INPUTS, .outputs = CHECK_OUTPUTS,
    .range = {.quantised = 1, .zero = 3, .scale = 1.0f},
  };
  packed p = {0};
  int same = !hmc_pack(&p, &o, 0);
  for (int rows = 1; same && rows <= 7; rows++) {
    multiply_integers(&p, 0, CHECK_OUTPUTS, x, rows, y, CHECK_OUTPUTS);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < CHECK_OUTPUTS; c++) {
        int32_t sum = 0;
        for (int k = 0; k < CHECK_INPUTS; k++) sum += (x[r * CHECK_INPUTS + k] - 3) * weight[k * CHECK_OUTPUTS + c];
        same &= y[r * CHECK_OUTPUTS + c] == (float)sum;
      }
  }
  hmc_free_packed(&p);
  return same;
}
