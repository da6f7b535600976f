// Rows of stored tensors to fp32: plain formats and GGUF blocks of 32 (ggml-quants.h of llama.cpp documents the blocks).
#pragma once

#include "abi.h"
#include "simd.h"

namespace octavo {

inline float half_to_float(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  float value = exponent == 0    ? std::ldexp(float(mantissa), -24)
                : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                 : std::ldexp(float(mantissa + 1024), exponent - 25);
  return h & 0x8000 ? -value : value;
}

inline void dequantize_row(const Source& source, i64 row, float* out) {
  const uint8_t* p = static_cast<const uint8_t*>(source.data) + row * source.row_bytes;
  const i64 cols = source.cols;
  switch (source.format) {
    case FORMAT_F32:
      std::memcpy(out, p, size_t(cols) * 4);
      break;
    case FORMAT_BF16:
      for (i64 i = 0; i < cols; i++) {
        bf16 x;
        std::memcpy(&x, p + 2 * i, 2);
        out[i] = to_float(x);
      }
      break;
    case FORMAT_Q4_0:  // fp16 scale, 16 bytes: low nibbles are elements 0..15, high nibbles 16..31, offset 8
      for (i64 b = 0; b < cols; b += 32, p += 18) {
        const float d = half_to_float(p);
        for (int i = 0; i < 16; i++) {
          out[b + i] = d * float((p[2 + i] & 15) - 8);
          out[b + 16 + i] = d * float((p[2 + i] >> 4) - 8);
        }
      }
      break;
    case FORMAT_Q4_1:  // fp16 scale, fp16 minimum, 16 bytes
      for (i64 b = 0; b < cols; b += 32, p += 20) {
        const float d = half_to_float(p), m = half_to_float(p + 2);
        for (int i = 0; i < 16; i++) {
          out[b + i] = d * float(p[4 + i] & 15) + m;
          out[b + 16 + i] = d * float(p[4 + i] >> 4) + m;
        }
      }
      break;
    case FORMAT_Q8_0:  // fp16 scale, 32 signed bytes
      for (i64 b = 0; b < cols; b += 32, p += 34) {
        const float d = half_to_float(p);
        for (int i = 0; i < 32; i++) out[b + i] = d * float(int8_t(p[2 + i]));
      }
      break;
  }
}

}  // namespace octavo
