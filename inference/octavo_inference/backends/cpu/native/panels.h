// Packed quantized weights: panels of PANEL columns. A panel is a sequence of blocks of 32 along the inner dimension,
// so that a tile reads its panel sequentially. In a block, lane n of vector v holds elements 4v..4v+3 of column n.
//
//   format  for                          bits per weight   block of one panel
//   INT4    Q4_0, Q4_1, Q4_K             5                 [4][PANEL][4] nibbles: v low, v + 4 high; scale, minimum
//   INT6    Q5_0, Q5_1, Q5_K, Q6_K, and  7.5               nibbles as above; [2][PANEL][4] pairs of upper bits, those
//           these fused with formats of                    of v in byte v / 4 at 2 * (v % 4); a scale for each half;
//           INT4                                           minimum
//   INT8    Q8_0, and floats rounded     8.5               [8][PANEL][4] signed bytes; scale
//
// A weight is scale * q + minimum. INT6 stores q + 32: Q6_K has signed q, and so needs no minimum for each scale.
// Scales and minima are fp16 [PANEL]. They are exact for formats that store fp16. For
// Q4_K, Q5_K and Q6_K they are products, rounded with a relative error of up to 2^-11.
#pragma once

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

template <int V>
OCTAVO_INLINE UVec nibbles(const uint8_t* block, int c) {
  const UVec both = load_bits(block + (V % 4 * PANEL + c * W) * 4);
  return (V < 4 ? both : both >> 4) & 0x0f0f0f0fu;
}

inline void put_nibbles(uint8_t* block, i64 lane, const int8_t* q) {
  for (int i = 0; i < 16; i++) block[(i / 4 * PANEL + lane) * 4 + i % 4] = uint8_t((q[i] & 15) | (q[16 + i] & 15) << 4);
}

struct Int4 {
  static constexpr int BLOCK_BYTES = NIBBLE_BYTES + 2 * HALF_BYTES;
  static constexpr int SUMS = 1;      // sums per block, each with its own scale
  static constexpr int WORD_RUN = 8;  // vectors whose products add up without 16-bit overflow: 8 * 2 * 15 * 127
  static constexpr bool SIGNED = false, MINIMUM = true;
  // For tiles: a vector with a number of STORED_BITS bits, ADDED larger than q, from bit start_bit() of each byte on.
  static constexpr int STORED_BITS = 4;
  static constexpr float ADDED = 0;
  template <int V>
  static constexpr int start_bit() {
    return V < 4 ? 0 : 4;
  }
  template <int V>
  static OCTAVO_INLINE UVec fields(const uint8_t* block, int c) {
    return load_bits(block + (V % 4 * PANEL + c * W) * 4);
  }
  template <int PART>
  static OCTAVO_INLINE IVec start(const Int8Block&) {
    return IVec{};
  }
  template <int V>
  static OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) {
    return nibbles<V>(block, c);
  }
  static OCTAVO_INLINE Vec scale(const uint8_t* block, int, int c) { return halves(block + NIBBLE_BYTES + c * W * 2); }
  static OCTAVO_INLINE Vec minimum(const uint8_t* block, int c) {
    return halves(block + NIBBLE_BYTES + HALF_BYTES + c * W * 2);
  }
  static void put(uint8_t* block, i64 lane, const WeightBlock& from) {
    put_nibbles(block, lane, from.q);
    put_half(block + NIBBLE_BYTES + lane * 2, from.scale[0]);
    put_half(block + NIBBLE_BYTES + HALF_BYTES + lane * 2, from.minimum);
  }
};

struct Int6 {
  static constexpr int BLOCK_BYTES = NIBBLE_BYTES + PAIR_BYTES + 3 * HALF_BYTES;
  static constexpr int SUMS = 2;
  static constexpr int WORD_RUN = 2;  // 2 * 2 * 63 * 127
  static constexpr bool SIGNED = false, MINIMUM = true;
  static constexpr int STORED_BITS = 6;
  static constexpr float ADDED = 32;
  template <int>
  static constexpr int start_bit() {
    return 0;
  }
  template <int V>
  static OCTAVO_INLINE UVec fields(const uint8_t* block, int c) {
    return bytes<V>(block, c);
  }
  template <int PART>
  static OCTAVO_INLINE IVec start(const Int8Block& a) {
    return splat_int(a.offset[PART]);
  }
  template <int V>
  static OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) {
    const UVec pairs = load_bits(block + NIBBLE_BYTES + (V / 4 * PANEL + c * W) * 4);
    constexpr int SHIFT = V % 4 * 2 - 4;
    const UVec upper = SHIFT < 0 ? pairs << (SHIFT < 0 ? -SHIFT : 0) : pairs >> (SHIFT < 0 ? 0 : SHIFT);
    return nibbles<V>(block, c) | (upper & 0x30303030u);
  }
  static OCTAVO_INLINE Vec scale(const uint8_t* block, int part, int c) {
    return halves(block + NIBBLE_BYTES + PAIR_BYTES + part * HALF_BYTES + c * W * 2);
  }
  static OCTAVO_INLINE Vec minimum(const uint8_t* block, int c) { return scale(block, 2, c); }
  static void put(uint8_t* block, i64 lane, const WeightBlock& from) {
    put_nibbles(block, lane, from.q);  // adding 32 changes upper bits only
    uint8_t* pairs = block + NIBBLE_BYTES;
    for (int k = 0; k < BLOCK; k++) {
      const int v = k / 4;
      pairs[(v / 4 * PANEL + lane) * 4 + k % 4] |= uint8_t((from.q[k] + 32) >> 4 << (v % 4 * 2));
    }
    for (int part = 0; part < 2; part++)
      put_half(pairs + PAIR_BYTES + part * HALF_BYTES + lane * 2, from.scale[part]);
    put_half(pairs + PAIR_BYTES + 2 * HALF_BYTES + lane * 2, from.minimum);
  }
};

struct Int8 {
  static constexpr int BLOCK_BYTES = PANEL * BLOCK + HALF_BYTES;
  static constexpr int SUMS = 1;
  static constexpr int WORD_RUN = 1;  // 2 * 128 * 127
  static constexpr bool SIGNED = true, MINIMUM = false;
  static constexpr int STORED_BITS = 8;
  static constexpr float ADDED = 128;
  template <int>
  static constexpr int start_bit() {
    return 0;
  }
  template <int V>
  static OCTAVO_INLINE UVec fields(const uint8_t* block, int c) {
    return bytes<V>(block, c) ^ 0x80808080u;
  }
  template <int PART>
  static OCTAVO_INLINE IVec start([[maybe_unused]] const Int8Block& a) {
    if constexpr (SIGNED_OFFSET == 0) return IVec{};
    return (splat_int(a.offset[0]) + splat_int(a.offset[1])) << 2;  // SIGNED_OFFSET is added to each weight
  }
  template <int V>
  static OCTAVO_INLINE UVec bytes(const uint8_t* block, int c) {
    return load_bits(block + (V * PANEL + c * W) * 4);
  }
  static OCTAVO_INLINE Vec scale(const uint8_t* block, int, int c) { return halves(block + PANEL * BLOCK + c * W * 2); }
  static void put(uint8_t* block, i64 lane, const WeightBlock& from) {
    for (int k = 0; k < BLOCK; k++) block[(k / 4 * PANEL + lane) * 4 + k % 4] = uint8_t(from.q[k]);
    put_half(block + PANEL * BLOCK + lane * 2, from.scale[0]);
  }
};

}  // namespace octavo
