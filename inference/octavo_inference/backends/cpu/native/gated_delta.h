// The gated delta rule (https://arxiv.org/abs/2412.06464): S = exp(-A softplus(a)) S, S += k ⊗ beta (v - kᵀ S), output =
// qᵀ S, with keys and queries of length 1, and queries divided by the root of their size.
#pragma once

#include <algorithm>
#include <cmath>

#include "recurrence.h"

namespace octavo {

// A head's inputs of a sequence's first token. Those of the next are `stride` elements further.
struct GatedDeltaHead {
  float* value;  // [columns]; the outputs replace them
  const float *key, *query, *beta, *step;
  i64 stride, rows, columns;
  float decay, step_bias;

  template <int N>
  void run(float* state, i64 tokens) const {
    for (i64 first = 0; first < tokens; first += W) {
      const i64 count = std::min<i64>(W, tokens - first);
      alignas(64) float betas[W] = {}, steps[W] = {}, decays[W], key_scale[W], query_scale[W];
      for (i64 t = 0; t < count; t++) {
        const i64 at = (first + t) * stride;
        betas[t] = beta[at];
        steps[t] = step[at];
        key_scale[t] = inverse_length(key + at);
        query_scale[t] = inverse_length(query + at) / std::sqrt(float(rows));
      }
      store(betas, sigmoid(load(betas)));
      store(decays, exp2(softplus(load(steps) + step_bias) * decay));
      for (i64 block = 0; block < columns; block += N * W)
        for (i64 t = 0; t < count; t++) {
          const i64 at = (first + t) * stride;
          float *values = value + at + block, *part = state + block * rows;
          const float seen = decays[t] * key_scale[t], written = betas[t] * key_scale[t];
          Vec changes[N], outputs[N];
          read_state(part, rows, key + at, changes);
          for (int n = 0; n < N; n++) changes[n] = fma(changes[n], splat(-seen), load(values + n * W)) * written;
          advance_state(part, rows, Transition{key + at, query + at, decays[t]}, changes, outputs);
          for (int n = 0; n < N; n++) store(values + n * W, outputs[n] * query_scale[t]);
        }
    }
  }

 private:
  float inverse_length(const float* x) const {
    Vec squares = {};
    for (i64 i = 0; i < rows; i += W) squares = fma(load(x + i), load(x + i), squares);
    return 1.0f / std::sqrt(sum(squares) + 1e-6f);
  }
};

}  // namespace octavo
