// The two microkernels that multiply rows by a panel: floats by floats, and int8 activations by quantized weights.
//
// Both have the interface that Gemm uses:
//   Input, row_length()    element type of a row, and elements per row
//   STEP_BYTES, steps()    bytes of a panel per step along the inner dimension, and number of steps
//   MAX_TILE, tile()       most rows of a tile; acc[r][c] += sum over the inner dimension of a[r, :] * panel[:, c]
#pragma once

#include "amx.h"
#include "operands.h"
#include "panels.h"

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
      add_block<0, R>(a, blocks, panel, acc);
      if constexpr (Q::SUMS == 2) add_block<1, R>(a, blocks, panel, acc);
    }
  }

 private:
  template <int PART, int R>
  static OCTAVO_INLINE void add_block(const Input* a, i64 stride, const uint8_t* block, Vec (&acc)[R][PANEL_VECS]) {
    constexpr int FIRST = PART * VECTORS / Q::SUMS, LAST = FIRST + VECTORS / Q::SUMS;
    IVec sums[R][PANEL_VECS] = {};
    add_vectors<FIRST, LAST, R>(a, stride, block, sums);
    Vec scale[PANEL_VECS];
    for (int c = 0; c < PANEL_VECS; c++) scale[c] = Q::scale(block, PART, c);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        const Input& x = a[r * stride];
        const Vec exact = __builtin_convertvector(sums[r][c], Vec);
        const Vec product =
            OFFSET ? fma(exact, splat(x.scale), splat(x.sum * float(-OFFSET))) : exact * x.scale;
        acc[r][c] = fma(product, scale[c], acc[r][c]);
        if constexpr (!Q::SIGNED)
          acc[r][c] = fma(splat(Q::SUMS == 2 ? x.half_sum[PART] : x.sum), Q::minimum(block, PART, c), acc[r][c]);
      }
  }

#if defined(OCTAVO_BYTE_DOT)
  static constexpr int OFFSET = Q::SIGNED ? SIGNED_OFFSET : 0;
  template <int V, int LAST, int R>
  static OCTAVO_INLINE void add_vectors(const Input* a, i64 stride, const uint8_t* block, IVec (&sums)[R][PANEL_VECS]) {
    UVec w[PANEL_VECS];
    for (int c = 0; c < PANEL_VECS; c++) {
      w[c] = Q::template bytes<V>(block, c);
      if constexpr (OFFSET) w[c] ^= 0x80808080u;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const UVec x = broadcast4(a[r * stride].q + 4 * V);
      for (int c = 0; c < PANEL_VECS; c++) sums[r][c] = add_products(sums[r][c], w[c], x);
    }
    if constexpr (V + 1 < LAST) add_vectors<V + 1, LAST, R>(a, stride, block, sums);
  }
#else
  static constexpr int OFFSET = 0;
  template <int V, int LAST, int R>
  static OCTAVO_INLINE void add_vectors(const Input* a, i64 stride, const uint8_t* block, IVec (&sums)[R][PANEL_VECS]) {
    constexpr int END = V + (Q::WORD_RUN < LAST - V ? Q::WORD_RUN : LAST - V);
    Words words[R][PANEL_VECS] = {};
    add_words<V, END, R>(a, stride, block, words);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        sums[r][c] += add_pairs(words[r][c]);
        compute_now(sums[r][c]);
      }
    if constexpr (END < LAST) add_vectors<END, LAST, R>(a, stride, block, sums);
  }
  template <int V, int END, int R>
  static OCTAVO_INLINE void add_words(const Input* a, i64 stride, const uint8_t* block, Words (&words)[R][PANEL_VECS]) {
    UVec w[PANEL_VECS];
#pragma GCC unroll 4
    for (int c = 0; c < PANEL_VECS; c++) w[c] = Q::template bytes<V>(block, c);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const UVec x = broadcast4(a[r * stride].q + 4 * V);
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        words[r][c] += Q::SIGNED ? multiply_signed_pairs(w[c], x) : multiply_pairs(w[c], x);
        compute_now(words[r][c]);
      }
    }
    if constexpr (V + 1 < END) add_words<V + 1, END, R>(a, stride, block, words);
  }
#endif
};

}  // namespace octavo
