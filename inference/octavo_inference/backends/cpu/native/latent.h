// Multi-head latent attention: the pool's layout, and a token's way from the projections to the pool and to attention.
//
// Every token takes the absorbed form, in prompts too: a head's query is multiplied by its keys' expansion, so that it
// meets the latents themselves, and a head's sum of latents by its values' expansion. Expanded keys and values would
// need fewer products in long prompts, but they round differently, and a token's result must not depend on whether it
// was a decode.
#pragma once

#include "gemm.h"
#include "layers.h"

namespace octavo {

// One layer's part of the KV pool. A block is [block/TILE] tiles of [dim/G][TILE][G]: a tile is the right-hand side of
// Q·K for all heads. Its first elements are the values, too (latent_attention.h).
template <class P>
struct LatentLayer {
  using Elem = typename P::Elem;
  Elem* base;
  i64 block_size, dim;

  Elem* tile(i64 block, i64 offset) const { return base + (block * block_size + offset / TILE * TILE) * dim; }
};

inline int latent_dim(const Latent& l) { return l.rank + l.rope; }

template <class P>
static LatentLayer<P> latent_layer(const Model& m, const Layer& layer) {
  return {static_cast<typename P::Elem*>(layer.kv), m.block_size, latent_dim(m.latent)};
}

// Normalizes one token's latent and rotates its shared key, both in `compressed`, and stores them in the pool. Rotates
// the queries of its heads [nope, rope]: the first part goes to `by_head`, as input of the keys' expansion, the second
// one, scaled, to the end of the head's row of `absorbed`.
template <class P>
static void prepare_latent(const Model& m, const Layer& layer, const LatentLayer<P>& pool, float* queries,
                           float* compressed, i64 token, i64 tokens, int32_t position, int32_t slot) {
  using Act = typename P::Act;
  constexpr int G = P::GROUP;
  const Latent& l = m.latent;
  const float* angles = layer.rope ? layer.rope + i64(position) * l.rope : nullptr;
  const auto turn = [&](float* part) {
    if (angles) rotate(part, angles, l.rope);
  };
  rms_norm(compressed, layer.latent_norm, compressed, l.rank, l.norm_eps);
  turn(compressed + l.rank);
  auto* column = pool.tile(slot / m.block_size, slot % m.block_size) + slot % TILE * G;
  for (i64 i = 0; i < pool.dim; i += G)
    for (int j = 0; j < G; j++) put(column + i * TILE + j, compressed[i + j]);

  const float scale = m.score_scale * LOG2_E;
  for (i64 head = 0; head < m.latent.heads; head++) {
    float* query = queries + head * (l.nope + l.rope);
    turn(query + l.nope);
    Act* plain = static_cast<Act*>(l.by_head) + (head * tokens + token) * l.nope;
    Act* rotated = static_cast<Act*>(l.absorbed) + (token * m.latent.heads + head) * pool.dim + l.rank;
    for (i64 i = 0; i < l.nope; i += W) store(plain + i, load(query + i));
    for (i64 i = 0; i < l.rope; i += W) store(rotated + i, load(query + l.nope + i) * scale);
  }
}

// Stores the products of one head in its part of a token's row.
template <class Act>
struct StoreHead {
  Act* out;
  i64 stride;
  float scale;
  OCTAVO_INLINE void expect(i64 row, i64 col) const { expect_lines(out + row * stride + col, PANEL * sizeof(Act)); }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    for (int c = 0; c < PANEL_VECS; c++) store(out + row * stride + col + c * W, load(sums + c * W) * scale);
  }
};

// Multiplies each head's rows of `a` [heads][tokens][cols] by its own rows of `matrix`: floats, in whole panels. Head h
// of a token is written to out + token * heads * width + h * width. Called by every thread of the team.
template <class P>
static void multiply_heads(const Matrix& matrix, int heads, const typename P::Act* a, i64 tokens, typename P::Act* out,
                           i64 width, float scale, Worker& worker) {
  using Epilogue = StoreHead<typename P::Act>;
  const i64 element = matrix.format == FORMAT_F32 ? sizeof(float) : sizeof(bf16);
  Matrix first = matrix;
  first.rows = matrix.rows / heads;
  const Epilogue any{out, heads * width, scale};
  const i64 pieces = Product<P, Epilogue>(first, Input{a, nullptr}, tokens, any).pieces();
  worker.share(heads * pieces, [&](i64 i) {
    const i64 head = i / pieces;
    Matrix own = first;
    own.data = static_cast<uint8_t*>(matrix.data) + head * first.rows * matrix.cols * element;
    const Epilogue epilogue{out + head * width, heads * width, scale};
    Product<P, Epilogue>(own, Input{a + head * tokens * matrix.cols, nullptr}, tokens, epilogue).piece(i % pieces);
  });
}

}  // namespace octavo
