// Int8 arithmetic: quantization of activation rows, and dot products of bytes.
//
// Weights are unsigned bytes where their range allows it, because x86 multiplies unsigned by signed bytes: vpmaddubsw
// sums two products in 16 bits, VNNI's vpdpbusd four products in 32 bits.
#pragma once

#include "simd.h"

namespace octavo {

constexpr int BLOCK = 32;  // activations of a row, or weights of a column, that share a scale

// A block of one activation row. half_sum and sum are the sums of scale * q over each half and over the block. The
// minimum that a block or half of weights shares is multiplied by them once.
struct Int8Block {
  int8_t q[BLOCK];
  float scale, half_sum[2], sum;
};

// As in GGML's Q8_1, the element of largest magnitude becomes ±127. If it is below 1e-36, where 127 / peak is close to
// overflow, all become 0. Elements that are not finite make the block's scale NaN, and so its products.
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

// In a vector of bytes each lane holds four consecutive elements of the inner dimension; here all lanes are the same.
OCTAVO_INLINE UVec broadcast4(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return four - UVec{};
}

#if defined(__AVX512VNNI__) || defined(OCTAVO_ARM_BYTE_DOT) || defined(OCTAVO_EMULATE_BYTE_DOT)
#define OCTAVO_BYTE_DOT

// Per lane: acc plus the four products of bytes of u and signed bytes of s. The bytes of u are SIGNED_OFFSET larger than
// signed weights. Unsigned weights are below 128, so that ARM can read them as signed.
#if defined(OCTAVO_ARM_BYTE_DOT)
constexpr int SIGNED_OFFSET = 0;
#else
constexpr int SIGNED_OFFSET = 128;
#endif
OCTAVO_INLINE IVec add_products(IVec acc, UVec u, UVec s) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)u, (__m512i)s);
#elif defined(OCTAVO_ARM_BYTE_DOT)
  return (IVec)vdotq_s32((int32x4_t)acc, (int8x16_t)u, (int8x16_t)s);
#else
  for (int shift = 0; shift < 32; shift += 8) acc += (IVec)(u >> shift & 255) * ((IVec)(s << (24 - shift)) >> 24);
  return acc;
#endif
}

#else

typedef int16_t Words __attribute__((vector_size(4 * W), may_alias));

// Sums of two adjacent products in 16 bits: u unsigned, s signed. The caller guarantees that the sums fit.
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

// The same with both operands signed.
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

// Sums of two adjacent 16-bit words, in 32 bits.
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
