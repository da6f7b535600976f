// The float microkernel: a tile of rows times packed columns, for linears, Q·K and P·V alike.
//
// The layout of the right-hand side is [groups][columns][GROUP]: GROUP consecutive elements of the inner dimension are
// adjacent for each column. GROUP is 2 for bf16, as the bf16 dot instruction requires, and 1 for fp32.
#pragma once

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

#if defined(__AVX512BF16__) || defined(OCTAVO_EMULATE_BF16_DOT)
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

// acc[r][c] += sum over `groups` groups of a[r, :] * b[:, c]. `a` is row-major with a row stride of `lda` elements; `b`
// advances `ldb` elements per group. Batch-invariant: each element is summed in the same order for any number of rows
// and columns of the tile, so a token's result does not depend on its batch. (With few rows, several partial sums would
// hide the latency of the multiply-add, but then reading weights from memory takes the time.)
template <class P, int R, int NV>
OCTAVO_INLINE void dot_tile(const typename P::Act* a, i64 lda, const typename P::Elem* b, i64 ldb, i64 groups,
                            Vec (&acc)[R][NV], Prefetch prefetch) {
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
