/* Attention: of the encoder in floats; of the decoder over integers of 8 bits, or floats where a layer stayed in fp32. */
#include <stdlib.h>

#include "internal.h"

/* Room for an attention of each thread: of so many floats. */
static int attend_memory(hmc_batch *batch, size_t floats) {
  const size_t threads = (size_t)hmc_team_threads(batch->team);
  if (floats <= batch->attend_room) return 0;
  batch->attend_room = 0;
  const size_t room = ROUND_UP(floats * 2, 16);
  if (hmc_grow((void **)&batch->attend, threads * room * 4)) return HMC_NO_MEMORY;
  batch->attend_room = room;
  return 0;
}

/* ---- one row and head ---- */

static void scores_of_integers(const int16_t *q, const uint8_t *const *places, size_t offset, int n, int width,
                               int is_signed, int32_t *out) {
#if defined(__AVX2__)
  if (width % 16 == 0) {
    for (int t = 0; t < n; t += 4) {
      __m256i sums[4];
      for (int j = 0; j < 4; j++) { /* behind the last place it is the last once more */
        const uint8_t *key = places[t + j < n ? t + j : n - 1] + offset;
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
    return;
  }
#endif
  for (int t = 0; t < n; t++) {
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
   head's. q [width] floats; out [width]. weights [n]: gets the attention weights, and zeros up to
   ROUND_UP(n, 8). room: n + 3 · width + 16 floats. */
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
  memset(sums + n / 8 * 8, 0, 32); /* what is read behind the last */
  scores_of_integers(steps, keys, key_head, n, width, o->key.is_signed, sums);
  for (int t = 0; t < n; t += 8)
    store8(weights + t, float8_of(load8i(sums + t) - all8i(shift)) * all8(o->score_factor));
  softmax_row(weights, n);
  uint8_t *shares = (uint8_t *)sums;
  const hmc_range share = {.quantised = 1, .zero = 0, .is_signed = 0, .scale = (float)(1.0 / 255)};
  quantise_row(weights, ROUND_UP(n, 8), share, shares);
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

/* ---- the encoder ---- */

/* What a thread does of an attention. */
typedef struct {
  const hmc_batch *batch;
  const hmc_operation *o;
  int first, n; /* encoder: rows of the sentence */
  float *attention; /* source: where weights go, or NULL */
  int32_t longest;
} attend_task;

static float *attend_room(const hmc_batch *batch, int part) { return batch->attend + (size_t)part * batch->attend_room; }

/* One sentence over itself: this part's heads. */
static void attend_encoder_part(void *argument, int part, int parts) {
  const attend_task *task = argument;
  const hmc_operation *o = task->o;
  const hmc_level *level = task->batch->level;
  const int n = task->n, width = o->width, all = o->heads * width, stride = level->strides[o->input];
  const int blocks = (n + 7) / 8, out_stride = level->strides[o->output];
  float *keys = attend_room(task->batch, part), *weights = keys + (size_t)blocks * 8 * width;
  const float *rows = task->batch->values[o->input] + (size_t)task->first * stride;
  float *out = task->batch->values[o->output] + (size_t)task->first * out_stride;
  for (int h = hmc_share(o->heads, 1, part, parts); h < hmc_share(o->heads, 1, part + 1, parts); h++) {
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
}

int hmc_attend_encoder(hmc_batch *batch, const hmc_operation *o, int first, int n) {
  if (attend_memory(batch, (size_t)ROUND_UP(n, 8) * (o->width + 1) + 64)) return HMC_NO_MEMORY;
  attend_task task = {.batch = batch, .o = o, .first = first, .n = n};
  hmc_divide(batch, attend_encoder_part, &task, (int64_t)o->heads * n * n * o->width / 4);
  return 0;
}

void hmc_store_source(const hmc_batch *batch, const hmc_operation *o, sentence *s, int first) {
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

/* ---- the decoder ---- */

/* Room that one attention of a row over n places needs, in floats. */
static size_t places_room(int n, int width) { return (size_t)n * 12 + (size_t)width * 8 + 64; }

/* Every row over its own tokens: this part's (row, head) pairs. */
static void attend_self_part(void *argument, int part, int parts) {
  const attend_task *task = argument;
  const hmc_batch *batch = task->batch;
  const hmc_operation *o = task->o;
  const hmc_level *level = batch->level;
  const plane *p = level->own + o->plane;
  const int all = o->heads * o->width, stride = level->strides[o->input], out_stride = level->strides[o->output];
  const size_t key = (size_t)o->width * p->key_bytes, value = (size_t)o->width * p->value_bytes;
  const int pairs = batch->count * batch->rows * o->heads;
  int pair = hmc_share(pairs, 1, part, parts);
  const int last = hmc_share(pairs, 1, part + 1, parts);
  while (pair < last) {
    const int row = pair / o->heads, begin = pair % o->heads;
    const int end = last - pair < o->heads - begin ? begin + last - pair : o->heads;
    const sentence *s = batch->sentences[row / batch->rows];
    const int n = s->position + 1;
    const uint8_t **keys = (const uint8_t **)(void *)attend_room(batch, part), **values = keys + n;
    float *weights = (float *)(void *)(values + n), *room = weights + ROUND_UP(n, 8) + 8;
    const float *x = batch->values[o->input] + (size_t)row * stride;
    float *out = batch->values[o->output] + (size_t)row * out_stride;
    const int32_t *ancestors = s->ancestors + (size_t)(row % batch->rows) * s->room;
    for (int t = 0; t < n; t++) {
      uint8_t *page = s->pages[ancestors[t] / PAGE];
      const size_t place = (size_t)(ancestors[t] % PAGE);
      keys[t] = page + p->keys + place * key;
      values[t] = page + p->values + place * value;
    }
    uint8_t *own_key = (uint8_t *)keys[n - 1] + begin * key * PAGE;
    uint8_t *own_value = (uint8_t *)values[n - 1] + begin * value * PAGE;
    keep_place(x + all + begin * o->width, end - begin, o->width, o->key, own_key, key * PAGE);
    keep_place(x + 2 * all + begin * o->width, end - begin, o->width, o->value, own_value, value * PAGE);
    const int failed = o->query.quantised && has_nan(x, 3 * all);
    for (int h = begin; h < end; h++) {
      attend_head(o, x + h * o->width, keys, h * key * PAGE, values, h * value * PAGE, n, weights, room,
                  out + h * o->width);
      if (failed) all_nan(out + h * o->width, o->width);
    }
    pair += end - begin;
  }
}

int hmc_attend_self(hmc_batch *batch, const hmc_operation *o) {
  int longest = 0;
  int64_t places = 0;
  for (int i = 0; i < batch->count; i++) {
    const int n = batch->sentences[i]->position + 1;
    if (n > longest) longest = n;
    places += n;
  }
  if (attend_memory(batch, places_room(longest, o->width))) return HMC_NO_MEMORY;
  attend_task task = {.batch = batch, .o = o};
  hmc_divide(batch, attend_self_part, &task, places * batch->rows * o->heads * o->width / 2);
  return 0;
}

/* Every row over its source: this part's (row, head) pairs. */
static void attend_source_part(void *argument, int part, int parts) {
  const attend_task *task = argument;
  const hmc_batch *batch = task->batch;
  const hmc_operation *o = task->o;
  const hmc_level *level = batch->level;
  const plane *p = level->source + o->plane;
  const int all = o->heads * o->width, stride = level->strides[o->input], out_stride = level->strides[o->output];
  const size_t key = (size_t)o->width * p->key_bytes, value = (size_t)o->width * p->value_bytes;
  const int pairs = batch->count * batch->rows * o->heads;
  const sentence *seen = NULL;
  for (int pair = hmc_share(pairs, 1, part, parts); pair < hmc_share(pairs, 1, part + 1, parts); pair++) {
    const int row = pair / o->heads, h = pair % o->heads;
    const sentence *s = batch->sentences[row / batch->rows];
    const int n = s->source;
    const uint8_t **keys = (const uint8_t **)(void *)attend_room(batch, part), **values = keys + n;
    float *weights = (float *)(void *)(values + n), *room = weights + ROUND_UP(n, 8) + 8;
    for (int t = 0; s != seen && t < n; t++) {
      keys[t] = s->memory + s->at[2 * o->plane] + t * key;
      values[t] = s->memory + s->at[2 * o->plane + 1] + t * value;
    }
    seen = s;
    const float *x = batch->values[o->input] + (size_t)row * stride;
    float *out = batch->values[o->output] + (size_t)row * out_stride + h * o->width;
    attend_head(o, x + h * o->width, keys, h * key * n, values, h * value * n, n, weights, room, out);
    if (task->attention)
      memcpy(task->attention + ((size_t)row * o->heads + h) * task->longest, weights, (size_t)n * 4);
    if (o->query.quantised && has_nan(x, all)) all_nan(out, o->width);
  }
}

int hmc_attend_source(hmc_batch *batch, const hmc_operation *o, float *attention, int32_t longest) {
  int most = 0;
  int64_t places = 0;
  for (int i = 0; i < batch->count; i++) {
    const int n = batch->sentences[i]->source;
    if (n > most) most = n;
    places += n;
  }
  if (attend_memory(batch, places_room(most, o->width))) return HMC_NO_MEMORY;
  attend_task task = {.batch = batch, .o = o, .attention = attention, .longest = longest};
  hmc_divide(batch, attend_source_part, &task, places * batch->rows * o->heads * o->width / 2);
  return 0;
}
