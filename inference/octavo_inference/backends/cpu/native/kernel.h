// The microkernels that multiply rows by a panel: floats by floats, int8 activations by quantized weights, and floats by
// float8 (fp8.h).
//
// A microkernel M has
//   Input, row_length()    element type of a row, and elements per row
//   STEP_COLS              elements of the inner dimension in a step; tile() prefetches once in each
//   panel_bytes()          bytes of a panel
//   MAX_TILE, tile()       most rows of a tile; acc[r][c] += sum over the inner dimension of a[r, :] * panel[:, c]
// Gemm uses them by a VectorKernel. With AMX, the kernels of tile_kernel.h are used instead.
#pragma once

#include "fp8.h"
#include "operands.h"
#include "panels.h"

namespace octavo {

template <class P>
struct FloatKernel {
  using Input = typename P::Act;
  static constexpr int MAX_TILE = MAX_ROWS;
  static constexpr int STEP_COLS = P::GROUP;
  static i64 row_length(i64 cols) { return cols; }
  static i64 panel_bytes(const Matrix& matrix) { return matrix.cols * PANEL * i64(sizeof(typename P::Elem)); }

  template <int R>
  static OCTAVO_INLINE void tile(const Matrix& matrix, const Input* a, const uint8_t* panel, Vec (&acc)[R][PANEL_VECS],
                                 Prefetch prefetch) {
    dot_tile<P, R, PANEL_VECS>(a, matrix.cols, reinterpret_cast<const typename P::Elem*>(panel), PANEL * P::GROUP,
                               matrix.cols / P::GROUP, acc, prefetch);
  }
};

// Batch-invariant: any number of rows takes the same path, and each element is summed in the same order. Blocks are
// added first to last, and sums within a block are exact integers. So a token's result does not depend on its batch.
template <class Q>
struct Int8Kernel {
  using Input = Int8Block;
  using Values = typename Q::Values;
  using Scales = typename Q::Scales;
  static constexpr int MAX_TILE = W == 16 ? 6 : W == 8 ? 4 : (MAX_ROWS + 1) / 2;
  static constexpr int STEP_COLS = BLOCK;
  static i64 row_length(i64 cols) { return cols / BLOCK; }
  static i64 panel_bytes(const Matrix& matrix) { return matrix.cols / BLOCK / matrix.span * step_bytes<Q>(matrix); }

  template <int R>
  static OCTAVO_INLINE void tile(const Matrix& matrix, const Input* a, const uint8_t* panel, Vec (&acc)[R][PANEL_VECS],
                                 Prefetch prefetch) {
    const i64 blocks = row_length(matrix.cols);
    const Values values(matrix);
    for (i64 b = 0; b < blocks; b += matrix.span) {
      const Numbers numbers(panel);
      panel += Q::HEADER_BYTES;
      for (i64 i = 0; i < matrix.span; i++, a++, panel += Q::BLOCK_BYTES) {
        for (i64 line = 0; line < prefetch.stride; line += 64) __builtin_prefetch(prefetch.next + line);
        prefetch.next += prefetch.stride;
        add_block<R>(values, numbers, a, blocks, panel, acc);
      }
    }
  }

 private:
#if defined(OCTAVO_BYTE_DOT)
  using Dot = IVec;
  static constexpr int RUN = 1;
  static OCTAVO_INLINE void add_run(Dot& sum, const UVec (&w)[1], const UVec (&x)[1]) {
    sum = add_products(sum, w[0], x[0]);
  }
  static OCTAVO_INLINE IVec total(Dot sum) { return sum; }
#else
  // Sums stay in 16 bits for the whole block, where they fit, or for a run of vectors.
  static constexpr bool NARROW = Values::WORD_RUN == VECTORS;
  static constexpr int RUN = NARROW ? 1 : Values::WORD_RUN;
  // Not std::conditional_t: a template's argument loses the attributes of vectors.
  using Dot = decltype([] {
    if constexpr (NARROW)
      return Words{};
    else
      return IVec{};
  }());
  static OCTAVO_INLINE void add_run(Dot& sum, const UVec (&w)[RUN], const UVec (&x)[RUN]) {
    Words words = Values::SIGNED ? multiply_signed_pairs(w[0], x[0]) : multiply_pairs(w[0], x[0]);
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

  // Scales and minima of a step. In registers, or on the stack: another pointer would cost more, because each row of a
  // tile needs one.
  struct Numbers {
    Vec scale[Q::SUMS][PANEL_VECS], minimum[std::max(1, Q::MINIMA)][PANEL_VECS];
    explicit OCTAVO_INLINE Numbers(const uint8_t* step) {
      for (int c = 0; c < PANEL_VECS; c++) {
        for (int part = 0; part < Q::SUMS; part++) scale[part][c] = Scales::scale(step, part, c);
        for (int part = 0; part < Q::MINIMA; part++) minimum[part][c] = Scales::minimum(step, part, c);
      }
    }
  };

  // Takes off what was added to weights: ADDED times the sum of the activations.
  template <int PART>
  static OCTAVO_INLINE Dot start([[maybe_unused]] const Int8Block& a) {
    if constexpr (Values::ADDED == 0) {
      return Dot{};
    } else {
      const int32_t sum = ((Q::SUMS == 2 ? a.offset[PART] : a.offset[0] + a.offset[1]) >> 5) * Values::ADDED;
      // Half of a lane of words holds it, and with it the products of its half (Centred).
      return (Dot)splat_int(sizeof(Dot{}[0]) == 2 ? sum & 0xffff : sum);
    }
  }

  // product[r][c] = scale * dot product, of each part of a block in turn.
  template <int PART, int R>
  static OCTAVO_INLINE void add_part(const Values& values, const Numbers& numbers, const Input* a, i64 stride,
                                     const uint8_t* block, Vec (&product)[R][PANEL_VECS]) {
    constexpr int FIRST = PART * VECTORS / Q::SUMS, LAST = FIRST + VECTORS / Q::SUMS;
    Dot sums[R][PANEL_VECS];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) sums[r][c] = start<PART>(a[r * stride]);
    add_vectors<FIRST, LAST, R>(values, a, stride, block, sums);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        const Vec exact = __builtin_convertvector(total(sums[r][c]), Vec);
        const Vec scale = numbers.scale[PART][c];
        product[r][c] = PART == 0 ? exact * scale : fma(exact, scale, product[r][c]);
      }
    if constexpr (PART + 1 < Q::SUMS) add_part<PART + 1, R>(values, numbers, a, stride, block, product);
  }

  // What the minimum of a group is multiplied by: the sum of scale * q of its activations.
  template <int PART>
  static OCTAVO_INLINE Vec activations(const Int8Block& a) {
    return splat(Q::MINIMA == 1 ? a.sum : a.scale * (float(a.offset[PART]) * -0.03125f));
  }

  template <int R>
  static OCTAVO_INLINE void add_block(const Values& values, const Numbers& numbers, const Input* a, i64 stride,
                                      const uint8_t* block, Vec (&acc)[R][PANEL_VECS]) {
    Vec product[R][PANEL_VECS];
    add_part<0, R>(values, numbers, a, stride, block, product);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < PANEL_VECS; c++) {
        acc[r][c] = fma(product[r][c], splat(a[r * stride].scale), acc[r][c]);
        if constexpr (Q::MINIMA >= 1)
          acc[r][c] = fma(activations<0>(a[r * stride]), numbers.minimum[0][c], acc[r][c]);
        if constexpr (Q::MINIMA == 2)
          acc[r][c] = fma(activations<1>(a[r * stride]), numbers.minimum[1][c], acc[r][c]);
      }
  }

  // Adds the products of vectors V .. LAST - 1 of a block, RUN at a time.
  template <int V, int LAST, int R>
  static OCTAVO_INLINE void add_vectors(const Values& values, const Input* a, i64 stride, const uint8_t* block,
                                        Dot (&sums)[R][PANEL_VECS]) {
    UVec w[PANEL_VECS][RUN];
#pragma GCC unroll 4
    for (int c = 0; c < PANEL_VECS; c++) {
      w[c][0] = values.template bytes<V>(block, c);
      if constexpr (RUN == 2) w[c][1] = values.template bytes<V + 1>(block, c);
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
    if constexpr (V + RUN < LAST) add_vectors<V + RUN, LAST, R>(values, a, stride, block, sums);
  }
};

// Not inlined: inside with_rows GCC spills accumulators, and the tile loses up to a third of its speed.
template <class M, int R>
static __attribute__((noinline)) void multiply_tile(const Matrix& matrix, const void* a, const uint8_t* panel,
                                                    float* sums, Prefetch prefetch) {
  Vec acc[R][PANEL_VECS] = {};
  M::template tile<R>(matrix, static_cast<const typename M::Input*>(a), panel, acc, prefetch);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < PANEL_VECS; c++) store(sums + r * PANEL + c * W, acc[r][c]);
}

// A microkernel that is known at run time, so that Gemm and its epilogues are compiled once for all of them. Its tiles
// may read panels that are unpacked first, once for many rows: to floats [cols][PANEL].
struct VectorKernel {
  static constexpr int MOST_ROWS = MAX_ROWS;
  using Tile = void (*)(const Matrix&, const void*, const uint8_t*, float*, Prefetch);
  Tile tiles[MAX_ROWS];  // by the number of rows, from 1
  i64 max_tile, row_bytes, panel_bytes, steps;
  void (*unpack)(const Matrix&, const uint8_t*, float*) = nullptr;

  template <class M>
  static VectorKernel of(const Matrix& matrix) {
    static_assert(M::MAX_TILE <= MAX_ROWS);
    return [&]<int... R>(std::integer_sequence<int, R...>) {
      return VectorKernel{{multiply_tile<M, R + 1>...},
                          M::MAX_TILE,
                          M::row_length(matrix.cols) * i64(sizeof(typename M::Input)),
                          M::panel_bytes(matrix),
                          matrix.cols / M::STEP_COLS,
                          nullptr};
    }(std::make_integer_sequence<int, M::MAX_TILE>());
  }

  template <class P>
  static VectorKernel fp8(const Matrix& matrix, i64 rows) {
    using Few = Fp8Kernel<P>;
    if (rows <= Few::MAX_TILE) return of<Few>(matrix);
    VectorKernel many = of<FloatKernel<Unpacked<typename P::Act>>>(matrix);
    many.panel_bytes = Few::panel_bytes(matrix);
    many.unpack = unpack_fp8;
    return many;
  }
};

}  // namespace octavo
