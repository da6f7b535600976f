// A mixer: latent attention over the KV pool, added to the residual stream.
#pragma once

#include "latent_attention.h"
#include "step.h"

namespace octavo {

template <class P>
static void latent_part(Step<P>& step, const Layer& layer, LatentPlan& plan) {
  using Act = typename P::Act;
  const Model& m = step.m;
  const Batch& b = step.b;
  const Latent& l = m.latent;
  const LatentLayer<P> pool = latent_layer<P>(m, layer);
  const i64 tokens = b.num_tokens, stride = layer.qkv.rows;
  const i64 queries_stride = l.query_rank ? layer.query_up.rows : stride;
  const i64 compressed = l.query_rank ? l.query_rank : i64(l.heads) * (l.nope + l.rope);  // offset in a row of qkv
  float* queries = l.query_rank ? l.queries : m.qkv;
  auto *normed = static_cast<Act*>(m.normed), *attended = static_cast<Act*>(m.attended);
  auto *by_head = static_cast<Act*>(l.by_head), *absorbed = static_cast<Act*>(l.absorbed);

  step.linear(layer.qkv, {tokens, nullptr, layer.input_norm}, StoreFloats{m.qkv, stride, nullptr},
              step.adapted(layer, ADAPTED_QKV));
  if (l.query_rank) {
    step.rows(tokens, [&](i64 t) {
      rms_norm(m.qkv + t * stride, layer.query_norm, normed + t * l.query_rank, l.query_rank, l.norm_eps);
    });
    step.linear(layer.query_up, {tokens, normed, {}}, StoreFloats{queries, queries_stride, nullptr},
                step.adapted(layer, ADAPTED_QUERY_UP));
  }
  step.watch.lap(step.profile.linears);
  step.rows(tokens, [&](i64 t) {
    prepare_latent(m, layer, pool, queries + t * queries_stride, m.qkv + t * stride + compressed, t, tokens,
                   b.positions[t], b.slots[t]);
  });
  step.watch.lap(step.profile.elementwise);
  multiply_heads<P>(layer.key_up, m.latent.heads, by_head, tokens, absorbed, l.rank + l.rope, m.score_scale * LOG2_E,
                    step.worker);
  step.watch.lap(step.profile.linears);
  latent_attention(m, b, pool, plan, step.scratch(), step.worker);
  step.watch.lap(step.profile.attention);
  multiply_heads<P>(layer.value_up, m.latent.heads, by_head, tokens, attended, l.value, 1.0f, step.worker);
  step.watch.lap(step.profile.linears);
  step.add_linear(layer.output, attended, layer.attention_output_norm, step.adapted(layer, ADAPTED_OUTPUT));
}

}  // namespace octavo
