// A mixer: a state layer. Its outputs are in `mixed`, until the layer adds them to the residual stream.
#pragma once

#include "state_layer.h"
#include "step.h"

namespace octavo {

template <class P>
static void state_part(Step<P>& step, const Layer& layer) {
  using Act = typename P::Act;
  const Model& m = step.m;
  const Matrix& inputs = layer.state.inputs;
  const StateMixer<Act> mixer(m, step.b, layer.state, m.state_inputs, static_cast<Act*>(m.mixed));

  step.linear(inputs, {step.b.num_tokens, nullptr, layer.input_norm},
              StoreFloats{m.state_inputs, inputs.rows, inputs.bias}, step.adapted(layer, ADAPTED_STATE_INPUTS));
  step.watch.lap(step.profile.linears);
  mixer.convolve(step.worker);
  if (mixer.recurs()) {
    mixer.recur(step.worker);
    step.rows(step.b.num_tokens, [&](i64 t) { mixer.norm(t); });
  }
  step.watch.lap(step.profile.states);
}

}  // namespace octavo
