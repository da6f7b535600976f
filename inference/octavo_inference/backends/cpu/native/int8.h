// Int8 arithmetic: quantization of activation rows, and dot products of bytes.
//
// Weights are unsigned bytes where their range allows it, because x86 multiplies unsigned by signed bytes: vpmaddubsw
// sums two products in 16 bits, VNNI's vpdpbusd four products in 32 bits.
#pragma once

#include "simd.h"

namespace octavo {

constexpr int BLOCK = 32;  // activations of a row, or weights of a column, that share a scale

// A block of one activation row. `sum` is the sum of scale * q: the minimum that a block of weights shares is multiplied
// by it once. Where a number was added to weights, to make them unsigned, `offset` takes it off again: it is -32 times
// the sum of each half of q.
struct Int8Block {
  int8_t q[BLOCK];
  float scale, sum;
  int32_t offset[2];
};

OCTAVO_INLINE void store_bytes(int8_t* out, const IVec (&v)[BLOCK / W]) {
#if defined(__AVX512F__)
  for (int c = 0; c < BLOCK / W; c++)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + c, _mm512_cvtepi32_epi8((__m512i)v[c]));
#elif defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS)
  // Packing joins the lanes of 128 bits of both operands; the permutation puts them in order.
  const __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
#else
  typedef int8_t Narrow __attribute__((vector_size(W)));
  for (int c = 0; c < BLOCK / W; c++) {
    const Narrow q = __builtin_convertvector(v[c], Narrow);
    std::memcpy(out + c * W, &q, sizeof q);
  }
#endif
}

// As in GGML's Q8_1, the element of largest magnitude becomes ±127. If it is below 1e-36, where 127 / peak is close to
// overflow, all become 0. Elements that are not finite make the block's scale NaN, and so its products.
template <class Act>
static void quantize_row(const Act* x, i64 cols, Int8Block* out) {
  constexpr int VECS = BLOCK / W;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  for (i64 b = 0; b < cols / BLOCK; b++, x += BLOCK, out++) {
    Vec v[VECS], top = {};
    for (int c = 0; c < VECS; c++) {
      v[c] = load(x + c * W);
      top = max(top, (Vec)((UVec)v[c] & 0x7fffffff));
    }
    const float peak = highest(top), inverse = peak > 1e-36f ? 127.0f / peak : 0.0f;
    // The sums of both halves are added up as one number, first + 4096 * second: an integer below 2^24, so it is exact.
    Vec halves[2] = {};
    IVec q[VECS];
    for (int c = 0; c < VECS; c++) {
      const Vec shifted = v[c] * inverse + magic;
      q[c] = (IVec)shifted - 0x4b400000;
      halves[2 * c / VECS] += shifted - magic;
    }
    store_bytes(out->q, q);
    const float both = sum(halves[0] + 4096.0f * halves[1]);
    const int32_t known = both == both ? int32_t(both) : 0;
    const int32_t second = (known + 2048) >> 12, first = known - second * 4096;
    out->scale = peak / 127.0f + 0.0f * both;
    out->sum = float(first + second) * out->scale;
    out->offset[0] = -32 * first;
    out->offset[1] = -32 * second;
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

constexpr int SIGNED_OFFSET = 0;
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
