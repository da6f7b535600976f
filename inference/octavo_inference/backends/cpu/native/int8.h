// Eight-bit arithmetic: rows of activations rounded to bytes, and sums of products of bytes.
//
// Weights come as unsigned bytes where their size allows it, because that is what the instructions of x86 multiply:
// pairs of products are summed to 16 bits (vpmaddubsw) or four of them to 32 (VNNI's vpdpbusd).
#pragma once

#include "simd.h"

namespace octavo {

constexpr int BLOCK = 32;  // activations, and weights of a column, that share a scale

// A block of one row. The sums, of the first half, the second and both, are those of q times the scale: a minimum that
// all weights of a block have in common is multiplied with them once.
struct Int8Block {
  int8_t q[BLOCK];
  float scale, half_sum[2], sum;
};

// As GGML's Q8_1: the largest element becomes ±127; below 1e-36, where 127 / peak is
// hardly a float any more, all become 0. What is not finite makes the block's scale NaN, and so its products.
template <class Act>
static void quantize_row(const Act* x, i64 cols, Int8Block* out) {
  constexpr int VECS = BLOCK / W;
  typedef int8_t Narrow __attribute__((vector_size(W)));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  for (i64 b = 0; b < cols / BLOCK; b++, x += BLOCK, out++) {
    Vec v[VECS], top = {}, all = {};
    for (int c = 0; c < VECS; c++) {
      v[c] = load(x + c * W);
      top = max(top, max(v[c], -v[c]));
      all += v[c];
    }
    const float peak = highest(top), inverse = peak > 1e-36f ? 127.0f / peak : 0.0f;
    Vec halves[2] = {};
    for (int c = 0; c < VECS; c++) {
      const Vec shifted = v[c] * inverse + magic;
      const Narrow q = __builtin_convertvector((IVec)shifted - 0x4b400000, Narrow);
      std::memcpy(out->q + c * W, &q, sizeof q);
      halves[2 * c / VECS] += shifted - magic;
    }
    out->scale = peak / 127.0f + 0.0f * sum(all);
    for (int h = 0; h < 2; h++) out->half_sum[h] = sum(halves[h]) * out->scale;
    out->sum = out->half_sum[0] + out->half_sum[1];
  }
}

// Bytes of a vector: each lane holds four consecutive elements of the inner dimension.
OCTAVO_INLINE UVec broadcast4(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return four - UVec{};
}

#if defined(__AVX512VNNI__) || defined(OCTAVO_EMULATE_BYTE_DOT)
#define OCTAVO_BYTE_DOT

// acc + the four products of unsigned bytes of u and signed bytes of s.
OCTAVO_INLINE IVec add_products(IVec acc, UVec u, UVec s) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)u, (__m512i)s);
#else
  for (int shift = 0; shift < 32; shift += 8) acc += (IVec)(u >> shift & 255) * ((IVec)(s << (24 - shift)) >> 24);
  return acc;
#endif
}

#else

typedef int16_t Words __attribute__((vector_size(4 * W), may_alias));

// Sums of two neighbouring products in 16 bits: u unsigned, s signed; the caller sees to it that they fit.
OCTAVO_INLINE Words multiply_pairs(UVec u, UVec s) {
#if defined(__AVX512BW__)
  return (Words)_mm512_maddubs_epi16((__m512i)u, (__m512i)s);
#elif defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (Words)_mm256_maddubs_epi16((__m256i)u, (__m256i)s);
#else
  typedef uint16_t Unsigned __attribute__((vector_size(4 * W), may_alias));
  return (Words)((Unsigned)u & 255) * ((Words)((Unsigned)s << 8) >> 8) + (Words)((Unsigned)u >> 8) * ((Words)s >> 8);
#endif
}

// The same with both signed.
OCTAVO_INLINE Words multiply_signed_pairs(UVec w, UVec s) {
#if defined(__AVX512BW__)
  const __m512i negated = _mm512_mask_sub_epi8((__m512i)s, _mm512_movepi8_mask((__m512i)w), __m512i{}, (__m512i)s);
  return multiply_pairs((UVec)_mm512_abs_epi8((__m512i)w), (UVec)negated);
#elif defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS)
  return multiply_pairs((UVec)_mm256_abs_epi8((__m256i)w), (UVec)_mm256_sign_epi8((__m256i)s, (__m256i)w));
#else
  typedef uint16_t Unsigned __attribute__((vector_size(4 * W), may_alias));
  const Words even = (Words)((Unsigned)w << 8) >> 8, even_s = (Words)((Unsigned)s << 8) >> 8;
  return even * even_s + ((Words)w >> 8) * ((Words)s >> 8);
#endif
}

// Neighbouring words summed to 32 bits.
OCTAVO_INLINE IVec add_pairs(Words w) {
#if defined(__AVX512BW__)
  return (IVec)_mm512_madd_epi16((__m512i)w, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (IVec)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi16(1));
#else
  return ((IVec)((UVec)w << 16) >> 16) + ((IVec)w >> 16);
#endif
}

#endif

}  // namespace octavo
