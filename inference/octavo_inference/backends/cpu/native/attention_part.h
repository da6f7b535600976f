// A mixer: grouped-query attention over the KV pool, added to the residual stream.
#pragma once

#include "attention.h"
#include "step.h"

namespace octavo {

// Queries of the step's tokens; their keys and values are in the pool then.
template <class P>
static void project_part(Step<P>& step, const Layer& layer) {
  const Model& m = step.m;
  const Batch& b = step.b;
  const i64 tokens = b.num_tokens, stride = layer.qkv.rows;
  const int32_t* slots = b.slots + layer.group * tokens;
  const KvLayer<P> kv = kv_layer<P>(m, layer);
  step.linear(layer.qkv, {tokens, nullptr, layer.input_norm}, StoreFloats{m.qkv, stride, layer.qkv.bias},
              step.adapted(layer, ADAPTED_QKV));
  step.watch.lap(step.profile.linears);
  step.rows(tokens, [&](i64 t) { rope_and_store(m, layer, kv, m.qkv + t * stride, b.positions[t], slots[t]); });
  step.watch.lap(step.profile.elementwise);
}

// Reads no hidden state, so in parallel layers the feed-forward part comes before it.
template <class P>
static void attention_part(Step<P>& step, const Layer& layer, AttentionPlan& plan) {
  const Model& m = step.m;
  auto* attended = static_cast<typename P::Act*>(m.attended);
  attention<P>(m, step.b, layer, plan, m.qkv, layer.qkv.rows, attended, step.scratch(), step.worker);
  step.watch.lap(step.profile.attention);
  if (m.attention_gate) {
    const i64 width = i64(layer.heads) * m.head_dim, gate = width + 2 * i64(layer.kv_heads) * m.head_dim;
    step.rows(step.b.num_tokens,
              [&](i64 t) { gate_row(attended + t * width, m.qkv + t * layer.qkv.rows + gate, width); });
    step.watch.lap(step.profile.elementwise);
  }
  step.add_linear(layer.output, attended, layer.attention_output_norm, step.adapted(layer, ADAPTED_OUTPUT));
}

}  // namespace octavo
