// The operations between the linears: RMSNorm, RoPE, the store into the KV pool.
#pragma once

#include <vector>

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

// row *= sigmoid(gate).
template <class Act>
static void gate_row(Act* row, const float* gate, i64 width) {
  for (i64 i = 0; i < width; i += W) store(row + i, load(row + i) * sigmoid(load(gate + i)));
}

// row[i] = row[order[i]], in place.
template <class Act>
static void reorder(Act* row, const int32_t* order, i64 width) {
  static thread_local std::vector<Act> before;
  before.assign(row, row + width);
  for (i64 i = 0; i < width; i++) row[i] = before[size_t(order[i])];
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

constexpr int TILE = 16;  // keys that lie together in the KV pool; block sizes are multiples of it

// One layer's part of the KV pool. A block is [block/TILE][kv_heads] tiles: K as [dim/G][TILE][G], then V as
// [TILE/G][dim][G]. Both products of attention read a tile front to back: keys are the columns of Q·K, head dimensions
// those of P·V. All heads of a tile, and all tiles of a block, are adjacent.
template <class P>
struct KvLayer {
  using Elem = typename P::Elem;
  Elem* base;
  i64 kv_heads, block_size, dim;

  i64 tile_elements() const { return 2 * TILE * dim; }
  i64 block_elements() const { return block_size / TILE * kv_heads * tile_elements(); }
  // K of the first head in the tile that contains slot `offset` of a block. Tiles of the other heads follow.
  Elem* tile(i64 block, i64 offset) const {
    return base + block * block_elements() + offset / TILE * kv_heads * tile_elements();
  }
};

template <class P>
static KvLayer<P> kv_layer(const Model& m, i64 layer) {
  KvLayer<P> kv{static_cast<typename P::Elem*>(m.kv), m.kv_heads, m.block_size, m.head_dim};
  kv.base += layer * m.num_blocks * kv.block_elements();
  return kv;
}

// Writes one token's K and V of a head, [dim] each, to column `offset` of a tile.
template <class P>
static OCTAVO_INLINE void store_token(const float* k, const float* v, int dim, int offset, typename P::Elem* tile) {
  constexpr int G = P::GROUP;
  auto* keys = tile + offset * G;
  auto* values = tile + TILE * dim + offset / G * dim * G + offset % G;
  for (int i = 0; i < dim; i += G)
    for (int j = 0; j < G; j++) {
      put(keys + i * TILE + j, k[i + j]);
      put(values + (i + j) * G, v[i + j]);
    }
}

// Prefetches the cache lines that store_token writes: all lines of K, and a row of V.
template <class P>
static OCTAVO_INLINE void prefetch_token(int dim, int offset, const typename P::Elem* tile) {
  constexpr i64 LINE = 64 / sizeof(typename P::Elem), G = P::GROUP;
  for (i64 at = 0; at < TILE * dim; at += LINE) __builtin_prefetch(tile + at, 1);
  for (i64 at = 0; at < G * dim; at += LINE) __builtin_prefetch(tile + TILE * dim + offset / G * dim * G + at, 1);
}

// Applies QK norm and RoPE to one token's queries and keys, in place. Stores its keys and values in
// slot = block * block_size + offset.
template <class P>
static void rope_and_store(const Model& m, const Layer& layer, const KvLayer<P>& kv, float* qkv, int32_t position,
                           int32_t slot) {
  const int dim = m.head_dim;
  typename P::Elem* tile = kv.tile(slot / m.block_size, slot % m.block_size);
  for (int head = 0; head < m.kv_heads; head++) prefetch_token<P>(dim, slot % TILE, tile + head * kv.tile_elements());
  for (int i = 0; i < m.heads + m.kv_heads; i++) {
    float* head = qkv + i * dim;
    const float* norm = i < m.heads ? layer.q_norm : layer.k_norm;
    if (norm) rms_norm(head, norm, head, dim, m.norm_eps);
    if (layer.rope) rotate(head, layer.rope + i64(position) * m.rotary_dim, m.rotary_dim);
  }
  for (int head = 0; head < m.kv_heads; head++) {
    const float* k = qkv + (m.heads + head) * dim;
    store_token<P>(k, k + m.kv_heads * dim, dim, slot % TILE, tile + head * kv.tile_elements());
  }
}

}  // namespace octavo
