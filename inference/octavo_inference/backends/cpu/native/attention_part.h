// A mixer: grouped-query attention over the KV pool, added to the residual stream.
#pragma once

#include "attention.h"
#include "step.h"

namespace octavo {

template <class P>
static void attention_part(Step<P>& step, const Layer& layer, const KvLayer<P>& kv, AttentionPlan& plan) {
  const Model& m = step.m;
  const Batch& b = step.b;
  const i64 tokens = b.num_tokens, qkv_stride = layer.qkv.rows;
  auto* attended = static_cast<typename P::Act*>(m.attended);

  step.linear(layer.qkv, {tokens, nullptr, layer.input_norm}, StoreFloats{m.qkv, qkv_stride, layer.qkv.bias});
  step.watch.lap(step.profile.linears);
  step.rows(tokens, [&](i64 t) { rope_and_store(m, layer, kv, m.qkv + t * qkv_stride, b.positions[t], b.slots[t]); });
  step.watch.lap(step.profile.elementwise);
  attention(m, b, kv, layer.window, plan, m.qkv, qkv_stride, attended, step.scratch(), step.worker);
  step.watch.lap(step.profile.attention);
  step.add_linear(layer.output, attended, layer.attention_output_norm);
}

}  // namespace octavo
