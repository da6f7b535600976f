// Low-rank changes of products (LoRA): a row's product with W + up * down, where rows have adapters of their own.
//
// First the rows are multiplied with `down`, in runs of rows of the same adapter. The product with W then adds `up` times
// these to the sums of each row, panel by panel: so all weight formats and all epilogues have it.
#pragma once

#include <vector>

#include "abi.h"
#include "simd.h"

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

// Rows first to first + count have the adapter in a slot.
struct AdapterRun {
  int32_t slot, first, count;
};

constexpr int32_t LONGEST_RUN = 32;  // rows: more are another piece of work

// `slots` [rows], -1 for rows without an adapter; null if no row has one.
inline std::vector<AdapterRun> adapter_runs(const int32_t* slots, int32_t rows) {
  std::vector<AdapterRun> runs;
  for (int32_t row = 0; slots && row < rows; row++) {
    if (slots[row] < 0) continue;
    AdapterRun* last = runs.empty() ? nullptr : &runs.back();
    if (last && last->slot == slots[row] && last->first + last->count == row && last->count < LONGEST_RUN)
      last->count++;
    else
      runs.push_back({slots[row], row, 1});
  }
  return runs;
}

// What a product adds to its sums. `number`: of the changed matrix among Adapter::parts. `products` [rows][stride]: rows
// times `down`. Adapters are read in pieces alone: a late thread may find that they are unloaded.
struct RowChanges {
  const Adapter* adapters;
  const int32_t* slots;
  const float* products;
  i64 stride, number;
  int32_t format;

  OCTAVO_INLINE void add(i64 row, i64 panel, float* sums) const {
    if (slots[row] < 0) return;
    const LowRank& change = adapters[slots[row]].parts[number];
    if (change.bias)
      for (int c = 0; c < PANEL_VECS; c++)
        store(sums + c * W, load(sums + c * W) + load(change.bias + panel * PANEL + c * W));
    if (!change.down.rows) return;
    const i64 begin = change.start[panel], count = change.start[panel + 1] - begin;
    const float* factors = products + row * stride + change.first[panel];
    if (format == FORMAT_F32)
      add_rows(static_cast<const float*>(change.up) + begin * PANEL, factors, count, sums);
    else
      add_rows(static_cast<const bf16*>(change.up) + begin * PANEL, factors, count, sums);
  }

 private:
  template <class Elem>
  static OCTAVO_INLINE void add_rows(const Elem* up, const float* factors, i64 count, float* sums) {
    Vec acc[PANEL_VECS];
    for (int c = 0; c < PANEL_VECS; c++) acc[c] = load(sums + c * W);
    for (i64 r = 0; r < count; r++, up += PANEL) {
      const Vec factor = splat(factors[r]);
      for (int c = 0; c < PANEL_VECS; c++) acc[c] = fma(factor, load(up + c * W), acc[c]);
    }
    for (int c = 0; c < PANEL_VECS; c++) store(sums + c * W, acc[c]);
  }
};

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
