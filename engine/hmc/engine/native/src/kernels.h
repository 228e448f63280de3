/* Products of rows with packed weights, and what is done to rows of floats. */
#ifndef HMC_KERNELS_H
#define HMC_KERNELS_H

#include "native.h"
#include "vectors.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#define COLUMNS 16 /* outputs of a block of packed weights */
#define ROUND_UP(n, m) (((n) + (m)-1) / (m) * (m))

/* Weights of all matrices that read one value, side by side.
   int8: [outputs / 16][inputs / 4][16][4]. Floats: [outputs / 8][inputs / 16][16][8]: lane, then output.
   In rows, for `hmc_pack_listed` and no kernel: [outputs][padded inputs] of int8, [outputs][inputs] of floats. */
typedef struct {
  int32_t inputs, outputs, padded_inputs, padded_outputs;
  int32_t in_rows;
  int32_t activation;
  hmc_range range;
  int8_t *integers;
  float *floats;
  float *scales, *bias; /* [padded_outputs] */
  int32_t *offsets; /* [padded_outputs] (zero point − SHIFT) · sum of the column's weights */
} packed;

INLINE f8 activate8(f8 x, int kind) {
  if (kind == HMC_RELU) return select8(x < all8(0.0f), all8(0.0f), x);
  if (kind == HMC_SWISH) return x / (all8(1.0f) + exp8(-x));
  if (kind == HMC_GELU) return (x * all8(0.5f)) * (all8(1.0f) + erf8(x * all8(0.70710678f)));
  return x;
}

/* q of one vector, before the zero point is added; NaN becomes 0. */
INLINE i8 quantise8(f8 x, f8 scale, f8 low, f8 high) {
  f8 steps = x / scale;
  steps = select8(steps > low, steps, low);
  steps = select8(steps < high, steps, high);
  steps = select8(x != x, all8(0.0f), steps);
  return int8_of(round8(steps));
}

INLINE float lowest(hmc_range r) { return r.is_signed ? -128.0f : (float)-r.zero; }
INLINE float highest(hmc_range r) { return r.is_signed ? 127.0f : (float)(255 - r.zero); }

/* x [n] → q, as bytes: 0 to 255, or −128 to 127 in two's complement. Writes ROUND_UP(n, 8) bytes. Returns whether there
   was a NaN. */
static inline int quantise_row(const float *x, int n, hmc_range range, uint8_t *q) {
  const f8 scale = all8(range.scale), low = all8(lowest(range)), high = all8(highest(range));
  const i8 zero = all8i(range.is_signed ? 0 : range.zero);
  i8 nans = all8i(0);
  for (int i = 0; i < n; i += 8) {
    f8 v = i + 8 <= n ? load8(x + i) : load8_part(x + i, n - i);
    nans |= v != v;
    i8 steps = quantise8(v, scale, low, high) + zero;
#if defined(__AVX2__)
    __m256i wide = (__m256i)steps;
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    __m128i bytes = range.is_signed ? _mm_packs_epi16(half, half) : _mm_packus_epi16(half, half);
    _mm_storel_epi64((__m128i *)(q + i), bytes);
#else
    for (int j = 0; j < 8; j++) q[i + j] = (uint8_t)steps[j];
#endif
  }
  int any = 0;
  for (int j = 0; j < 8; j++) any |= nans[j];
  return any != 0;
}

/* The sum of n floats in sixteen lanes. */
static inline float lane_sum(const float *x, int n) {
  f8 low = all8(0), high = all8(0);
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    low += load8(x + i);
    high += load8(x + i + 8);
  }
  if (i < n) {
    low += load8_part(x + i, n - i < 8 ? n - i : 8);
    if (n - i > 8) high += load8_part(x + i + 8, n - i - 8);
  }
  return tree_sum(low, high);
}

/* Layer norm of x [n] into y, which may be x. The variance is taken in a second pass. */
static inline void norm_row(const float *x, int n, const float *weight, const float *bias, float epsilon, float *y) {
  const float mean = lane_sum(x, n) / (float)n;
  f8 low = all8(0), high = all8(0);
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    f8 a = load8(x + i) - all8(mean), b = load8(x + i + 8) - all8(mean);
    low += a * a;
    high += b * b;
  }
  for (int lane = 0; i + lane < n; lane++) {
    float c = x[i + lane] - mean;
    if (lane < 8)
      low[lane] += c * c;
    else
      high[lane - 8] += c * c;
  }
  const float deviation = sqrtf(tree_sum(low, high) / (float)n + epsilon);
  for (i = 0; i + 8 <= n; i += 8)
    store8(y + i, (load8(x + i) - all8(mean)) / all8(deviation) * load8(weight + i) + load8(bias + i));
  for (; i < n; i++) y[i] = (x[i] - mean) / deviation * weight[i] + bias[i];
}

/* Scores [n] → exp(s − max) / sum, in place. −∞ gives 0. There is room for ROUND_UP(n, 8) floats; those behind the
   last become 0, as scores of −∞ do, so that all vectors are whole. */
static inline void softmax_row(float *s, int n) {
  const int end = ROUND_UP(n, 8);
  for (int i = n; i < end; i++) s[i] = -INFINITY;
  f8 most = all8(-INFINITY);
  for (int i = 0; i < end; i += 8) {
    const f8 v = load8(s + i);
    most = select8(v > most, v, most);
  }
  float highest_score = -INFINITY;
  for (int j = 0; j < 8; j++) highest_score = most[j] > highest_score ? most[j] : highest_score;
  f8 low = all8(0), high = all8(0);
  for (int i = 0; i < end; i += LANES) {
    const f8 a = exp8(load8(s + i) - all8(highest_score));
    store8(s + i, a);
    low += a;
    if (i + 8 == end) break;
    const f8 b = exp8(load8(s + i + 8) - all8(highest_score));
    store8(s + i + 8, b);
    high += b;
  }
  const f8 total = all8(tree_sum(low, high));
  for (int i = 0; i < end; i += 8) store8(s + i, load8(s + i) / total);
}

/* ---- products of integers ---- */

/* Arm's products of four bytes take two signed ones: its kernels read x − 128. */
#if defined(__ARM_FEATURE_DOTPROD)
#define SHIFT 128
#else
#define SHIFT 0
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define DOT4(sum, x, w) _mm256_dpbusd_epi32(sum, x, w)
#elif defined(__AVX2__)
#define DOT4(sum, x, w) _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)))
#endif

#if defined(__AVX512VL__) || defined(__ARM_FEATURE_DOTPROD)
#define TALL 6 /* rows of a tile: as many as have room for their sums in registers */
#else
#define TALL 3 /* with 4, gcc keeps a sum in memory */
#endif

/* Sums of the sixteen columns from `first` on → y [16]. */
INLINE void finish16(const packed *p, int first, i8 low, i8 high, float *y) {
  low -= load8i(p->offsets + first);
  high -= load8i(p->offsets + first + 8);
  f8 a = float8_of(low) * load8(p->scales + first) + load8(p->bias + first);
  f8 b = float8_of(high) * load8(p->scales + first + 8) + load8(p->bias + first + 8);
  store8(y, activate8(a, p->activation));
  store8(y + 8, activate8(b, p->activation));
}

#define AHEAD 1024 /* bytes of weights that are asked for before they are needed: the processor stops at a page's end */

/* `rows` rows times `blocks` blocks of columns from `first` on → y. x [rows, padded_inputs]. */
INLINE void tile_integers(const packed *p, int first, const uint8_t *x, float *y, int stride, int rows, int blocks) {
  const int steps = p->padded_inputs / 4;
  const int8_t *w = p->integers + (size_t)first * p->padded_inputs;
#if defined(__AVX2__)
  __m256i sums[TALL][8];
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < 2 * blocks; b++) sums[r][b] = _mm256_setzero_si256();
  for (int k = 0; k < steps; k++) {
    __m256i part[8];
    for (int b = 0; b < blocks; b++) {
      const int8_t *at = w + ((size_t)b * steps + k) * (4 * COLUMNS);
      if (rows > 1) __builtin_prefetch(at + AHEAD);
      part[2 * b] = _mm256_load_si256((const __m256i *)at);
      part[2 * b + 1] = _mm256_load_si256((const __m256i *)(at + 32));
    }
    for (int r = 0; r < rows; r++) {
      int32_t four;
      memcpy(&four, x + (size_t)r * p->padded_inputs + 4 * k, 4);
      const __m256i value = _mm256_set1_epi32(four);
      for (int b = 0; b < 2 * blocks; b++) sums[r][b] = DOT4(sums[r][b], value, part[b]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < blocks; b++)
      finish16(p, first + b * COLUMNS, (i8)sums[r][2 * b], (i8)sums[r][2 * b + 1], y + (size_t)r * stride + b * COLUMNS);
#elif defined(__ARM_FEATURE_DOTPROD)
  int32x4_t sums[TALL][16];
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < 4 * blocks; b++) sums[r][b] = vdupq_n_s32(0);
  for (int k = 0; k < steps; k++) {
    int8x16_t part[16];
    for (int b = 0; b < 4 * blocks; b++)
      part[b] = vld1q_s8(w + ((size_t)(b / 4) * steps + k) * (4 * COLUMNS) + b % 4 * 16);
    for (int r = 0; r < rows; r++) {
      uint32_t four;
      memcpy(&four, x + (size_t)r * p->padded_inputs + 4 * k, 4);
      const int8x16_t value = vreinterpretq_s8_u32(vdupq_n_u32(four ^ 0x80808080u));
      for (int b = 0; b < 4 * blocks; b++) sums[r][b] = vdotq_s32(sums[r][b], part[b], value);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < blocks; b++) {
      int32_t each[COLUMNS];
      for (int j = 0; j < 4; j++) vst1q_s32(each + 4 * j, sums[r][4 * b + j]);
      finish16(p, first + b * COLUMNS, load8i(each), load8i(each + 8), y + (size_t)r * stride + b * COLUMNS);
    }
#else
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < blocks; b++) {
      int32_t sums[COLUMNS] = {0};
      for (int k = 0; k < steps; k++) {
        const int8_t *at = w + ((size_t)b * steps + k) * (4 * COLUMNS);
        const uint8_t *four = x + (size_t)r * p->padded_inputs + 4 * k;
        for (int c = 0; c < COLUMNS; c++)
          for (int j = 0; j < 4; j++) sums[c] += four[j] * at[4 * c + j];
      }
      finish16(p, first + b * COLUMNS, load8i(sums), load8i(sums + 8), y + (size_t)r * stride + b * COLUMNS);
    }
#endif
}

/* Columns first … last − 1, both multiples of 16, of all rows → y [rows], `stride` floats apart. Weights are read once
   for all rows, a block of columns at a time. */
static inline void multiply_integers(const packed *p, int first, int last, const uint8_t *x, int rows, float *y,
                                     int stride) {
  const size_t in = (size_t)p->padded_inputs, out = (size_t)stride;
  if (rows == 1) {
    int c = first;
    for (; c + 4 * COLUMNS <= last; c += 4 * COLUMNS) tile_integers(p, c, x, y + (c - first), stride, 1, 4);
    for (; c < last; c += COLUMNS) tile_integers(p, c, x, y + (c - first), stride, 1, 1);
    return;
  }
  /* Tiles of TALL rows, then of 3 or 2, so that no row is left alone. */
  int tall = rows / TALL * TALL;
  if (rows - tall == 1) tall -= tall ? TALL : 0;
  int c = first;
  for (; c + 2 * COLUMNS <= last; c += 2 * COLUMNS) {
    float *to = y + (c - first);
    int row = 0;
    for (; row < tall; row += TALL) {
      tile_integers(p, c, x + row * in, to + row * out, stride, TALL, 1);
      tile_integers(p, c + COLUMNS, x + row * in, to + COLUMNS + row * out, stride, TALL, 1);
    }
    for (; (rows - row) % 2; row += 3) {
      tile_integers(p, c, x + row * in, to + row * out, stride, 3, 1);
      tile_integers(p, c + COLUMNS, x + row * in, to + COLUMNS + row * out, stride, 3, 1);
    }
    for (; row < rows; row += 2) tile_integers(p, c, x + row * in, to + row * out, stride, 2, 2);
  }
  for (; c < last; c += COLUMNS)
    for (int row = 0; row < rows; row++) tile_integers(p, c, x + row * in, y + (c - first) + row * out, stride, 1, 1);
}

/* ---- products of floats ---- */

/* Sixteen sums of products, one for each lane, added as `tree_sum` adds; eight outputs at once. at: [n / 16][16][8],
   x [n]. */
INLINE f8 lanes8(const float *at, const float *x, int n, int lane) {
  f8 sum = all8(0);
  for (int k = lane; k < n; k += LANES) sum += all8(x[k]) * load8(at + (size_t)k * 8);
  return sum;
}

INLINE f8 dot8(const float *at, const float *x, int n) {
  f8 quarter[4];
  for (int i = 0; i < 4; i++) {
    f8 a = lanes8(at, x, n, i) + lanes8(at, x, n, i + 8);
    f8 b = lanes8(at, x, n, i + 4) + lanes8(at, x, n, i + 12);
    quarter[i] = a + b;
  }
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* Columns first … last − 1 of all rows. x of stride x_stride. */
static inline void multiply_floats(const packed *p, int first, int last, const float *x, int x_stride, int rows, float *y,
                            int stride) {
  for (int c = first; c < last; c += 8)
    for (int r = 0; r < rows; r++) {
      f8 sum = dot8(p->floats + (size_t)c * p->inputs, x + (size_t)r * x_stride, p->inputs) + load8(p->bias + c);
      store8(y + (size_t)r * stride + (c - first), activate8(sum, p->activation));
    }
}

#endif
