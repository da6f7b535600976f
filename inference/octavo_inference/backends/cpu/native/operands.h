// The float microkernel: a tile of rows times packed columns, for linears, Q·K and P·V alike.
//
// The layout of the right-hand side is [groups][columns][GROUP]: GROUP consecutive elements of the inner dimension are
// adjacent for each column. GROUP is 2 for bf16, as the bf16 dot instruction requires, and 1 for fp32.
#pragma once

#include <vector>

#include "simd.h"

namespace octavo {

// bf16 right-hand side, fp32 left-hand side: a shift and a mask split each bf16 pair into two fp32 operands.
struct Bf16Fma {
  using Elem = bf16;
  using Act = float;
  using Operand = Vec;
  static constexpr int GROUP = 2;
  static constexpr int STEPS = 2;
  template <int STEP>
  static OCTAVO_INLINE Operand operand(const Elem* p) {
    UVec pair = load_bits(p);
    return STEP == 0 ? (Vec)(pair << 16) : (Vec)(pair & 0xffff0000u);
  }
  template <int STEP>
  static OCTAVO_INLINE Operand broadcast(const Act* a) {
    return splat(a[STEP]);
  }
  static OCTAVO_INLINE Vec multiply_add(Vec acc, Operand a, Operand b) { return fma(a, b, acc); }
};

#if defined(__AVX512BF16__) || defined(OCTAVO_ARM_BF16) || defined(OCTAVO_EMULATE_BF16_DOT)
// bf16 on both sides: one instruction multiplies a pair and accumulates in fp32.
struct Bf16Dot {
  using Elem = bf16;
  using Act = bf16;
  using Operand = UVec;
  static constexpr int GROUP = 2;
  static constexpr int STEPS = 1;
  template <int>
  static OCTAVO_INLINE Operand operand(const Elem* p) {
    return load_bits(p);
  }
  template <int>
  static OCTAVO_INLINE Operand broadcast(const Act* a) {
    uint32_t pair;
    std::memcpy(&pair, a, sizeof pair);
    return pair - UVec{};
  }
  static OCTAVO_INLINE Vec multiply_add(Vec acc, Operand a, Operand b) {
#if defined(__AVX512BF16__)
    return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#elif defined(OCTAVO_ARM_BF16)
    return (Vec)vbfdotq_f32((float32x4_t)acc, (bfloat16x8_t)a, (bfloat16x8_t)b);
#else
    return fma((Vec)(a & 0xffff0000u), (Vec)(b & 0xffff0000u), fma((Vec)(a << 16), (Vec)(b << 16), acc));
#endif
  }
};
using Bf16 = Bf16Dot;
#else
using Bf16 = Bf16Fma;
#endif

struct F32 {
  using Elem = float;
  using Act = float;
  using Operand = Vec;
  static constexpr int GROUP = 1;
  static constexpr int STEPS = 1;
  template <int>
  static OCTAVO_INLINE Operand operand(const Elem* p) {
    return load(p);
  }
  template <int>
  static OCTAVO_INLINE Operand broadcast(const Act* a) {
    return splat(a[0]);
  }
  static OCTAVO_INLINE Vec multiply_add(Vec acc, Operand a, Operand b) { return fma(a, b, acc); }
};

// Addresses to prefetch while a tile is computed: one per group, `stride` bytes apart.
struct Prefetch {
  const char* next;
  i64 stride;
};

template <class P, int STEP, int R, int NV>
OCTAVO_INLINE void dot_step(const typename P::Act* a, i64 lda, const typename P::Elem* b, Vec (&acc)[R][NV]) {
  typename P::Operand columns[NV];
#pragma GCC unroll 8
  for (int c = 0; c < NV; c++) columns[c] = P::template operand<STEP>(b + c * W * P::GROUP);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) {
    auto x = P::template broadcast<STEP>(a + r * lda);
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) acc[r][c] = P::multiply_add(acc[r][c], x, columns[c]);
  }
}

#if defined(OCTAVO_ARM_BF16)
// dot_tile with twice the products per instruction: BFMMLA multiplies two rows by two columns, four elements deep. By its
// definition it adds the products of the first two elements, then those of the next two, with the roundings of two BFDOT.
// So the sums have the bits of Bf16Dot::multiply_add, which computes a row alone. `groups` is even.
template <int R, int NV>
OCTAVO_INLINE void dot_row_pairs(const bf16* a, i64 lda, const bf16* b, i64 ldb, i64 groups, Vec (&acc)[R][NV],
                                 Prefetch prefetch) {
  constexpr int PAIRS = (R + 1) / 2;  // an odd last row is its own partner
  const auto partner = [](int pair) { return 2 * pair + 1 < R ? 2 * pair + 1 : R - 1; };
  // sums[p][v] has columns 2v and 2v + 1: of row 2p in the lower half, of its partner in the upper one.
  float32x4_t sums[PAIRS][2 * NV];
#pragma GCC unroll 12
  for (int p = 0; p < PAIRS; p++)
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) {
      const auto first = (float64x2_t)acc[2 * p][c], second = (float64x2_t)acc[partner(p)][c];
      sums[p][2 * c] = (float32x4_t)vzip1q_f64(first, second);
      sums[p][2 * c + 1] = (float32x4_t)vzip2q_f64(first, second);
    }
  for (i64 g = 0; g < groups; g += 2, a += 4, b += 2 * ldb) {
    for (int i = 0; i < 2; i++, prefetch.next += prefetch.stride) __builtin_prefetch(prefetch.next);
    bfloat16x8_t columns[2 * NV];
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) {
      const auto front = (uint32x4_t)load_bits(b + c * W * 2), back = (uint32x4_t)load_bits(b + ldb + c * W * 2);
      columns[2 * c] = (bfloat16x8_t)vzip1q_u32(front, back);
      columns[2 * c + 1] = (bfloat16x8_t)vzip2q_u32(front, back);
    }
#pragma GCC unroll 12
    for (int p = 0; p < PAIRS; p++) {
      const auto row = [&](int r) { return vld1_u16(reinterpret_cast<const uint16_t*>(a + r * lda)); };
      const auto rows = (bfloat16x8_t)vcombine_u16(row(2 * p), row(partner(p)));
#pragma GCC unroll 16
      for (int v = 0; v < 2 * NV; v++) sums[p][v] = vbfmmlaq_f32(sums[p][v], rows, columns[v]);
    }
  }
#pragma GCC unroll 12
  for (int p = 0; p < PAIRS; p++)
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) {
      const auto front = (float64x2_t)sums[p][2 * c], back = (float64x2_t)sums[p][2 * c + 1];
      acc[2 * p][c] = (Vec)vzip1q_f64(front, back);
      if (2 * p + 1 < R) acc[2 * p + 1][c] = (Vec)vzip2q_f64(front, back);
    }
}
#endif

// acc[r][c] += sum over `groups` groups of a[r, :] * b[:, c]. `a` is row-major with a row stride of `lda` elements; `b`
// advances `ldb` elements per group. Batch-invariant: each element is summed in the same order for any number of rows
// and columns of the tile, so a token's result does not depend on its batch. (With few rows, several partial sums would
// hide the latency of the multiply-add, but then reading weights from memory takes the time.)
template <class P, int R, int NV>
OCTAVO_INLINE void dot_tile(const typename P::Act* a, i64 lda, const typename P::Elem* b, i64 ldb, i64 groups,
                            Vec (&acc)[R][NV], Prefetch prefetch) {
#if defined(OCTAVO_ARM_BF16)
  if constexpr (R > 1 && P::STEPS == 1 && P::GROUP == 2)
    return dot_row_pairs<R, NV>(a, lda, b, ldb, groups, acc, prefetch);
#endif
  for (i64 g = 0; g < groups; g++) {
    __builtin_prefetch(prefetch.next);
    if constexpr (W == 16 && P::GROUP == 2 && NV == 2)
      if (prefetch.stride > 64) __builtin_prefetch(prefetch.next + 64);
    prefetch.next += prefetch.stride;
    dot_step<P, 0>(a, lda, b, acc);
    if constexpr (P::STEPS == 2) dot_step<P, 1>(a, lda, b, acc);
    a += P::GROUP;
    b += ldb;
  }
}

// Memory of this thread for `bytes`, valid until its next call.
inline uint8_t* panel_memory(i64 bytes) {
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  static thread_local std::vector<Line> lines;
  if (i64(lines.size()) * 64 < bytes) lines.resize(size_t(bytes / 64));
  return lines.data()->bytes;
}

// Calls f.template operator()<n>() for the run-time row count n in 1..N. The accumulators of a tile stay in registers
// only if the row count is a compile-time constant.
template <int N = MAX_ROWS, class F>
OCTAVO_INLINE void with_rows(int rows, F&& f) {
  if constexpr (N >= 1) {
    if (rows == N) return f.template operator()<N>();
    with_rows<N - 1>(rows, static_cast<F&&>(f));
  }
}

}  // namespace octavo
