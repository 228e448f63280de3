/* The native executor's kernels for AVX-512 with VNNI, on a processor with AVX2 alone: its one instruction of those is a
   function. Include it before everything else (-include), with -mavx2. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define __AVX512VNNI__ 1
#define __AVX512VL__ 1
#define __AVX512BW__ 1
#define _mm256_dpbusd_epi32 emulated_dpbusd

/* To each of eight sums, four products of an unsigned and a signed byte. */
static inline __m256i emulated_dpbusd(__m256i sums, __m256i x, __m256i w) {
  int32_t sum[8];
  uint8_t unsigned_bytes[32];
  int8_t signed_bytes[32];
  memcpy(sum, &sums, 32);
  memcpy(unsigned_bytes, &x, 32);
  memcpy(signed_bytes, &w, 32);
  for (int i = 0; i < 32; i++) sum[i / 4] += unsigned_bytes[i] * signed_bytes[i];
  memcpy(&sums, sum, 32);
  return sums;
}
