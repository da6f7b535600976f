// Packed quantized weights: panels of PANEL output columns. A panel is a sequence of steps along the inner dimension,
// so that a tile reads its panel sequentially. A step is a header of scales and minima, then the values of the blocks of
// 32 that share them: Matrix::span is how many. In a block, lane n of vector v holds elements 4v..4v+3 of column n.
//
//   format             values   header: scales, minima  for
//   INT4               Nibbles  1, 1                    Q4_0, Q4_1, Q4_K; 4 bits with a minimum or zero point
//   INT4_16            Nibbles  2, 2                    the same in groups of 16: Q2_K
//   INT4_SYMMETRIC     Centred  1, 0                    4 bits with zero point 8
//   INT4_SYMMETRIC_16  Centred  2, 0                    the same in groups of 16: Q3_K
//   CODE4              Codes    1, 0                    NF4, MXFP4, grids of IQ formats
//   CODE4_16           Codes    2, 0                    the same in groups of 16: NVFP4
//   INT6               Sextets  2, 1                    Q5_0, Q5_1, Q5_K, Q6_K
//   INT8               Bytes    1, 0                    Q8_0, 8 bits, and floats rounded
//   INT8_MINIMUM       Bytes    1, 1                    8 bits with a minimum or zero point
//   FP8                         1, 0                    float8_e4m3fn (fp8.h)
//
//   values   bytes of a block in a panel
//   Nibbles  [4][PANEL][4] unsigned nibbles: v low, v + 4 high
//   Centred  the same, 8 larger than q
//   Codes    the same, each the index of a signed byte in Matrix::levels
//   Sextets  nibbles as above of numbers that are 32 larger than q; [2][PANEL][4] pairs of upper bits, those of v in
//            byte v / 4 at 2 * (v % 4)
//   Bytes    [8][PANEL][4] signed bytes
//
// A weight is factor * (scale * q + minimum). Scales and minima are fp16 [PANEL]; two scales are those of the halves of
// each block. `factor` is one float for each row (Matrix::factor), or 1: scales keep their precision whatever their size
// is. They are exact for formats that store fp16, or one scale for a row. Scales and minima that are products (Q4_K,
// NVFP4, zero points) are rounded with a relative error of up to 2^-11.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "int8.h"
#include "quant.h"

namespace octavo {

inline void put_half(uint8_t* p, float value) {
  const uint16_t half = float_to_half(value);
  std::memcpy(p, &half, sizeof half);
}

OCTAVO_INLINE Vec halves(const uint8_t* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); }

constexpr int NIBBLE_BYTES = PANEL * BLOCK / 2, PAIR_BYTES = PANEL * BLOCK / 4, HALF_BYTES = PANEL * 2;
constexpr int VECTORS = 8;  // vectors in a block, of four elements per column

// Values of a block. Members:
//   BLOCK_BYTES   bytes of a block in a panel
//   ADDED         bytes for the dot product are this much larger than q
//   SIGNED        these bytes are signed; WORD_RUN: vectors whose products add up without 16-bit overflow
//   bytes<V>()    vector V of a block for the dot product
// For tiles: fields<V>() is a vector with a number of STORED_BITS bits, TILE_ADDED larger than q, from bit start_bit()
// of each byte on.
struct Nibbles {
  static constexpr int BLOCK_BYTES = NIBBLE_BYTES, ADDED = 0;
  static constexpr bool SIGNED = false;
  static constexpr int WORD_RUN = 8;  // 8 * 2 * 15 * 127
  static constexpr int STORED_BITS = 4, TILE_ADDED = 0;
  explicit Nibbles(const Matrix&) {}
  template <int V>
  static constexpr int start_bit() {
    return V < 4 ? 0 : 4;
  }
  template <int V>
  OCTAVO_INLINE UVec fields(const uint8_t* block, int c) const {
    return load_bits(block + (V % 4 * PANEL + c * W) * 4);
  }
  template <int V>
  OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) const {
    return fields<V>(block, c) >> start_bit<V>() & 0x0f0f0f0fu;
  }
  static void put(uint8_t* block, i64 lane, const int8_t* q) {
    for (int i = 0; i < 16; i++)
      block[(i / 4 * PANEL + lane) * 4 + i % 4] = uint8_t((q[i] & 15) | (q[16 + i] & 15) << 4);
  }
};

// A word starts as -8 times the sum of the block's activations x. Each of its elements then adds u * x, with u up to 15.
// At any time an element of the block counts as (u - 8) * x or as -8 * x: together at most 8 * 127 * 32 = 32,512.
struct Centred : Nibbles {
  static constexpr int ADDED = 8, TILE_ADDED = 8;
  using Nibbles::Nibbles;
};

struct Codes : Nibbles {
  static constexpr int ADDED = SIGNED_OFFSET;
  static constexpr bool SIGNED = SIGNED_OFFSET == 0;
  static constexpr int WORD_RUN = 1;  // 2 * 128 * 127
  static constexpr int STORED_BITS = 8, TILE_ADDED = 128;
  UVec levels;
  explicit Codes(const Matrix& matrix) : Nibbles(matrix), levels(table(matrix.levels, SIGNED_OFFSET)) {}
  template <int>
  static constexpr int start_bit() {
    return 0;
  }
  template <int V>
  OCTAVO_INLINE UVec fields(const uint8_t* block, int c) const {
    const UVec q = bytes<V>(block, c);
    return SIGNED_OFFSET ? q : q ^ 0x80808080u;
  }
  template <int V>
  OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) const {
    return look_up(levels, Nibbles::bytes<V>(block, c));
  }
};

struct Sextets : Nibbles {
  static constexpr int BLOCK_BYTES = NIBBLE_BYTES + PAIR_BYTES, ADDED = 32;
  static constexpr int WORD_RUN = 2;  // 2 * 2 * 63 * 127
  static constexpr int STORED_BITS = 6, TILE_ADDED = 32;
  using Nibbles::Nibbles;
  template <int>
  static constexpr int start_bit() {
    return 0;
  }
  template <int V>
  OCTAVO_INLINE UVec fields(const uint8_t* block, int c) const {
    return bytes<V>(block, c);
  }
  template <int V>
  OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) const {
    const UVec pairs = load_bits(block + NIBBLE_BYTES + (V / 4 * PANEL + c * W) * 4);
    constexpr int SHIFT = V % 4 * 2 - 4;
    const UVec upper = SHIFT < 0 ? pairs << (SHIFT < 0 ? -SHIFT : 0) : pairs >> (SHIFT < 0 ? 0 : SHIFT);
    return Nibbles::bytes<V>(block, c) | (upper & 0x30303030u);
  }
  static void put(uint8_t* block, i64 lane, const int8_t* q) {
    Nibbles::put(block, lane, q);  // adding 32 changes upper bits only
    uint8_t* pairs = block + NIBBLE_BYTES;
    for (int k = 0; k < BLOCK; k++) {
      const int v = k / 4;
      pairs[(v / 4 * PANEL + lane) * 4 + k % 4] |= uint8_t((q[k] + 32) >> 4 << (v % 4 * 2));
    }
  }
};

struct Bytes {
  static constexpr int BLOCK_BYTES = PANEL * BLOCK, ADDED = SIGNED_OFFSET;
  static constexpr bool SIGNED = SIGNED_OFFSET == 0;
  static constexpr int WORD_RUN = 1;  // 2 * 128 * 127
  static constexpr int STORED_BITS = 8, TILE_ADDED = 128;
  explicit Bytes(const Matrix&) {}
  template <int>
  static constexpr int start_bit() {
    return 0;
  }
  template <int V>
  OCTAVO_INLINE UVec fields(const uint8_t* block, int c) const {
    return load_bits(block + (V * PANEL + c * W) * 4) ^ 0x80808080u;
  }
  template <int V>
  OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) const {
    const UVec q = load_bits(block + (V * PANEL + c * W) * 4);
    return SIGNED_OFFSET ? q ^ 0x80808080u : q;
  }
  static void put(uint8_t* block, i64 lane, const int8_t* q) {
    for (int k = 0; k < BLOCK; k++) block[(k / 4 * PANEL + lane) * 4 + k % 4] = uint8_t(q[k]);
  }
};

// Scales and minima of a step: of its blocks, or two of the halves of a block.
template <int SUMS, int MINIMA>
struct Header {
  static constexpr int HEADER_BYTES = (SUMS + MINIMA) * HALF_BYTES;
  static OCTAVO_INLINE Vec scale(const uint8_t* step, int part, int c) {
    return halves(step + part * HALF_BYTES + c * W * 2);
  }
  static OCTAVO_INLINE Vec minimum(const uint8_t* step, int part, int c) { return scale(step, SUMS + part, c); }
  static void put(uint8_t* step, i64 lane, const WeightBlock& from) {
    for (int part = 0; part < SUMS; part++) put_half(step + part * HALF_BYTES + lane * 2, from.scale[part]);
    for (int part = 0; part < MINIMA; part++)
      put_half(step + (SUMS + part) * HALF_BYTES + lane * 2, from.minimum[part]);
  }
};

template <class V, int SUMS_, int MINIMA_>
struct Grouped {
  using Values = V;
  using Scales = Header<SUMS_, MINIMA_>;
  static constexpr int SUMS = SUMS_, MINIMA = MINIMA_;  // sums of a block, each with its own scale
  static constexpr int HEADER_BYTES = Scales::HEADER_BYTES, BLOCK_BYTES = V::BLOCK_BYTES;
  static void put(uint8_t* step, i64 index, i64 lane, const WeightBlock& from) {
    Scales::put(step, lane, from);
    V::put(step + HEADER_BYTES + index * BLOCK_BYTES, lane, from.q);
  }
};

template <class Q>
inline i64 step_bytes(const Matrix& matrix) {
  return Q::HEADER_BYTES + matrix.span * Q::BLOCK_BYTES;
}

// Calls f.template operator()<Q>() with the layout of a format of integers. Another format ends the process: a matrix
// that is left out would give wrong results.
template <class F>
inline void with_layout(int32_t format, F&& f) {
  switch (format) {
    case FORMAT_INT4:
      return f.template operator()<Grouped<Nibbles, 1, 1>>();
    case FORMAT_INT4_16:
      return f.template operator()<Grouped<Nibbles, 2, 2>>();
    case FORMAT_INT4_SYMMETRIC:
      return f.template operator()<Grouped<Centred, 1, 0>>();
    case FORMAT_INT4_SYMMETRIC_16:
      return f.template operator()<Grouped<Centred, 2, 0>>();
    case FORMAT_CODE4:
      return f.template operator()<Grouped<Codes, 1, 0>>();
    case FORMAT_CODE4_16:
      return f.template operator()<Grouped<Codes, 2, 0>>();
    case FORMAT_INT6:
      return f.template operator()<Grouped<Sextets, 2, 1>>();
    case FORMAT_INT8:
      return f.template operator()<Grouped<Bytes, 1, 0>>();
    case FORMAT_INT8_MINIMUM:
      return f.template operator()<Grouped<Bytes, 1, 1>>();
  }
  std::abort();
}

}  // namespace octavo
