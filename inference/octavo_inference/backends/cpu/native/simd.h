// Vectors in the native width of the instruction set this file is compiled for.
//
// Arithmetic uses GCC/Clang vector extensions, so all variants (AVX-512, AVX2, SSE2, NEON) share one source. Intrinsics
// appear only where the compiler does not find the instruction (bf16 dot product, rounding to bf16) or must not choose
// by itself (fused multiply-add).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define OCTAVO_INLINE inline __attribute__((always_inline))

// The compiler's names for what an ARM processor adds to NEON: products of bf16 pairs, and of four bytes.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && !defined(OCTAVO_VECTOR_FLOATS)
#define OCTAVO_ARM_BF16
#endif
#if defined(__ARM_FEATURE_DOTPROD) && !defined(OCTAVO_VECTOR_FLOATS)
#define OCTAVO_ARM_BYTE_DOT
#endif

namespace octavo {

using i64 = int64_t;

#if defined(OCTAVO_VECTOR_FLOATS)
constexpr int W = OCTAVO_VECTOR_FLOATS;  // tests compile the wide layouts on CPUs with narrow vectors
#elif defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

// Weights are packed in panels of PANEL output columns; a GEMM tile is up to MAX_ROWS rows by one panel. Accumulators,
// operands, a broadcast and a mask must fit in registers: with 6 rows on AVX2 the compiler spills one accumulator, and
// the tile runs at two thirds of the speed of 5 rows.
constexpr int PANEL = W == 16 ? 32 : 16;
constexpr int PANEL_VECS = PANEL / W;
constexpr int HALF = PANEL / 2, HALF_VECS = HALF / W;  // half a panel: gate or up, or the columns of an adapter's block
#if defined(__aarch64__)
constexpr int MAX_ROWS = 6;
#else
constexpr int MAX_ROWS = W == 16 ? 12 : W == 8 ? 5 : 3;
#endif

struct bf16 {
  uint16_t bits;
};

typedef float Vec __attribute__((vector_size(4 * W), may_alias));
typedef int32_t IVec __attribute__((vector_size(4 * W), may_alias));
typedef uint32_t UVec __attribute__((vector_size(4 * W), may_alias));
typedef uint16_t HVec __attribute__((vector_size(2 * W), may_alias));

// Forces v to be computed here. Otherwise GCC loads the operands of several sums first and runs out of registers.
template <class V>
OCTAVO_INLINE void compute_now([[maybe_unused]] V& v) {
#if defined(__AVX512F__) || (defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS))
  asm("" : "+v"(v));
#endif
}

OCTAVO_INLINE Vec splat(float x) { return x - Vec{}; }
OCTAVO_INLINE IVec splat_int(int32_t x) { return x - IVec{}; }

OCTAVO_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
OCTAVO_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

OCTAVO_INLINE UVec load_bits(const void* p) {
  UVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

OCTAVO_INLINE float to_float(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
OCTAVO_INLINE float to_float(float x) { return x; }

// Rounds to nearest even. NaN stays NaN after truncation, because the quiet bit is set.
OCTAVO_INLINE bf16 to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  if (f != f) return bf16{uint16_t((bits >> 16) | 0x40)};
  return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
OCTAVO_INLINE void put(float* p, float x) { *p = x; }
OCTAVO_INLINE void put(bf16* p, float x) { *p = to_bf16(x); }

OCTAVO_INLINE Vec load(const bf16* p) {
  HVec half;
  std::memcpy(&half, p, sizeof half);
  return (Vec)(__builtin_convertvector(half, UVec) << 16);
}
OCTAVO_INLINE void store(bf16* p, Vec v) {
#if defined(__AVX512BF16__)
  auto half = _mm512_cvtneps_pbh((__m512)v);
#elif defined(OCTAVO_ARM_BF16)
  auto half = vcvt_bf16_f32((float32x4_t)v);
#else
  UVec bits = (UVec)v;
  HVec half = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, HVec);
#endif
  std::memcpy(p, &half, sizeof half);
}

// The bits of `a` where `mask` has ones, those of `b` elsewhere.
OCTAVO_INLINE UVec select_bits(uint32_t mask, UVec a, UVec b) {
#if defined(__AVX512F__)
  return (UVec)_mm512_ternarylogic_epi32((__m512i)(mask - UVec{}), (__m512i)a, (__m512i)b, 0xca);
#else
  return (a & mask) | (b & ~mask);
#endif
}

// Converts W fp16 numbers to fp32. Infinity and NaN may become large finite numbers.
OCTAVO_INLINE Vec from_half(HVec half) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (Vec)_mm256_cvtph_ps((__m128i)half);
#elif defined(__aarch64__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (Vec)vcvt_f32_f16((float16x4_t)half);
#else
  UVec bits = __builtin_convertvector(half, UVec);
  // The multiplication rebiases the exponent and also normalizes subnormal numbers.
  Vec size = (Vec)((bits & 0x7fff) << 13) * 0x1p112f;
  return (Vec)((UVec)size | ((bits & 0x8000) << 16));
#endif
}
OCTAVO_INLINE Vec load_half(const uint16_t* p) {
  HVec half;
  std::memcpy(&half, p, sizeof half);
  return from_half(half);
}

// A table of 16 bytes, each `added` larger than given, repeated in each 128 bits.
inline UVec table(const int8_t* bytes, int added) {
  uint8_t all[4 * W];
  for (int i = 0; i < 4 * W; i++) all[i] = uint8_t(bytes[i % 16] + added);
  return load_bits(all);
}

// For each byte of `index`, 0 to 15, that byte of a table.
OCTAVO_INLINE UVec look_up(UVec table, UVec index) {
#if defined(__AVX512BW__)
  return (UVec)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (UVec)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#elif defined(__aarch64__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (UVec)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#else
  uint8_t bytes[4 * W], at[4 * W];
  std::memcpy(bytes, &table, sizeof bytes);
  std::memcpy(at, &index, sizeof at);
  for (uint8_t& i : at) i = bytes[i];
  return load_bits(at);
#endif
}

// a * b + c: rounded once if the instruction set has a fused multiply-add, else twice. A variant always does the same.
OCTAVO_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__) && !defined(OCTAVO_VECTOR_FLOATS)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

OCTAVO_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
OCTAVO_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

// Swaps lanes i and i ^ DISTANCE of v; DISTANCE is a power of two.
template <int DISTANCE>
OCTAVO_INLINE Vec swap_lanes(Vec v) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, (I ^ DISTANCE)...);
  }(std::make_integer_sequence<int, W>());
}
template <int DISTANCE = W / 2>
OCTAVO_INLINE float sum(Vec v) {
  v += swap_lanes<DISTANCE>(v);
  if constexpr (DISTANCE > 1) return sum<DISTANCE / 2>(v);
  return v[0];
}
template <int DISTANCE = W / 2>
OCTAVO_INLINE float highest(Vec v) {
  v = max(v, swap_lanes<DISTANCE>(v));
  if constexpr (DISTANCE > 1) return highest<DISTANCE / 2>(v);
  return v[0];
}

OCTAVO_INLINE IVec lane_numbers() {
  IVec v;
  for (int i = 0; i < W; i++) v[i] = i;
  return v;
}

// 2^t for t <= 127; for t < -126 the result is 2^-126, approximately 0. Relative error < 2e-7.
OCTAVO_INLINE Vec exp2(Vec t) {
  t = max(t, splat(-126.0f));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Vec shifted = t + magic;
  Vec f = t - (shifted - magic);
  Vec p = splat(1.5403530e-4f);
  p = fma(p, f, splat(1.3333558e-3f));
  p = fma(p, f, splat(9.6181291e-3f));
  p = fma(p, f, splat(5.5504109e-2f));
  p = fma(p, f, splat(2.4022651e-1f));
  p = fma(p, f, splat(6.9314718e-1f));
  p = fma(p, f, splat(1.0f));
  return (Vec)((UVec)p + ((UVec)shifted << 23));
}

constexpr float LOG2_E = 1.44269504088896341f;

OCTAVO_INLINE Vec sigmoid_product(Vec x, Vec t) { return x / (1.0f + exp2(min(t * -LOG2_E, splat(126.0f)))); }

OCTAVO_INLINE Vec silu(Vec x) { return sigmoid_product(x, x); }

OCTAVO_INLINE Vec sigmoid(Vec x) { return sigmoid_product(splat(1.0f), x); }

// ln(1 + e^x). ln(1 + y) is 2 artanh(y / (2 + y)), of which the series has few terms for y <= 1.
OCTAVO_INLINE Vec softplus(Vec x) {
  const Vec y = exp2(max(x, -x) * -LOG2_E), s = y / (2.0f + y), square = s * s;
  Vec p = splat(2.0f / 13);
  for (int term = 11; term > 0; term -= 2) p = fma(p, square, splat(2.0f / float(term)));
  return fma(p, s, max(x, Vec{}));
}

// The tanh approximation of GELU: (1 + tanh(u)) / 2 is the sigmoid of 2u.
OCTAVO_INLINE Vec gelu_tanh(Vec x) {
  constexpr float TWICE_SQRT_2_PI = 1.59576912160573f;
  return sigmoid_product(x, TWICE_SQRT_2_PI * (x + 0.044715f * x * x * x));
}

// cap * tanh(x / cap): bounds |x| by the cap, and is close to x near 0.
OCTAVO_INLINE Vec softcap(Vec x, float cap) {
  const Vec e = exp2(min(x * (2.0f * LOG2_E / cap), splat(126.0f)));
  const Vec bent = cap - 2.0f * cap / (e + 1.0f);
  return x == x ? bent : x;  // NaN must propagate
}

}  // namespace octavo
