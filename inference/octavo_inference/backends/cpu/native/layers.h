// The operations between the linears: RMSNorm, RoPE, the store into the KV pool.
#pragma once

#include "abi.h"
#include "operands.h"

namespace octavo {

template <class Act>
static void rms_norm(const float* x, const float* weight, Act* out, i64 width, float eps) {
  Vec squares = {};
  for (i64 i = 0; i < width; i += W) squares = fma(load(x + i), load(x + i), squares);
  const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
  for (i64 i = 0; i < width; i += W) store(out + i, load(x + i) * scale * load(weight + i));
}

static inline void scale_row(float* row, float factor, i64 width) {
  for (i64 i = 0; i < width; i += W) store(row + i, load(row + i) * factor);
}

// residual += scale * rms_norm(row). Overwrites `row`.
static inline void add_normed(float* row, const float* weight, float* residual, i64 width, float eps, float scale) {
  rms_norm(row, weight, row, width, eps);
  for (i64 i = 0; i < width; i += W) store(residual + i, fma(splat(scale), load(row + i), load(residual + i)));
}

// RoPE of the first `dim` elements of a head, in place. Pairs are (i, i + dim/2), as in safetensors checkpoints.
static inline void rotate(float* head, const float* rope, int dim) {
  const int half = dim / 2, whole = half / W * W;
  for (int i = 0; i < whole; i += W) {
    const Vec a = load(head + i), b = load(head + half + i), c = load(rope + i), s = load(rope + half + i);
    store(head + i, a * c - b * s);
    store(head + half + i, b * c + a * s);
  }
  for (int i = whole; i < half; i++) {
    const float a = head[i], b = head[half + i], c = rope[i], s = rope[half + i];
    head[i] = a * c - b * s;
    head[half + i] = b * c + a * s;
  }
}

// One layer's part of the KV pool. A block holds, for each KV head, K as [dim/G][block][G] and V as [block/G][dim][G].
// So both products of attention read contiguous columns: keys for Q·K, head dimensions for P·V.
template <class P>
struct KvLayer {
  using Elem = typename P::Elem;
  Elem* base;
  i64 kv_heads, block_size, dim;

  i64 block_elements() const { return kv_heads * 2 * block_size * dim; }
  Elem* keys(i64 block, i64 head) const { return base + block * block_elements() + head * 2 * block_size * dim; }
  Elem* values(i64 block, i64 head) const { return keys(block, head) + block_size * dim; }
};

template <class P>
static KvLayer<P> kv_layer(const Model& m, i64 layer) {
  KvLayer<P> kv{static_cast<typename P::Elem*>(m.kv), m.kv_heads, m.block_size, m.head_dim};
  kv.base += layer * m.num_blocks * kv.block_elements();
  return kv;
}

// Applies QK norm and RoPE to one token's queries and keys, in place. Stores its keys and values in
// slot = block * block_size + offset.
template <class P>
static void rope_and_store(const Model& m, const Layer& layer, const KvLayer<P>& kv, float* qkv, int32_t position,
                           int32_t slot) {
  constexpr int G = P::GROUP;
  const int dim = m.head_dim;
  for (int i = 0; i < m.heads + m.kv_heads; i++) {
    float* head = qkv + i * dim;
    const float* norm = i < m.heads ? layer.q_norm : layer.k_norm;
    if (norm) rms_norm(head, norm, head, dim, m.norm_eps);
    if (layer.rope) rotate(head, layer.rope + i64(position) * m.rotary_dim, m.rotary_dim);
  }
  const i64 block = slot / m.block_size, offset = slot % m.block_size;
  for (int head = 0; head < m.kv_heads; head++) {
    const float* k = qkv + (m.heads + head) * dim;
    const float* v = k + m.kv_heads * dim;
    auto* keys = kv.keys(block, head) + offset * G;
    auto* values = kv.values(block, head) + offset / G * dim * G + offset % G;
    for (int i = 0; i < dim; i++) {
      put(keys + i / G * m.block_size * G + i % G, k[i]);
      put(values + i * G, v[i]);
    }
  }
}

}  // namespace octavo
