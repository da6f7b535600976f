// Packs stored tensors into panels when a model is loaded.
#pragma once

#include <algorithm>
#include <vector>

#include "abi.h"
#include "fp8.h"
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

// The sources have the rows of `count` panels of a matrix from panel `first` on.
struct Packing {
  const Matrix& matrix;
  const Source* sources;
  int source_count;
  Arrangement arrangement;
  i64 first;

  // Calls row(lane, source, row of it) for the lanes of a panel that are not padding, whose memory is zero.
  template <class F>
  void lanes(i64 panel, F&& row) const {
    for (i64 lane = 0; lane < PANEL; lane++) {
      const RowOf from = packed_row(sources, source_count, arrangement, (panel - first) * PANEL + lane);
      if (from.source) row(lane, *from.source, from.row);
    }
  }
};

template <class Elem, int GROUP>
static void pack_floats(const Packing& p, i64 panel) {
  std::vector<float> values(size_t(p.matrix.cols));
  Elem* out = static_cast<Elem*>(p.matrix.data) + panel * PANEL * p.matrix.cols;
  p.lanes(panel, [&](i64 lane, const Source& source, i64 row) {
    dequantize_row(source, row, values.data());
    for (i64 k = 0; k < p.matrix.cols; k++) put(out + (k / GROUP * PANEL + lane) * GROUP + k % GROUP, values[size_t(k)]);
  });
}

// Q has put(step, block of the step, lane, WeightBlock).
template <class Q>
static void pack_quantized(const Packing& p, i64 panel) {
  const i64 blocks = p.matrix.cols / BLOCK, span = p.matrix.span, bytes = step_bytes<Q>(p.matrix);
  uint8_t* out = static_cast<uint8_t*>(p.matrix.data) + panel * (blocks / span * bytes);
  p.lanes(panel, [&](i64 lane, const Source& source, i64 row) {
    const uint8_t* data = static_cast<const uint8_t*>(source.data) + row * source.row_bytes;
    WeightBlock block;
    for (i64 b = 0; b < blocks; b++) {
      if (source.format == FORMAT_GROUPS)
        read_groups(source, row, b, block);
      else
        read_block(source.format, data, b, block);
      Q::put(out + b / span * bytes, b % span, lane, block);
    }
  });
}

static inline void pack_panel(const Packing& p, i64 panel) {
  switch (p.matrix.format) {
    case FORMAT_F32:
      return pack_floats<F32::Elem, F32::GROUP>(p, panel);
    case FORMAT_BF16:
      return pack_floats<Bf16::Elem, Bf16::GROUP>(p, panel);
    case FORMAT_FP8:
      return pack_quantized<Fp8>(p, panel);
  }
  with_layout(p.matrix.format, [&]<class Q>() { pack_quantized<Q>(p, panel); });
}

}  // namespace octavo
