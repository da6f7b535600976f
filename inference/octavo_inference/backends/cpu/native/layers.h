// The operations between the linears: norms, RoPE, the store into the KV pool.
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

template <class Act>
static void layer_norm(const float* x, const Norm& norm, Act* out, i64 width, float eps) {
  Vec total = {}, squares = {};
  for (i64 i = 0; i < width; i += W) total += load(x + i);
  const Vec mean = splat(sum(total) / float(width));
  for (i64 i = 0; i < width; i += W) {
    const Vec d = load(x + i) - mean;
    squares = fma(d, d, squares);
  }
  const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
  for (i64 i = 0; i < width; i += W) {
    const Vec v = (load(x + i) - mean) * scale * load(norm.weight + i);
    store(out + i, norm.bias ? v + load(norm.bias + i) : v);
  }
}

// A norm of the model's kind, with a weight. `out` may be `x`.
template <class Act>
static void normalize(const Model& m, const Norm& norm, const float* x, Act* out, i64 width) {
  if (m.layer_norm)
    layer_norm(x, norm, out, width, m.norm_eps);
  else
    rms_norm(x, norm.weight, out, width, m.norm_eps);
}

template <class Act>
static void copy_row(const float* x, Act* out, i64 width) {
  for (i64 i = 0; i < width; i += W) store(out + i, load(x + i));
}

// to[i] += from[i]
static inline void add_row(const float* from, float* to, i64 width) {
  for (i64 i = 0; i < width; i += W) store(to + i, load(to + i) + load(from + i));
}

// NaN must propagate.
static inline void clip_row(float* row, float limit, i64 width) {
  for (i64 i = 0; i < width; i += W) {
    const Vec v = load(row + i), low = v < -limit ? splat(-limit) : v;
    store(row + i, low > limit ? splat(limit) : low);
  }
}

static inline void scale_row(float* row, float factor, i64 width) {
  for (i64 i = 0; i < width; i += W) store(row + i, load(row + i) * factor);
}

// row[i] = row[order[i]], in place.
template <class Act>
static void reorder(Act* row, const int32_t* order, i64 width) {
  static thread_local std::vector<Act> before;
  before.assign(row, row + width);
  for (i64 i = 0; i < width; i++) row[i] = before[size_t(order[i])];
}

// residual += scale * norm(row). Overwrites `row`.
static inline void add_normed(const Model& m, const Norm& norm, float* row, float* residual) {
  normalize(m, norm, row, row, m.hidden);
  const Vec scale = splat(m.residual_scale);
  for (i64 i = 0; i < m.hidden; i += W) store(residual + i, fma(scale, load(row + i), load(residual + i)));
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
static KvLayer<P> kv_layer(const Model& m, const Layer& layer) {
  return {static_cast<typename P::Elem*>(layer.kv), layer.kv_heads, m.block_size, m.head_dim};
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

// The norms of q or k.
static inline void normalize_heads(const Model& m, const Layer& layer, const Norm& norm, float* x, int heads) {
  const i64 dim = m.head_dim;
  if (m.qk_norm_whole) return normalize(m, norm, x, x, heads * dim);
  for (int head = 0; head < heads; head++) {
    const i64 at = i64(head) * layer.head_norm_stride;
    normalize(m, {norm.weight + at, norm.bias ? norm.bias + at : nullptr}, x + head * dim, x + head * dim, dim);
  }
}

// Norm, limit and rotation of one token's queries or keys, in place.
static inline void prepare_heads(const Model& m, const Layer& layer, const Norm& norm, float* x, int heads,
                                 int32_t position) {
  if (norm.weight && !m.qk_norm_rotated) normalize_heads(m, layer, norm, x, heads);
  if (m.qkv_clip > 0) clip_row(x, m.qkv_clip, i64(heads) * m.head_dim);
  if (!layer.rope) return;
  const float* table = layer.rope + i64(position) * m.rotary_dim;
  for (int head = 0; head < heads; head++) rotate(x + head * m.head_dim, table, m.rotary_dim);
  if (norm.weight && m.qk_norm_rotated) normalize_heads(m, layer, norm, x, heads);
}

// Prepares one token's queries and keys, in place. Stores its keys and values in slot = block * block_size + offset.
template <class P>
static void rope_and_store(const Model& m, const Layer& layer, const KvLayer<P>& kv, float* qkv, int32_t position,
                           int32_t slot) {
  const int dim = m.head_dim, heads = layer.heads, kv_heads = layer.kv_heads;
  float *keys = qkv + heads * dim, *values = keys + kv_heads * dim;
  typename P::Elem* tile = kv.tile(slot / m.block_size, slot % m.block_size);
  for (int head = 0; head < kv_heads; head++) prefetch_token<P>(dim, slot % TILE, tile + head * kv.tile_elements());
  prepare_heads(m, layer, layer.q_norm, qkv, heads, position);
  prepare_heads(m, layer, layer.k_norm, keys, kv_heads, position);
  if (m.qkv_clip > 0) clip_row(values, m.qkv_clip, i64(kv_heads) * dim);
  if (m.temperature_factor != 0 && !layer.rope) {
    const float floors = std::floor((float(position) + 1) / m.temperature_floor);
    scale_row(qkv, 1 + m.temperature_factor * std::log1p(floors), i64(heads) * dim);
  }
  for (int head = 0; head < kv_heads; head++)
    store_token<P>(keys + head * dim, values + head * dim, dim, slot % TILE, tile + head * kv.tile_elements());
}

}  // namespace octavo
