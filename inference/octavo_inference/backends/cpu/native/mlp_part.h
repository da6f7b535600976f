// A feed-forward part: an MLP, added to the residual stream.
#pragma once

#include "step.h"

namespace octavo {

template <class P>
static void mlp_part(Step<P>& step, const Layer& layer) {
  using Act = typename P::Act;
  const Model& m = step.m;
  auto* activated = static_cast<Act*>(m.activated);
  const Rows<Act> input{step.b.num_tokens, nullptr, layer.post_norm};
  const Matrix& gate_up = layer.gate_up;
  const i64 width = layer.down.cols, changed = step.adapted(layer, ADAPTED_GATE_UP);
  with_activation(m, layer, [&]<class F>(F function) {
    if (m.gated)
      step.linear(gate_up, input, Gated<Act, F>{activated, width, gate_up.bias, function}, changed);
    else
      step.linear(gate_up, input, Activated<Act, F>{activated, width, gate_up.bias, function}, changed);
  });
  step.watch.lap(step.profile.linears);
  step.add_linear(layer.down, activated, layer.mlp_output_norm, step.adapted(layer, ADAPTED_DOWN));
}

}  // namespace octavo
