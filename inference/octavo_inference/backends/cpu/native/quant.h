// Dequantizes rows of stored tensors to fp32, and reads blocks of them as 32 integers with scales and minima.
// llama.cpp's ggml-quants.c documents the blocks.
#pragma once

#include <algorithm>

#include "abi.h"
#include "simd.h"

namespace octavo {

inline float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  float value = exponent == 0    ? std::ldexp(float(mantissa), -24)
                : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                 : std::ldexp(float(mantissa + 1024), exponent - 25);
  return h & 0x8000 ? -value : value;
}

inline float half_to_float(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}

// Element i of a row of floats that starts at p.
inline float float_at(int32_t format, const uint8_t* p, i64 i) {
  if (format == FORMAT_BF16) {
    bf16 x;
    std::memcpy(&x, p + 2 * i, 2);
    return to_float(x);
  }
  float x;
  std::memcpy(&x, p + 4 * i, 4);
  return x;
}

// Rounds to the nearest fp16, ties to even. Beyond the range of fp16: its largest finite value.
inline uint16_t float_to_half(float value) {
  const float size = std::fabs(value);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (!(size < 65504.0f)) return sign | 0x7bff;
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  // In units of the last place. A carry out of the mantissa correctly increments the exponent.
  const int units = int(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return sign | uint16_t(units + (exponent + 14) * 1024);
}

// 32 weights: scale[i / 16] * q[i] + minimum[i / 16]. q is 0..15 in 4-bit formats, 0..31 in 5-bit formats, -32..31 in
// Q6_K, and any int8 in Q8_0 and of floats. The last three have no minimum. Of groups, q is what the file has, and the
// packed format knows what it means.
struct WeightBlock {
  int8_t q[32];
  float scale[2], minimum[2];

  void all(float d, float m) {
    scale[0] = scale[1] = d;
    minimum[0] = minimum[1] = m;
  }
};

// Low nibbles are elements 0..15, high nibbles 16..31.
inline void read_nibbles(const uint8_t* p, int8_t* q) {
  for (int i = 0; i < 16; i++) {
    q[i] = int8_t(p[i] & 15);
    q[16 + i] = int8_t(p[i] >> 4);
  }
}

inline void read_fifth_bits(const uint8_t* p, int8_t* q) {
  for (int i = 0; i < 32; i++) q[i] = int8_t(q[i] | (p[i / 8] >> (i % 8) & 1) << 4);
}

// Unpacks the 6-bit scale and minimum of sub-block j from the 12 bytes that hold eight of each.
inline void read_scale_min(const uint8_t* p, i64 j, int& scale, int& minimum) {
  if (j < 4) {
    scale = p[j] & 63;
    minimum = p[j + 4] & 63;
  } else {
    scale = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    minimum = p[j + 4] >> 4 | (p[j] >> 6) << 4;
  }
}

// Q4_K and Q5_K: d, dmin, 12 bytes of scales, [32 fifth bits,] 128 bytes of nibbles; 8 sub-blocks.
inline void read_k(const uint8_t* p, i64 j, bool fifth, WeightBlock& out) {
  int scale, minimum;
  read_scale_min(p + 4, j, scale, minimum);
  out.all(half_to_float(p) * float(scale), -(half_to_float(p + 2) * float(minimum)));
  const uint8_t *high = p + 16, *nibbles = high + (fifth ? 32 : 0) + j / 2 * 32;
  for (int i = 0; i < 32; i++) {
    out.q[i] = int8_t(j % 2 ? nibbles[i] >> 4 : nibbles[i] & 15);
    if (fifth) out.q[i] = int8_t(out.q[i] | (high[i] >> j & 1) << 4);
  }
}

// Q6_K: 128 bytes of nibbles, 64 of pairs of upper bits, 16 signed scales (one per 16 elements), d.
inline void read_q6_k(const uint8_t* p, i64 j, WeightBlock& out) {
  const i64 half = j / 4, quarter = j % 4;
  const uint8_t *nibbles = p + half * 64 + quarter % 2 * 32, *pairs = p + 128 + half * 32;
  const float d = half_to_float(p + 208);
  for (int i = 0; i < 32; i++) {
    const int low = quarter < 2 ? nibbles[i] & 15 : nibbles[i] >> 4;
    out.q[i] = int8_t((low | (pairs[i] >> (2 * quarter) & 3) << 4) - 32);
  }
  for (int i = 0; i < 2; i++) out.scale[i] = d * float(int8_t(p[192 + half * 8 + quarter * 2 + i]));
  out.minimum[0] = out.minimum[1] = 0.0f;
}

// Rounds 32 floats as Q8_0 does: the one of largest magnitude becomes ±127. NaN becomes -127 times the largest scale.
inline void round_block(const float* x, WeightBlock& out) {
  float peak = 0;
  for (int i = 0; i < 32; i++) peak = x[i] == x[i] ? std::max(peak, std::fabs(x[i])) : INFINITY;
  const float scale = half_to_float(float_to_half(peak / 127.0f)), inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < 32; i++)
    out.q[i] = int8_t(std::nearbyint(std::fmin(std::fmax(x[i] * inverse, -127.0f), 127.0f)));
  out.all(scale, 0.0f);
}

// Reads block `b`, 32 elements, of a row of groups.
inline void read_groups(const Source& source, i64 row, i64 b, WeightBlock& out) {
  std::memcpy(out.q, static_cast<const uint8_t*>(source.data) + row * source.row_bytes + b * 32, 32);
  for (int part = 0; part < 2; part++) {
    const i64 at = (row * source.cols + b * 32 + part * 16) / source.group;
    out.scale[part] = source.scale[at];
    out.minimum[part] = source.minimum ? source.minimum[at] : 0.0f;
  }
}

// Reads block `b`, 32 elements, of a row that starts at p. Floats are rounded to 8 bits.
inline void read_block(int32_t format, const uint8_t* p, i64 b, WeightBlock& out) {
  switch (format) {
    case FORMAT_F32:
    case FORMAT_BF16: {
      float x[32];
      for (i64 i = 0; i < 32; i++) x[i] = float_at(format, p, b * 32 + i);
      return round_block(x, out);
    }
    case FORMAT_Q4_0:  // d, nibbles, offset 8
      p += b * 18;
      read_nibbles(p + 2, out.q);
      return out.all(half_to_float(p), -8.0f * half_to_float(p));
    case FORMAT_Q4_1:  // d, minimum, nibbles
      p += b * 20;
      read_nibbles(p + 4, out.q);
      return out.all(half_to_float(p), half_to_float(p + 2));
    case FORMAT_Q5_0:  // d, 4 bytes of fifth bits, nibbles, offset 16
      p += b * 22;
      read_nibbles(p + 6, out.q);
      read_fifth_bits(p + 2, out.q);
      return out.all(half_to_float(p), -16.0f * half_to_float(p));
    case FORMAT_Q5_1:  // d, minimum, 4 bytes of fifth bits, nibbles
      p += b * 24;
      read_nibbles(p + 8, out.q);
      read_fifth_bits(p + 4, out.q);
      return out.all(half_to_float(p), half_to_float(p + 2));
    case FORMAT_Q8_0:  // d, signed bytes
      p += b * 34;
      std::memcpy(out.q, p + 2, 32);
      return out.all(half_to_float(p), 0.0f);
    case FORMAT_Q4_K:
      return read_k(p + b / 8 * 144, b % 8, false, out);
    case FORMAT_Q5_K:
      return read_k(p + b / 8 * 176, b % 8, true, out);
    case FORMAT_Q6_K:
      return read_q6_k(p + b / 8 * 210, b % 8, out);
  }
}

inline void dequantize_row(const Source& source, i64 row, float* out) {
  const uint8_t* p = static_cast<const uint8_t*>(source.data) + row * source.row_bytes;
  if (source.format == FORMAT_F32 || source.format == FORMAT_BF16) {
    for (i64 i = 0; i < source.cols; i++) out[i] = float_at(source.format, p, i);
  } else {
    WeightBlock block;
    for (i64 b = 0; b < source.cols / 32; b++) {
      read_block(source.format, p, b, block);
      for (int i = 0; i < 32; i++) *out++ = block.scale[i / 16] * float(block.q[i]) + block.minimum[i / 16];
    }
  }
}

}  // namespace octavo
