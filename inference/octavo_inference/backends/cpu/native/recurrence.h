// A token's step of a linear recurrence: state = decay * state + key ⊗ value, output = queryᵀ state. Columns of a state do
// not depend on each other, so any number of them may be advanced together: the results are the same bits.
//
// A head's state is [columns / BLOCK][rows][BLOCK]. Rows are those of key and query, columns those of value and output. A
// block of 128 rows is 16 KB, and stays in the L1 cache while tokens pass.
#pragma once

#include "simd.h"

namespace octavo {

constexpr int STATE_BLOCK = 32;  // columns; 16 where their number is no multiple of 32

// What a token does to a state of `rows` rows, besides its values.
struct Transition {
  const float *key, *query;  // [rows]
  float decay;
};

// keyᵀ state.
template <int N>
static OCTAVO_INLINE void read_state(const float* state, i64 rows, const float* key, Vec (&sums)[N]) {
  Vec odd[N] = {};  // half of the rows: with one chain of sums the latency of additions binds
  for (Vec& sum : sums) sum = Vec{};
  const auto add = [&](i64 row, Vec(&to)[N]) __attribute__((always_inline)) {
    const Vec k = splat(key[row]);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) to[n] = fma(k, load(state + (row * N + n) * W), to[n]);
  };
  for (i64 row = 0; row < rows; row += 2) add(row, sums), add(row + 1, odd);
  for (int n = 0; n < N; n++) sums[n] += odd[n];
}

template <int N>
static OCTAVO_INLINE void advance_state(float* state, i64 rows, const Transition& by, const Vec (&values)[N],
                                        Vec (&outputs)[N]) {
  const Vec decay = splat(by.decay);
  Vec odd[N] = {};
  for (Vec& sum : outputs) sum = Vec{};
  const auto advance = [&](i64 row, Vec(&to)[N]) __attribute__((always_inline)) {
    const Vec k = splat(by.key[row]), q = splat(by.query[row]);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      float* at = state + (row * N + n) * W;
      const Vec next = fma(k, values[n], load(at) * decay);
      store(at, next);
      to[n] = fma(q, next, to[n]);
    }
  };
  for (i64 row = 0; row < rows; row += 2) advance(row, outputs), advance(row + 1, odd);
  for (int n = 0; n < N; n++) outputs[n] += odd[n];
}

}  // namespace octavo
