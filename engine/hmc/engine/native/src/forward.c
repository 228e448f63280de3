/* The operations of a program, for all rows of a batch. */
#include <stdlib.h>

#include "internal.h"

/* ---- memory ---- */

static int grow(void **memory, size_t bytes) {
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
    failed |= grow((void **)&batch->values[i], (size_t)more * level->strides[i] * 4 + 64);
  failed |= grow((void **)&batch->scratch, (size_t)more * level->widest * 4 + 64);
  failed |= grow((void **)&batch->quantised, (size_t)more * (level->most_inputs + 8) + 64);
  failed |= grow((void **)&batch->tokens, (size_t)more * 4);
  failed |= grow((void **)&batch->positions, (size_t)more * 4);
  failed |= grow((void **)&batch->nans, (size_t)more * 4);
  if (failed) return HMC_NO_MEMORY;
  batch->capacity = more;
  return 0;
}

static int attend_memory(hmc_batch *batch, size_t floats) {
  if (floats <= batch->attend_room) return 0;
  batch->attend_room = 0;
  if (grow((void **)&batch->attend, floats * 8)) return HMC_NO_MEMORY;
  batch->attend_room = floats * 2;
  return 0;
}

/* ---- rows ---- */

static void embed(const hmc_batch *batch, const operation *op, int rows) {
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

/* A product of all rows, each `stride` floats after the one before. */
static void multiply(const hmc_batch *batch, const packed *p, const float *x, int stride, int first, int last, int rows,
                     float *y, int y_stride) {
  if (!p->range.quantised) {
    multiply_floats(p, first, last, x, stride, rows, y, y_stride);
    return;
  }
  multiply_integers(p, first, last, batch->quantised, rows, y, y_stride);
  for (int r = 0; r < rows; r++)
    if (batch->nans[r])
      for (int i = 0; i < last - first; i++) y[(size_t)r * y_stride + i] = NAN;
}

static void quantise_rows(const hmc_batch *batch, const packed *p, const float *x, int stride, int rows) {
  if (!p->range.quantised) return;
  for (int r = 0; r < rows; r++)
    batch->nans[r] = quantise_row(x + (size_t)r * stride, p->inputs, p->range,
                                  batch->quantised + (size_t)r * p->padded_inputs);
}

static void linear(const hmc_batch *batch, const operation *op, int rows) {
  const hmc_operation *o = &op->is;
  const hmc_level *level = batch->level;
  const int read = o->residual >= 0 ? o->residual : o->input;
  const int stride = level->strides[read];
  const float *value = batch->values[read];
  if (o->residual >= 0) {
    float *sum = o->sum_output >= 0 ? batch->values[o->sum_output] : batch->scratch;
    for (int r = 0; r < rows; r++) {
      const size_t at = (size_t)r * stride;
      add_row(o->parts >= 0 ? batch->values[o->parts] + at : NULL, o->sum_bias, value + at, o->inputs, sum + at);
    }
    value = sum;
  }
  if (o->norm_weight) {
    float *normed = o->norm_output >= 0 ? batch->values[o->norm_output] : batch->scratch;
    for (int r = 0; r < rows; r++)
      norm_row(value + (size_t)r * stride, o->inputs, o->norm_weight, o->norm_bias, o->epsilon,
               normed + (size_t)r * stride);
    value = normed;
  }
  if (o->matrices) {
    quantise_rows(batch, &op->product, value, stride, rows);
    multiply(batch, &op->product, value, stride, 0, op->product.padded_outputs, rows, batch->values[o->output],
             level->strides[o->output]);
  }
}

/* ---- attention over integers and floats ---- */

static void scores_of_integers(const int16_t *q, const uint8_t *const *places, size_t offset, int n, int width,
                               int is_signed, int32_t *out) {
  int t = 0;
#if defined(__AVX2__)
  if (width % 16 == 0)
    for (; t + 4 <= n; t += 4) {
      __m256i sums[4];
      for (int j = 0; j < 4; j++) {
        const uint8_t *key = places[t + j] + offset;
        __m256i sum = _mm256_setzero_si256();
        for (int d = 0; d < width; d += 16) {
          const __m128i bytes = _mm_loadu_si128((const __m128i *)(key + d));
          const __m256i wide = is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(wide, _mm256_loadu_si256((const __m256i *)(q + d))));
        }
        sums[j] = sum;
      }
      const __m256i both = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
      const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      _mm_storeu_si128((__m128i *)(out + t), four);
    }
#endif
  for (; t < n; t++) {
    const uint8_t *key = places[t] + offset;
    int32_t sum = 0;
    if (is_signed)
      for (int d = 0; d < width; d++) sum += q[d] * (int8_t)key[d];
    else
      for (int d = 0; d < width; d++) sum += q[d] * key[d];
    out[t] = sum;
  }
}

/* Sums of values, each times its share; total [width]. Values are signed. */
static void values_of_integers(const uint8_t *shares, const uint8_t *const *places, size_t offset, int n, int width,
                               int32_t *total) {
#if defined(__AVX2__)
  if (width % 16 == 0) {
    for (int d = 0; d < width; d += 16) {
      __m256i low = _mm256_setzero_si256(), high = low;
      const __m128i none = _mm_setzero_si128();
      for (int t = 0; t < n; t += 2) {
        const int pair = t + 1 < n;
        const __m128i a = _mm_loadu_si128((const __m128i *)(places[t] + offset + d));
        const __m128i b = pair ? _mm_loadu_si128((const __m128i *)(places[t + 1] + offset + d)) : none;
        const __m256i share = _mm256_set1_epi32(shares[t] | (pair ? shares[t + 1] << 16 : 0));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)), share));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)), share));
      }
      _mm256_storeu_si256((__m256i *)(total + d), low);
      _mm256_storeu_si256((__m256i *)(total + d + 8), high);
    }
    return;
  }
#endif
  for (int d = 0; d < width; d++) total[d] = 0;
  for (int t = 0; t < n; t++)
    for (int d = 0; d < width; d++) total[d] += shares[t] * (int8_t)(places[t] + offset)[d];
}

/* One row and head over n places. keys, values: where those of the first head lie; key_head and value_head: bytes to this
   head's. q [width] floats; out [width]. weights [n]: gets the attention weights. room: 5 · n + 4 · width floats. */
static void attend_head(const hmc_operation *o, const float *q, const uint8_t *const *keys, size_t key_head,
                        const uint8_t *const *values, size_t value_head, int n, float *weights, float *room, float *out) {
  const int width = o->width;
  if (!o->query.quantised) {
    for (int t = 0; t < n; t++) {
      const float *key = (const float *)(const void *)(keys[t] + key_head);
      f8 low = all8(0), high = all8(0);
      int d = 0;
      for (; d + LANES <= width; d += LANES) {
        low += load8(key + d) * load8(q + d);
        high += load8(key + d + 8) * load8(q + d + 8);
      }
      for (int lane = 0; d + lane < width; lane++) {
        if (lane < 8)
          low[lane] += key[d + lane] * q[d + lane];
        else
          high[lane - 8] += key[d + lane] * q[d + lane];
      }
      weights[t] = tree_sum(low, high) * o->scale;
    }
    softmax_row(weights, n);
    for (int d = 0; d < width; d++) {
      float total = 0;
      for (int t = 0; t < n; t++) total += weights[t] * ((const float *)(const void *)(values[t] + value_head))[d];
      out[d] = total;
    }
    return;
  }
  int16_t *steps = (int16_t *)room;
  uint8_t *bytes = (uint8_t *)(room + width);
  int32_t *sums = (int32_t *)(room + 2 * width + 8);
  quantise_row(q, width, o->query, bytes);
  int32_t all = 0;
  for (int d = 0; d < width; d++) {
    steps[d] = o->query.is_signed ? (int16_t)(int8_t)bytes[d] : (int16_t)(bytes[d] - o->query.zero);
    all += steps[d];
  }
  const int32_t shift = o->key.is_signed ? 0 : o->key.zero * all;
  scores_of_integers(steps, keys, key_head, n, width, o->key.is_signed, sums);
  int t = 0;
  for (; t + 8 <= n; t += 8)
    store8(weights + t, float8_of(load8i(sums + t) - all8i(shift)) * all8(o->score_factor));
  for (; t < n; t++) weights[t] = (float)(sums[t] - shift) * o->score_factor;
  softmax_row(weights, n);
  uint8_t *shares = (uint8_t *)sums;
  const hmc_range share = {.quantised = 1, .zero = 0, .is_signed = 0, .scale = (float)(1.0 / 255)};
  quantise_row(weights, n, share, shares);
  int32_t total[HMC_MOST_WIDTH];
  values_of_integers(shares, values, value_head, n, width, total);
  for (int d = 0; d < width; d++) out[d] = (float)total[d] * o->value_factor;
}

/* Keys or values of one place, as the cache has them. x [heads · width] → each head's `head` bytes after the last. */
static void keep_place(const float *x, int heads, int width, hmc_range range, uint8_t *to, size_t head) {
  uint8_t bytes[HMC_MOST_WIDTH + 8];
  for (int h = 0; h < heads; h++, x += width, to += head) {
    if (range.quantised) {
      quantise_row(x, width, range, bytes);
      memcpy(to, bytes, (size_t)width);
    } else {
      memcpy(to, x, (size_t)width * 4);
    }
  }
}

static int has_nan(const float *x, int n) {
  int any = 0;
  for (int i = 0; i < n; i++) any |= x[i] != x[i];
  return any;
}

static void all_nan(float *x, int n) {
  for (int i = 0; i < n; i++) x[i] = NAN;
}

/* ---- encode ---- */

static int attend_encoder(hmc_batch *batch, const hmc_operation *o, int first, int n) {
  const hmc_level *level = batch->level;
  const int width = o->width, all = o->heads * width, stride = level->strides[o->input];
  const int blocks = (n + 7) / 8, out_stride = level->strides[o->output];
  if (attend_memory(batch, (size_t)blocks * 8 * (width + 1) + 64)) return HMC_NO_MEMORY;
  float *keys = batch->attend, *weights = keys + (size_t)blocks * 8 * width;
  const float *rows = batch->values[o->input] + (size_t)first * stride;
  float *out = batch->values[o->output] + (size_t)first * out_stride;
  for (int h = 0; h < o->heads; h++) {
    memset(keys, 0, (size_t)blocks * 8 * width * sizeof(float));
    for (int t = 0; t < n; t++) {
      const float *key = rows + (size_t)t * stride + all + h * width;
      for (int d = 0; d < width; d++) keys[((size_t)(t / 8) * width + d) * 8 + t % 8] = key[d];
    }
    for (int r = 0; r < n; r++) {
      const float *q = rows + (size_t)r * stride + h * width;
      for (int b = 0; b < blocks; b++)
        store8(weights + 8 * b, dot8(keys + (size_t)b * 8 * width, q, width) * all8(o->scale));
      softmax_row(weights, n);
      const float *value = rows + 2 * all + h * width;
      float *to = out + (size_t)r * out_stride + h * width;
      int d = 0;
      for (; d + 16 <= width; d += 16) {
        f8 low = all8(0), high = all8(0);
        for (int t = 0; t < n; t++) {
          low += all8(weights[t]) * load8(value + (size_t)t * stride + d);
          high += all8(weights[t]) * load8(value + (size_t)t * stride + d + 8);
        }
        store8(to + d, low);
        store8(to + d + 8, high);
      }
      for (; d < width; d++) {
        float total = 0;
        for (int t = 0; t < n; t++) total += weights[t] * value[(size_t)t * stride + d];
        to[d] = total;
      }
    }
  }
  return 0;
}

static void store_source(const hmc_batch *batch, const hmc_operation *o, sentence *s, int first) {
  const hmc_level *level = batch->level;
  const plane *p = level->source + o->plane;
  const int all = o->heads * o->width, stride = level->strides[o->input];
  uint8_t *keys = s->memory + s->at[2 * o->plane], *values = s->memory + s->at[2 * o->plane + 1];
  const size_t key = (size_t)o->width * p->key_bytes, value = (size_t)o->width * p->value_bytes;
  for (int t = 0; t < s->source; t++) {
    const float *x = batch->values[o->input] + (size_t)(first + t) * stride;
    keep_place(x, o->heads, o->width, o->key, keys + t * key, key * s->source);
    keep_place(x + all, o->heads, o->width, o->value, values + t * value, value * s->source);
  }
}

int hmc_encode_sentences(hmc_batch *batch, sentence **sentences, int32_t count, const int32_t *const *tokens) {
  int rows = 0;
  for (int i = 0; i < count; i++) rows += sentences[i]->source;
  if (hmc_make_room(batch, rows)) return HMC_NO_MEMORY;
  rows = 0;
  for (int i = 0; i < count; i++)
    for (int t = 0; t < sentences[i]->source; t++, rows++) {
      batch->tokens[rows] = tokens[i][t];
      batch->positions[rows] = t;
    }
  const hmc_level *level = batch->level;
  for (int i = 0; i < level->encode_count; i++) {
    const operation *op = level->encode + i;
    int first = 0;
    switch (op->is.kind) {
      case HMC_EMBED:
        embed(batch, op, rows);
        break;
      case HMC_LINEAR:
        linear(batch, op, rows);
        break;
      case HMC_ATTEND_ENCODER:
        for (int j = 0; j < count; first += sentences[j++]->source)
          if (attend_encoder(batch, &op->is, first, sentences[j]->source)) return HMC_NO_MEMORY;
        break;
      default:
        for (int j = 0; j < count; first += sentences[j++]->source) store_source(batch, &op->is, sentences[j], first);
    }
  }
  return 0;
}

/* ---- step ---- */

static int attend_self(hmc_batch *batch, const hmc_operation *o) {
  const hmc_level *level = batch->level;
  const plane *p = level->own + o->plane;
  const int all = o->heads * o->width, stride = level->strides[o->input], out_stride = level->strides[o->output];
  const size_t key = (size_t)o->width * p->key_bytes, value = (size_t)o->width * p->value_bytes;
  for (int i = 0; i < batch->count; i++) {
    sentence *s = batch->sentences[i];
    const int n = s->position + 1;
    if (attend_memory(batch, (size_t)n * 12 + (size_t)o->width * 8 + 64)) return HMC_NO_MEMORY;
    const uint8_t **keys = (const uint8_t **)(void *)batch->attend, **values = keys + n;
    float *weights = (float *)(void *)(values + n), *room = weights + ROUND_UP(n, 8) + 8;
    for (int r = 0; r < batch->rows; r++) {
      const int row = i * batch->rows + r;
      const float *x = batch->values[o->input] + (size_t)row * stride;
      float *out = batch->values[o->output] + (size_t)row * out_stride;
      const int32_t *ancestors = s->ancestors + (size_t)r * s->room;
      for (int t = 0; t < n; t++) {
        const uint8_t *page = s->pages[ancestors[t] / PAGE];
        const size_t place = (size_t)(ancestors[t] % PAGE);
        keys[t] = page + p->keys + place * key;
        values[t] = page + p->values + place * value;
      }
      keep_place(x + all, o->heads, o->width, o->key, (uint8_t *)keys[n - 1], key * PAGE);
      keep_place(x + 2 * all, o->heads, o->width, o->value, (uint8_t *)values[n - 1], value * PAGE);
      for (int h = 0; h < o->heads; h++)
        attend_head(o, x + h * o->width, keys, h * key * PAGE, values, h * value * PAGE, n, weights, room,
                    out + h * o->width);
      if (o->query.quantised && has_nan(x, 3 * all)) all_nan(out, all);
    }
  }
  return 0;
}

static int attend_source(hmc_batch *batch, const hmc_operation *o, float *attention, int32_t longest) {
  const hmc_level *level = batch->level;
  const plane *p = level->source + o->plane;
  const int all = o->heads * o->width, stride = level->strides[o->input], out_stride = level->strides[o->output];
  const size_t key = (size_t)o->width * p->key_bytes, value = (size_t)o->width * p->value_bytes;
  for (int i = 0; i < batch->count; i++) {
    sentence *s = batch->sentences[i];
    const int n = s->source;
    if (attend_memory(batch, (size_t)n * 12 + (size_t)o->width * 8 + 64)) return HMC_NO_MEMORY;
    const uint8_t **keys = (const uint8_t **)(void *)batch->attend, **values = keys + n;
    float *weights = (float *)(void *)(values + n), *room = weights + ROUND_UP(n, 8) + 8;
    for (int t = 0; t < n; t++) {
      keys[t] = s->memory + s->at[2 * o->plane] + t * key;
      values[t] = s->memory + s->at[2 * o->plane + 1] + t * value;
    }
    for (int r = 0; r < batch->rows; r++) {
      const int row = i * batch->rows + r;
      const float *x = batch->values[o->input] + (size_t)row * stride;
      float *out = batch->values[o->output] + (size_t)row * out_stride;
      for (int h = 0; h < o->heads; h++) {
        attend_head(o, x + h * o->width, keys, h * key * n, values, h * value * n, n, weights, room, out + h * o->width);
        if (attention) memcpy(attention + ((size_t)row * o->heads + h) * longest, weights, (size_t)n * 4);
      }
      if (o->query.quantised && has_nan(x, all)) all_nan(out, all);
    }
  }
  return 0;
}

int hmc_forward(hmc_batch *batch, float *attention, int32_t longest) {
  const hmc_level *level = batch->level;
  const int rows = batch->count * batch->rows;
  for (int i = 0; i + 1 < level->step_count; i++) {
    const operation *op = level->step + i;
    int error = 0;
    switch (op->is.kind) {
      case HMC_EMBED:
        embed(batch, op, rows);
        break;
      case HMC_LINEAR:
        linear(batch, op, rows);
        break;
      case HMC_ATTEND_SELF:
        error = attend_self(batch, &op->is);
        break;
      default:
        error = attend_source(batch, &op->is, attention, longest);
        if (attention) attention += (size_t)rows * op->is.heads * longest;
    }
    if (error) return error;
  }
  return 0;
}

/* ---- candidates ---- */

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
  if (grow((void **)&batch->logits, floats * 4)) return HMC_NO_MEMORY;
  batch->logits_room = floats;
  return 0;
}

static int best_memory(hmc_batch *batch, size_t numbers) {
  if (numbers <= batch->best_room) return 0;
  batch->best_room = 0;
  if (grow((void **)&batch->best, numbers * 4) || grow((void **)&batch->ids, numbers * 4)) return HMC_NO_MEMORY;
  if (grow((void **)&batch->sums, numbers * sizeof(exponentials))) return HMC_NO_MEMORY;
  batch->best_room = numbers;
  return 0;
}

int hmc_best(hmc_batch *batch, int32_t wanted) {
  const hmc_level *level = batch->level;
  const operation *op = level->step + level->step_count - 1;
  const hmc_operation *o = &op->is;
  const int rows = batch->count * batch->rows, stride = level->strides[o->input];
  const int most = wanted < level->vocabulary ? wanted : level->vocabulary;
  if (logits_memory(batch, (size_t)rows * o->block) || best_memory(batch, (size_t)rows * wanted)) return HMC_NO_MEMORY;
  exponentials *sums = (exponentials *)(void *)batch->sums;
  const float *x = batch->values[o->input];
  quantise_rows(batch, &op->product, x, stride, rows);
  for (int r = 0; r < rows; r++) sums[r] = (exponentials){-INFINITY, 0};
  for (int first = 0; first < level->vocabulary; first += o->block) {
    const int last = first + o->block < op->product.padded_outputs ? first + o->block : op->product.padded_outputs;
    const int n = last < level->vocabulary ? last - first : level->vocabulary - first;
    multiply(batch, &op->product, x, stride, first, last, rows, batch->logits, o->block);
    for (int r = 0; r < rows; r++) {
      const float *logits = batch->logits + (size_t)r * o->block;
      best_list best = {batch->best + (size_t)r * wanted, batch->ids + (size_t)r * wanted, first < most ? first : most, most};
      find_best(&best, logits, n, first);
      add_block(sums + r, logits, n);
    }
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

int hmc_step(hmc_batch *batch, const int32_t *tokens, float *logits, float *attention, int32_t longest) {
  const hmc_level *level = batch->level;
  const operation *op = level->step + level->step_count - 1;
  const hmc_operation *o = &op->is;
  const int rows = batch->count * batch->rows;
  int error = hmc_begin_step(batch, tokens);
  if (!error) error = hmc_forward(batch, attention, longest);
  if (error) return error;
  const int stride = level->strides[o->input], width = op->product.padded_outputs;
  if (logits_memory(batch, (size_t)rows * width)) return HMC_NO_MEMORY;
  quantise_rows(batch, &op->product, batch->values[o->input], stride, rows);
  multiply(batch, &op->product, batch->values[o->input], stride, 0, width, rows, batch->logits, width);
  for (int r = 0; r < rows; r++)
    memcpy(logits + (size_t)r * level->vocabulary, batch->logits + (size_t)r * width, (size_t)level->vocabulary * 4);
  hmc_end_step(batch);
  return 0;
}
