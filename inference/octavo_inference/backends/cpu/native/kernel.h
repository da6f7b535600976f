// The two microkernels that multiply rows by a panel: floats by floats, and int8 activations by quantized weights.
//
// Both have the interface that Gemm uses:
//   Input, row_length()    element type of a row, and elements per row
//   STEP_BYTES, steps()    bytes of a panel per step along the inner dimension, and number of steps
//   MAX_TILE, tile()       most rows of a tile; acc[r][c] += sum over the inner dimension of a[r, :] * panel[:, c]
// With AMX, those of tile_kernel.h are used instead.
#pragma once

#include "operands.h"
#include "panels.h"
#include "tile_kernel.h"

namespace octavo {

template <class P>
struct FloatKernel {
  using Input = typename P::Act;
  static constexpr int MAX_TILE = MAX_ROWS;
  static constexpr int STEP_BYTES = PANEL * sizeof(typename P::Elem) * P::GROUP;
  static i64 row_length(i64 cols) { return cols; }
  static i64 steps(i64 cols) { return cols / P::GROUP; }

  template <int R>
  static OCTAVO_INLINE void tile(const Input* a, i64 cols, const uint8_t* panel, Vec (&acc)[R][PANEL_VECS],
                                 Prefetch prefetch) {
    dot_tile<P, R, PANEL_VECS>(a, cols, reinterpret_cast<const typename P::Elem*>(panel), PANEL * P::GROUP,
                               steps(cols), acc, prefetch);
  }
};

// Batch-invariant: any number of rows takes the same path, and each element is summed in the same order. Blocks are
// added first to last, and sums within a block are exact integers. So a token's result does not depend on its batch.
template <class Q>
struct Int8Kernel {
  using Input = Int8Block;
  static constexpr int MAX_TILE = W == 16 ? 6 : W == 8 ? 4 : (MAX_ROWS + 1) / 2;
  static constexpr int STEP_BYTES = Q::BLOCK_BYTES;
  static i64 row_length(i64 cols) { return cols / BLOCK; }
  static i64 steps(i64 cols) { return cols / BLOCK; }

  template <int R>
  static OCTAVO_INLINE void tile(const Input* a, i64 cols, const uint8_t* panel, Vec (&acc)[R][PANEL_VECS],
                                 Prefetch prefetch) {
    const i64 blocks = row_length(cols);
    for (i64 b = 0; b < blocks; b++, a++, panel += STEP_BYTES) {
      for (i64 line = 0; line < prefetch.stride; line += 64) __builtin_prefetch(prefetch.next + line);
      prefetch.next += prefetch.stride;
      add_block<R>(a, blocks, panel, acc);
    }
  }

 private:
#if defined(OCTAVO_BYTE_DOT)
  using Dot = IVec;
  static constexpr int RUN = 1;
  static OCTAVO_INLINE void add_run(Dot& sum, const UVec (&w)[1], const UVec (&x)[1]) {
    sum = add_products(sum, Q::SIGNED && SIGNED_OFFSET ? w[0] ^ 0x80808080u : w[0], x[0]);
  }
  static OCTAVO_INLINE IVec total(Dot sum) { return sum; }
#else
  // Sums stay in 16 bits for the whole block, where they fit, or for a run of vectors.
  static constexpr bool NARROW = Q::WORD_RUN == VECTORS;
  static constexpr int RUN = NARROW ? 1 : Q::WORD_RUN;
  // Not std::conditional_t: a template's argument loses the attributes of vectors.
  using Dot = decltype([] {
    if constexpr (NARROW)
      return Words{};
    else
      return IVec{};
  }());
  static OCTAVO_INLINE void add_run(Dot& sum, const UVec (&w)[RUN], const UVec (&x)[RUN]) {
    Words words = Q::SIGNED ? multiply_signed_pairs(w[0], x[0]) : multiply_pairs(w[0], x[0]);
    if constexpr (RUN == 2) words += multiply_pairs(w[1], x[1]);
    if constexpr (NARROW)
      sum += words;
    else
      sum += add_pairs(words);
  }
  static OCTAVO_INLINE IVec total(Dot sum) {
    if constexpr (NARROW)
      return add_pairs(sum);
    else
      return sum;
  }
#endif

  // product[r][c] = scale * dot product, of each part of a block in turn.
  template <int PART, int R>
  static OCTAVO_INLINE void add_part(const Input* a, i64 stride, const uint8_t* block, Vec (&product)[R][PANEL_VECS]) {
    constexpr int FIRST = PART * VECTORS / Q::SUMS, LAST = FIRST + VECTORS / Q::SUMS;
    Dot sums[R][PANEL_VECS];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) sums[r][c] = (Dot)Q::template start<PART>(a[r * stride]);
    add_vectors<FIRST, LAST, R>(a, stride, block, sums);
    Vec scale[PANEL_VECS];
    for (int c = 0; c < PANEL_VECS; c++) scale[c] = Q::scale(block, PART, c);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        const Vec exact = __builtin_convertvector(total(sums[r][c]), Vec);
        product[r][c] = PART == 0 ? exact * scale[c] : fma(exact, scale[c], product[r][c]);
      }
    if constexpr (PART + 1 < Q::SUMS) add_part<PART + 1, R>(a, stride, block, product);
  }

  template <int R>
  static OCTAVO_INLINE void add_block(const Input* a, i64 stride, const uint8_t* block, Vec (&acc)[R][PANEL_VECS]) {
    Vec product[R][PANEL_VECS];
    add_part<0, R>(a, stride, block, product);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        acc[r][c] = fma(product[r][c], splat(a[r * stride].scale), acc[r][c]);
        if constexpr (Q::MINIMUM) acc[r][c] = fma(splat(a[r * stride].sum), Q::minimum(block, c), acc[r][c]);
      }
  }

  // Adds the products of vectors V .. LAST - 1 of a block, RUN at a time.
  template <int V, int LAST, int R>
  static OCTAVO_INLINE void add_vectors(const Input* a, i64 stride, const uint8_t* block, Dot (&sums)[R][PANEL_VECS]) {
    UVec w[PANEL_VECS][RUN];
#pragma GCC unroll 4
    for (int c = 0; c < PANEL_VECS; c++) {
      w[c][0] = Q::template bytes<V>(block, c);
      if constexpr (RUN == 2) w[c][1] = Q::template bytes<V + 1>(block, c);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      UVec x[RUN];
      for (int i = 0; i < RUN; i++) x[i] = broadcast4(a[r * stride].q + 4 * (V + i));
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        add_run(sums[r][c], w[c], x);
        compute_now(sums[r][c]);
      }
    }
    if constexpr (V + RUN < LAST) add_vectors<V + RUN, LAST, R>(a, stride, block, sums);
  }
};

}  // namespace octavo
