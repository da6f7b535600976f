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
  with_activation(m, layer, [&]<class F>(F function) {
    if (m.gated)
      step.linear(layer.gate_up, input, Gated<Act, F>{activated, layer.down.cols, layer.gate_up.bias, function});
    else
      step.linear(layer.gate_up, input, Activated<Act, F>{activated, layer.down.cols, layer.gate_up.bias, function});
  });
  step.watch.lap(step.profile.linears);
  step.add_linear(layer.down, activated, layer.mlp_output_norm);
}

}  // namespace octavo
