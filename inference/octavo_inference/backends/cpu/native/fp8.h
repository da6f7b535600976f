// Weights of float8_e4m3fn: a sign, four bits of exponent, three of mantissa. The microkernel multiplies them as floats.
//
// Panels are those of panels.h: a step is a header with a scale for each column, then blocks [32][PANEL] of numbers. As
// fp16 the bits of a number mean 1/256 of it, with subnormal numbers as such, so one instruction converts them exactly.
#pragma once

#include "operands.h"
#include "panels.h"

namespace octavo {

constexpr float E4M3_UNIT = 256;  // by which load_e4m3 is to be multiplied

OCTAVO_INLINE Vec load_e4m3(const uint8_t* p) {
  typedef int16_t Wide __attribute__((vector_size(2 * W)));
  // The sign extends into the bits above: it stays in the top one, and is taken from the one below.
#if defined(__AVX512F__)
  const auto bits = (Wide)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__) && !defined(OCTAVO_VECTOR_FLOATS)
  const auto bits = (Wide)_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef int8_t Narrow __attribute__((vector_size(W)));
  Narrow narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  const auto bits = __builtin_convertvector(narrow, Wide);
#endif
  return from_half((HVec)(bits << 7) & 0xbfff);
}

struct Fp8 {
  using Scales = Header<1, 0>;
  static constexpr int HEADER_BYTES = Scales::HEADER_BYTES, BLOCK_BYTES = BLOCK * PANEL;
  static void put(uint8_t* step, i64 index, i64 lane, const WeightBlock& from) {
    Scales::put(step, lane, from);
    for (int k = 0; k < BLOCK; k++) step[HEADER_BYTES + (index * BLOCK + k) * PANEL + lane] = uint8_t(from.q[k]);
  }
  static OCTAVO_INLINE Vec scale(const uint8_t* step, int c) { return E4M3_UNIT * Scales::scale(step, 0, c); }
};

// A float right-hand side in memory, for rows of any type: the products are those of Fp8Kernel.
template <class A>
struct Unpacked : F32 {
  using Act = A;
  template <int>
  static OCTAVO_INLINE Operand broadcast(const Act* a) {
    return splat(to_float(a[0]));
  }
};

// A panel as floats [cols][PANEL].
static inline void unpack_fp8(const Matrix& matrix, const uint8_t* panel, float* out) {
  for (i64 b = 0; b < matrix.cols / BLOCK; b += matrix.span) {
    Vec scale[PANEL_VECS];
    for (int c = 0; c < PANEL_VECS; c++) scale[c] = Fp8::scale(panel, c);
    panel += Fp8::HEADER_BYTES;
    for (i64 k = 0; k < matrix.span * BLOCK; k++, panel += PANEL, out += PANEL)
      for (int c = 0; c < PANEL_VECS; c++) store(out + c * W, load_e4m3(panel + c * W) * scale[c]);
  }
}

// For the rows of a single tile, which prefetches nothing (Gemm). Batch-invariant: elements are added first to last,
// whatever the number of rows is.
template <class P>
struct Fp8Kernel {
  using Input = typename P::Act;
  static constexpr int MAX_TILE = std::min(MAX_ROWS, 4), STEP_COLS = BLOCK;
  static i64 row_length(i64 cols) { return cols; }
  static i64 panel_bytes(const Matrix& matrix) { return matrix.cols / BLOCK / matrix.span * step_bytes<Fp8>(matrix); }

  template <int R>
  static OCTAVO_INLINE void tile(const Matrix& matrix, const Input* a, const uint8_t* panel, Vec (&acc)[R][PANEL_VECS],
                                 Prefetch) {
    for (i64 b = 0; b < matrix.cols / BLOCK; b += matrix.span) {
      Vec scale[PANEL_VECS];
      for (int c = 0; c < PANEL_VECS; c++) scale[c] = Fp8::scale(panel, c);
      panel += Fp8::HEADER_BYTES;
      for (i64 i = 0; i < matrix.span; i++, a += BLOCK) {
#pragma GCC unroll 2
        for (int k = 0; k < BLOCK; k++, panel += PANEL) {
          Vec w[PANEL_VECS];
#pragma GCC unroll 4
          for (int c = 0; c < PANEL_VECS; c++) w[c] = load_e4m3(panel + c * W) * scale[c];
#pragma GCC unroll 4
          for (int r = 0; r < R; r++) {
            const Vec x = splat(to_float(a[r * matrix.cols + k]));
#pragma GCC unroll 4
            for (int c = 0; c < PANEL_VECS; c++) acc[r][c] = fma(x, w[c], acc[r][c]);
          }
        }
      }
    }
  }
};

}  // namespace octavo
