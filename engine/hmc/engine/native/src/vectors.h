/* Vectors of eight floats, by the compiler's own vector types: the same arithmetic on every processor.

   Products are never fused with sums (the build says -ffp-contract=off). Exponentials, logarithms and erf are the
   polynomials of hmc/engine/arithmetic.py, and sums have the order that is stated there. */
#ifndef HMC_VECTORS_H
#define HMC_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

INLINE f8 load8(const float *p) {
  f8 v;
  memcpy(&v, p, sizeof v);
  return v;
}

INLINE i8 load8i(const int32_t *p) {
  i8 v;
  memcpy(&v, p, sizeof v);
  return v;
}

INLINE void store8(float *p, f8 v) { memcpy(p, &v, sizeof v); }

INLINE f8 all8(float x) { return (f8){x, x, x, x, x, x, x, x}; }

INLINE i8 all8i(int32_t x) { return (i8){x, x, x, x, x, x, x, x}; }

/* Where the mask is −1, a; where it is 0, b. */
INLINE f8 select8(i8 mask, f8 a, f8 b) { return (f8)((mask & (i8)a) | (~mask & (i8)b)); }

/* The first n of eight floats, and 0 behind them. */
INLINE f8 load8_part(const float *p, int n) {
  float part[8] = {0};
  memcpy(part, p, (size_t)n * sizeof(float));
  return load8(part);
}

/* To the next integer, half to even, for |x| < 2²². */
INLINE f8 round8(f8 x) {
  const f8 shift = all8(12582912.0f);
  return (x + shift) - shift;
}

INLINE i8 int8_of(f8 x) { return __builtin_convertvector(x, i8); }

INLINE f8 float8_of(i8 x) { return __builtin_convertvector(x, f8); }

/* The sum of sixteen lanes: i and i + 8, i and i + 4, i and i + 2, i and i + 1. */
INLINE float tree_sum(f8 low, f8 high) {
  f8 eight = low + high;
  float lanes[8];
  store8(lanes, eight);
  float a = lanes[0] + lanes[4], b = lanes[1] + lanes[5], c = lanes[2] + lanes[6], d = lanes[3] + lanes[7];
  return (a + c) + (b + d);
}

INLINE f8 exp8(f8 x) {
  f8 clipped = select8(x > all8(-87.0f), x, all8(-87.0f));
  clipped = select8(clipped < all8(88.0f), clipped, all8(88.0f));
  f8 n = round8(clipped * all8(1.4426950408889634f));
  f8 r = (clipped - n * all8(0.693359375f)) - n * all8(-2.12194440e-4f);
  f8 power = all8((float)(1.0 / 5040));
  power = power * r + all8((float)(1.0 / 720));
  power = power * r + all8((float)(1.0 / 120));
  power = power * r + all8((float)(1.0 / 24));
  power = power * r + all8((float)(1.0 / 6));
  power = power * r + all8(0.5f);
  power = power * r + all8(1.0f);
  power = power * r + all8(1.0f);
  f8 scale = (f8)((int8_of(n) + all8i(127)) << 23);
  f8 result = power * scale;
  result = select8(x < all8(-87.0f), all8(0.0f), result);
  result = select8(x > all8(88.0f), all8(INFINITY), result);
  return select8(x != x, x, result);
}

INLINE float exp1(float x) { return exp8(all8(x))[0]; }

INLINE float log1(float x) {
  if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
  if (isinf(x)) return x;
  int exponent;
  float m = frexpf(x, &exponent);
  if (m < 0.70710678f) {
    m = m * 2.0f;
    exponent -= 1;
  }
  float e = (float)exponent;
  float s = (m - 1.0f) / (m + 1.0f);
  float z = s * s;
  float series = (float)(1.0 / 11);
  series = series * z + (float)(1.0 / 9);
  series = series * z + (float)(1.0 / 7);
  series = series * z + (float)(1.0 / 5);
  series = series * z + (float)(1.0 / 3);
  float logarithm = 2.0f * (s + s * (z * series));
  return e * 0.693359375f + (e * -2.12194440e-4f + logarithm);
}

INLINE f8 erf8(f8 x) {
  f8 size = select8(x < all8(0.0f), -x, x);
  size = select8(size < all8(4.0f), size, all8(4.0f));
  f8 square = size * size;
  f8 one = all8(1.0f);
  f8 small = select8(square < one, square, one);
  static const float near_zero[7] = {
    1.1283791f, -0.37612626f, 0.11283597f, -0.026854329f, 0.0051893122f, -0.00080188550f, 7.8824974e-05f,
  };
  static const float farther[8] = {
    -0.00016045761f, 0.28500554f, 0.25910446f, 0.34980762f, -0.10769317f, 0.56819123f, -0.47445801f, 0.12026211f,
  };
  f8 inner = all8(near_zero[6]);
  for (int i = 5; i >= 0; i--) inner = inner * small + all8(near_zero[i]);
  inner = x * inner;
  f8 t = one / (one + size * all8(0.5f));
  f8 outer = all8(farther[7]);
  for (int i = 6; i >= 0; i--) outer = outer * t + all8(farther[i]);
  outer = one - exp8(-square) * outer;
  outer = select8(size >= all8(4.0f), one, outer);
  outer = select8(x < all8(0.0f), -outer, outer);
  return select8(x != x, x, select8(size <= one, inner, outer));
}

#endif
