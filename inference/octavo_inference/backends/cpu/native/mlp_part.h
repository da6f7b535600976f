// A feed-forward part: a gated MLP, added to the residual stream.
#pragma once

#include "step.h"

namespace octavo {

template <class P>
static void mlp_part(Step<P>& step, const Layer& layer) {
  const Model& m = step.m;
  auto* activated = static_cast<typename P::Act*>(m.activated);
  const Gated<typename P::Act> gated{activated, layer.down.cols, layer.gate_up.bias,
                                     m.activation == ACTIVATION_GELU_TANH};

  step.linear(layer.gate_up, {step.b.num_tokens, nullptr, layer.post_norm}, gated);
  step.watch.lap(step.profile.linears);
  step.add_linear(layer.down, activated, layer.mlp_output_norm);
}

}  // namespace octavo
