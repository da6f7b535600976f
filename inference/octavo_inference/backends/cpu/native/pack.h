// Packs stored tensors into panels when a model is loaded.
#pragma once

#include <algorithm>
#include <vector>

#include "abi.h"
#include "operands.h"
#include "panels.h"
#include "quant.h"

namespace octavo {

// The order of the sources' rows in a packed matrix.
enum Arrangement : int32_t {
  CONCATENATED = 0,  // source after source (q, k, v)
  INTERLEAVED = 1,   // each panel: PANEL/2 rows of source 0, then the same rows of source 1 (gate, up)
};

struct RowOf {
  const Source* source;
  i64 row;  // source == nullptr: padding
};

inline RowOf packed_row(const Source* sources, int count, Arrangement arrangement, i64 index) {
  if (arrangement == INTERLEAVED) {
    const i64 panel = index / PANEL, lane = index % PANEL, half = PANEL / 2;
    const Source* source = sources + lane / half;
    const i64 row = panel * half + lane % half;
    return {row < source->rows ? source : nullptr, row};
  }
  for (int s = 0; s < count; s++) {
    if (index < sources[s].rows) return {sources + s, index};
    index -= sources[s].rows;
  }
  return {nullptr, 0};
}

template <class Elem, int GROUP>
static void pack_panel(const Matrix& matrix, const Source* sources, int count, Arrangement arrangement, i64 panel) {
  std::vector<float> row(size_t(matrix.cols));
  Elem* out = static_cast<Elem*>(matrix.data) + panel * PANEL * matrix.cols;
  for (i64 lane = 0; lane < PANEL; lane++) {
    const RowOf from = packed_row(sources, count, arrangement, panel * PANEL + lane);
    if (from.source)
      dequantize_row(*from.source, from.row, row.data());
    else
      std::fill(row.begin(), row.end(), 0.0f);
    for (i64 k = 0; k < matrix.cols; k++) put(out + (k / GROUP * PANEL + lane) * GROUP + k % GROUP, row[size_t(k)]);
  }
}

template <class Q>
static void pack_quantized_panel(const Matrix& matrix, const Source* sources, int count, Arrangement arrangement,
                                 i64 panel) {
  const i64 blocks = matrix.cols / BLOCK;
  uint8_t* out = static_cast<uint8_t*>(matrix.data) + panel * blocks * Q::BLOCK_BYTES;
  for (i64 lane = 0; lane < PANEL; lane++) {
    const RowOf from = packed_row(sources, count, arrangement, panel * PANEL + lane);
    if (!from.source) continue;  // padding: the memory is zeroed
    const uint8_t* row = static_cast<const uint8_t*>(from.source->data) + from.row * from.source->row_bytes;
    WeightBlock block;
    for (i64 b = 0; b < blocks; b++) {
      read_block(from.source->format, row, b, block);
      Q::put(out + b * Q::BLOCK_BYTES, lane, block);
    }
  }
}

}  // namespace octavo
