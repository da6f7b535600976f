// Low-rank changes of products (LoRA): a row's product with W + up * down, where rows have adapters of their own.
//
// First the rows are multiplied with `down`, neighbours with the same adapter together. The product with W then adds `up`
// times these to the sums of each tile, panel by panel: so all weight formats and all epilogues have it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "abi.h"
#include "tile_kernel.h"

namespace octavo {

// The matrices of a layer that adapters change, in the order of Adapter::parts.
enum AdaptedPart : int32_t {
  ADAPTED_QKV = 0,
  ADAPTED_OUTPUT = 1,
  ADAPTED_GATE_UP = 2,
  ADAPTED_DOWN = 3,
  ADAPTED_QUERY_UP = 4,
  ADAPTED_STATE_INPUTS = 5,
  ADAPTED_STATE_OUTPUT = 6,
  ADAPTED_PARTS = 7,
};

constexpr int ROWS_AT_ONCE = 6;  // that read an adapter together

// How many rows from `first` on, and before `last`, have the slot of the first one; at most `most`.
inline i64 same_slot(const int32_t* slots, i64 first, i64 last, i64 most) {
  i64 count = 1;
  while (count < most && first + count < last && slots[first + count] == slots[first]) count++;
  return count;
}

constexpr i64 MOST_BLOCK_ROWS = 32;

// out[r * stride + c] = a[r, :] * block[:, c], for 1 to MOST_BLOCK_ROWS rows and the HALF ranks of a block of `down`.
template <class P>
inline void multiply_block(const typename P::Act* a, i64 cols, i64 rows, const typename P::Elem* block, float* out,
                           i64 stride) {
  i64 from = 0;  // of the columns
#if defined(OCTAVO_TILES)
  if constexpr (std::is_same_v<typename P::Elem, bf16>) from = multiply_block_tiles(a, cols, rows, block, out, stride);
#endif
  if (from == cols) return;
  for (i64 row = 0; row < rows; row += ROWS_AT_ONCE)
    with_rows<ROWS_AT_ONCE>(int(std::min<i64>(ROWS_AT_ONCE, rows - row)), [&]<int R>() {
      Vec acc[R][HALF_VECS] = {};
      float* at = out + row * stride;
      if (from)
        for (int r = 0; r < R; r++)
          for (int c = 0; c < HALF_VECS; c++) acc[r][c] = load(at + r * stride + c * W);
      const auto* columns = block + from * HALF;
      const Prefetch none{reinterpret_cast<const char*>(columns), 0};
      dot_tile<P, R, HALF_VECS>(a + row * cols + from, cols, columns, HALF * P::GROUP, (cols - from) / P::GROUP, acc,
                                none);
      for (int r = 0; r < R; r++)
        for (int c = 0; c < HALF_VECS; c++) store(at + r * stride + c * W, acc[r][c]);
    });
}

// What a product adds to its sums. `number`: of the changed matrix among Adapter::parts. `products` [rows][stride]: rows
// times `down`. Adapters are read in pieces alone: a late thread may find that they are unloaded.
struct RowChanges {
  const Adapter* adapters;
  const int32_t* slots;
  const float* products;
  i64 stride, number;
  int32_t format;

  // Adds to the sums [last - first][PANEL] of rows in a panel. Neighbours with the same adapter read `up` together.
  OCTAVO_INLINE void add(i64 first, i64 last, i64 panel, float* sums) const {
    for (i64 row = first, count; row < last; row += count, sums += count * PANEL) {
      count = same_slot(slots, row, last, ROWS_AT_ONCE);
      if (slots[row] >= 0) with_rows<ROWS_AT_ONCE>(int(count), [&]<int R>() { add_rows<R>(row, panel, sums); });
    }
  }

 private:
  template <int R>
  OCTAVO_INLINE void add_rows(i64 row, i64 panel, float* sums) const {
    const LowRank& change = adapters[slots[row]].parts[number];
    if (change.bias)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < PANEL_VECS; c++) {
          float* at = sums + r * PANEL + c * W;
          store(at, load(at) + load(change.bias + panel * PANEL + c * W));
        }
    if (!change.ranks) return;
    for (i64 half = 2 * panel; half < 2 * panel + 2; half++, sums += HALF) {
      const i64 begin = change.start[half], count = change.start[half + 1] - begin;
      const float* factors = products + row * stride + change.first[half];
      if (format == FORMAT_F32)
        add_half<R>(static_cast<const float*>(change.up) + begin * HALF, factors, count, sums);
      else
        add_half<R>(static_cast<const bf16*>(change.up) + begin * HALF, factors, count, sums);
    }
  }

  template <int R, class Elem>
  OCTAVO_INLINE void add_half(const Elem* up, const float* factors, i64 count, float* sums) const {
    Vec acc[R][HALF_VECS];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < HALF_VECS; c++) acc[r][c] = load(sums + r * PANEL + c * W);
    for (i64 rank = 0; rank < count; rank++, up += HALF) {
      Vec columns[HALF_VECS];
      for (int c = 0; c < HALF_VECS; c++) columns[c] = load(up + c * W);
      for (int r = 0; r < R; r++)
        for (int c = 0; c < HALF_VECS; c++)
          acc[r][c] = fma(splat(factors[r * stride + rank]), columns[c], acc[r][c]);
    }
    for (int r = 0; r < R; r++)
      for (int c = 0; c < HALF_VECS; c++) store(sums + r * PANEL + c * W, acc[r][c]);
  }
};

// The place of an id among those of rows, -1 if it is none of them.
inline int32_t place_of(const TokenRows& rows, int32_t id) {
  const int32_t *end = rows.ids + rows.count, *at = std::lower_bound(rows.ids, end, id);
  return at != end && *at == id ? int32_t(at - rows.ids) : -1;
}

// Calls f(row) with the elements of a row, of either format.
template <class F>
inline void with_row(const TokenRows& rows, int32_t place, i64 width, int32_t format, F&& f) {
  if (format == FORMAT_F32)
    f(static_cast<const float*>(rows.rows) + place * width);
  else
    f(static_cast<const bf16*>(rows.rows) + place * width);
}

// Writes an adapter's own row for a token; false if it has none.
inline bool own_embedding(const Adapter& adapter, int32_t token, float* out, i64 width, int32_t format) {
  const int32_t place = place_of(adapter.embedding_rows, token);
  if (place < 0) return false;
  with_row(adapter.embedding_rows, place, width, format, [&](const auto* row) {
    for (i64 i = 0; i < width; i += W) store(out + i, load(row + i));
  });
  return true;
}

// The product of a normed hidden state with a row of an adapter's own head.
template <class Act>
inline float own_logit(const TokenRows& rows, int32_t place, const Act* state, i64 width, int32_t format) {
  Vec acc = {};
  with_row(rows, place, width, format, [&](const auto* row) {
    for (i64 i = 0; i < width; i += W) acc = fma(load(state + i), load(row + i), acc);
  });
  return sum(acc) + (rows.bias ? rows.bias[place] : 0.0f);
}

// Adds an adapter's change of a token's embedding to it.
inline void change_embedding(const Adapter& adapter, int32_t token, float* out, i64 width, float scale) {
  const float* factors = adapter.embedding_down + i64(token) * adapter.embedding_rank;
  for (int32_t r = 0; r < adapter.embedding_rank; r++) {
    const float* up = adapter.embedding_up + r * width;
    const Vec factor = splat(factors[r] * scale);
    for (i64 i = 0; i < width; i += W) store(out + i, fma(factor, load(up + i), load(out + i)));
  }
}

}  // namespace octavo
