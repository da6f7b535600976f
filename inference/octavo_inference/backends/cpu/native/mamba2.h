// The recurrence of Mamba-2 (https://arxiv.org/abs/2405.21060): state = exp(-A dt) * state + B ⊗ (dt x), output = Cᵀ state
// + D x. The matrix form of the paper's chunks has as many multiplications in fp32, and sums that depend on the chunks.
#pragma once

#include <algorithm>

#include "recurrence.h"

namespace octavo {

// A head's inputs of a sequence's first token. Those of the next are `stride` elements further.
struct Mamba2Head {
  float* x;  // [columns]; the outputs replace them
  const float *b, *c, *step;
  i64 stride, rows, columns;
  float decay, step_bias, skip, step_least, step_most;

  template <int N>
  void run(float* state, i64 tokens) const {
    for (i64 first = 0; first < tokens; first += W) {
      const i64 count = std::min<i64>(W, tokens - first);
      alignas(64) float steps[W] = {}, decays[W];
      for (i64 t = 0; t < count; t++) steps[t] = step[(first + t) * stride];
      const Vec dt = min(max(softplus(load(steps) + step_bias), splat(step_least)), splat(step_most));
      store(steps, dt);
      store(decays, exp2(dt * decay));
      for (i64 block = 0; block < columns; block += N * W)
        for (i64 t = 0; t < count; t++) {
          const i64 at = (first + t) * stride;
          float* inputs = x + at + block;
          Vec values[N], outputs[N];
          for (int n = 0; n < N; n++) values[n] = load(inputs + n * W) * steps[t];
          advance_state(state + block * rows, rows, Transition{b + at, c + at, decays[t]}, values, outputs);
          for (int n = 0; n < N; n++) store(inputs + n * W, fma(splat(skip), load(inputs + n * W), outputs[n]));
        }
    }
  }
};

}  // namespace octavo
