// Attention over latents, for prefill chunks and decode alike: every head reads the same keys and values.
//
// As in attention.h, a row is a pair of query token and head, keys are taken in chunks and summed in segments, and a
// row's result does not depend on how its sequence is divided. The pool holds a latent once, in the layout of keys. An
// item has many rows, and rearranges the values of a chunk once for all of them.
#pragma once

#include "attention.h"
#include "latent.h"

namespace octavo {

// Work of one thread: rows [first_row, first_row + rows) of a sequence, (token, head) pairs with heads fastest, and
// their keys in [first_key, keys).
struct LatentItem {
  int32_t seq, first_row, rows, first_key, keys;
  int32_t split, segment;  // as of an AttentionItem
};
inline i64 work(const LatentItem& item) { return i64(item.keys - item.first_key) * item.rows; }

constexpr int LATENT_ROWS = 4 * MAX_ROWS;  // most rows of an item

// The items of a step, and the partial sums of the layer that is being computed.
class LatentPlan {
 public:
  LatentPlan(const Model& m, const Batch& b, int team_size)
      : partials_(m.partials), partial_floats_(sum_floats(m.latent.rank) + TILE) {
    if (m.latent.rank == 0) return;
    for (int seq = 0; seq < b.num_seqs; seq++) add_sequence(m, b, seq);
    finished_ = std::vector<std::atomic<int32_t>>(splits_.size());
    std::stable_sort(items_.begin(), items_.end(), [](auto& a, auto& c) { return work(a) > work(c); });
    piece_ends_ = cut_pieces(items_, team_size);
  }

  i64 pieces() const { return i64(piece_ends_.size()); }
  const LatentItem* begin(i64 piece) const { return items_.data() + (piece ? piece_ends_[size_t(piece) - 1] : 0); }
  const LatentItem* end(i64 piece) const { return items_.data() + piece_ends_[size_t(piece)]; }
  // Partial sums of a row, as sum_floats says, then their maximum.
  float* partial(const LatentItem& item, int segment, int row) const {
    return partials_ + splits_[size_t(item.split)].partials + (i64(segment) * item.rows + row) * partial_floats_;
  }
  int segments(const LatentItem& item) const { return splits_[size_t(item.split)].segments; }
  // True for the last of a split's items in this layer.
  bool finish(const LatentItem& item) {
    const int before = finished_[size_t(item.split)].fetch_add(1, std::memory_order_acq_rel);
    return (before + 1) % segments(item) == 0;
  }

 private:
  void add_sequence(const Model& m, const Batch& b, int seq) {
    const int length = b.seq_len[seq], queries = b.query_start[seq + 1] - b.query_start[seq];
    const int rows = queries * m.latent.heads;
    const int tiles = (rows + LATENT_ROWS - 1) / LATENT_ROWS, segments = (length + SEGMENT - 1) / SEGMENT;
    const i64 partials = i64(segments) * rows * partial_floats_;
    const bool split = queries == 1 && segments > 1 && partials_size_ + partials <= m.partial_floats;
    for (int tile = 0; tile < tiles; tile++) {
      const int first = int(i64(rows) * tile / tiles), last = int(i64(rows) * (tile + 1) / tiles);
      const int keys = length - queries + (last - 1) / m.latent.heads + 1;
      if (!split) {
        items_.push_back({seq, first, last - first, 0, keys, -1, 0});
        continue;
      }
      for (int segment = 0; segment < segments; segment++)
        items_.push_back({seq, first, last - first, segment * SEGMENT, std::min((segment + 1) * SEGMENT, keys),
                          int(splits_.size()), segment});
      splits_.push_back({segments, partials_size_});
      partials_size_ += i64(segments) * (last - first) * partial_floats_;
    }
  }

  float* const partials_;
  const i64 partial_floats_;
  i64 partials_size_ = 0;
  std::vector<LatentItem> items_;
  std::vector<i64> piece_ends_;
  std::vector<AttentionSplit> splits_;
  std::vector<std::atomic<int32_t>> finished_;
};

// Rows that are multiplied together.
#if defined(OCTAVO_TILES)
template <class P>
constexpr int LATENT_GROUP = BY_TILE_REGISTERS<P> ? TILE_ROWS : MAX_ROWS;
#else
template <class P>
constexpr int LATENT_GROUP = MAX_ROWS;
#endif
constexpr int WIDEST_GROUP = MAX_ROWS > TILE ? MAX_ROWS : TILE;

// Scratch floats of a thread: for each row of an item sums, those of earlier segments, and both maxima; for rows that
// are multiplied together scores and p; the values of a chunk.
inline i64 latent_scratch(int rank) {
  return 2 * LATENT_ROWS * i64(sum_floats(rank) + 1) + 2 * WIDEST_GROUP * CHUNK + CHUNK * i64(rank);
}

// Exchanges lanes DISTANCE apart with those of the vector DISTANCE further, for all power-of-two distances: transposes.
template <int DISTANCE, class V, int N>
static OCTAVO_INLINE void transpose(V (&rows)[N]) {
  [&]<int... L>(std::integer_sequence<int, L...>) {
    for (int i = 0; i < N; i++) {
      if (i & DISTANCE) continue;
      const V a = rows[i], b = rows[i + DISTANCE];
      rows[i] = __builtin_shufflevector(a, b, (L & DISTANCE ? N + L - DISTANCE : L)...);
      rows[i + DISTANCE] = __builtin_shufflevector(a, b, (L & DISTANCE ? N + L : L + DISTANCE)...);
    }
  }(std::make_integer_sequence<int, N>());
  if constexpr (DISTANCE > 1) transpose<DISTANCE / 2>(rows);
}

typedef uint64_t QuadVec __attribute__((vector_size(4 * W), may_alias));

// The first `rank` elements of a tile, [dim/G][TILE][G], as [TILE/G][rank][G].
template <class P>
static void rearrange_values(const typename P::Elem* tile, int rank, typename P::Elem* values) {
  if constexpr (P::GROUP == 1) {
    for (int at = 0; at < rank; at += W)
      for (int key = 0; key < TILE; key += W) {
        Vec rows[W];
        for (int i = 0; i < W; i++) rows[i] = load(tile + (at + i) * TILE + key);
        transpose<W / 2>(rows);
        for (int i = 0; i < W; i++) store(values + (key + i) * rank + at, rows[i]);
      }
  } else {
    constexpr int N = W / 2;  // pairs of keys, or of elements, in a vector
    for (int at = 0; at < rank; at += W)
      for (int key = 0; key < TILE; key += W) {
        QuadVec rows[N];
        for (int i = 0; i < N; i++) {
          QuadVec v;  // two elements of each of two keys
          std::memcpy(&v, tile + ((at / 2 + i) * TILE + key) * 2, sizeof v);
          const QuadVec inner = v & 0x0000ffffffff0000u;
          rows[i] = (v ^ inner) | (inner << 16 & 0x0000ffff00000000u) | (inner >> 16 & 0x00000000ffff0000u);
        }
        transpose<N / 2>(rows);
        for (int i = 0; i < N; i++) std::memcpy(values + ((key / 2 + i) * rank + at) * 2, &rows[i], sizeof rows[i]);
      }
  }
}

// What the items of one layer share: absorbed queries [tokens][heads][dim], scaled, and the sums of latents
// [heads][tokens][rank].
template <class P>
struct LatentAttention {
  const Model& m;
  const Batch& b;
  const LatentLayer<P>& pool;
  const typename P::Act* queries;
  typename P::Act* out;
};

template <class P>
static OCTAVO_INLINE ChunkTiles<P> latent_tiles(const LatentAttention<P>& layer, const LatentItem& item, int start) {
  const int32_t* table = layer.b.block_table + i64(item.seq) * layer.b.table_width;
  const auto tile = [&](int key) {
    return layer.pool.tile(table[key / layer.m.block_size], key % layer.m.block_size);
  };
  return {{tile(start), tile(std::min(start + TILE, item.keys - 1))}};
}

// One chunk for R rows. `ahead` is prefetched. limit[r] is the end of the keys of row r, `width` the stride of `sums`.
template <class P, int R>
static void add_latents(const typename P::Act* q, int dim, int rank, const ChunkTiles<P>& keys,
                        const ChunkTiles<P>& values, const ChunkTiles<P>& ahead, int start, const int* limit,
                        float* sums, float* top, float* scores, typename P::Act* p) {
  constexpr int VECS = VALUE_VECS<R>, TILES = SCORE_TILES<R>;
  const int width = sum_floats(rank);
  if constexpr (BY_TILE_REGISTERS<P>) {
    shape_attention_tiles(R);
    score_by_tiles(q, dim, keys.at, scores, CHUNK);
  } else {
    for (int tile = 0; tile < 2; tile += TILES) score_tiles<P, R, TILES>(q, dim, keys, tile, scores, ahead);
  }
  const bool whole = start + CHUNK <= limit[0];
  float rescale[R];
  for (int r = 0; r < R; r++) {
    float* weights = sums + r * width + rank;
    rescale[r] = whole ? soften<true>(scores + r * CHUNK, 0, CHUNK, top[r], weights, p + r * CHUNK)
                       : soften<false>(scores + r * CHUNK, 0, limit[r] - start, top[r], weights, p + r * CHUNK);
  }
  if constexpr (BY_TILE_REGISTERS<P>)
    add_values_by_tiles<R>(p, values.at, rank, rescale, sums, width);
  else
    add_all_values<P, R, VECS>(p, values, rank, 0, rescale, sums, values);
}

// Computes an item. `next` is the thread's next item, or the same.
template <class P>
static void attend_latents(const LatentAttention<P>& layer, LatentPlan& plan, const LatentItem& item,
                           const LatentItem& next, float* scratch) {
  using Act = typename P::Act;
  const Model& m = layer.m;
  const Batch& b = layer.b;
  const int rank = m.latent.rank, dim = latent_dim(m.latent), width = sum_floats(rank), rows = item.rows;
  float* sums = scratch;
  float* merged = sums + LATENT_ROWS * width;
  float* top = merged + LATENT_ROWS * width;
  float* merged_top = top + LATENT_ROWS;
  float* scores = merged_top + LATENT_ROWS;
  Act* p = reinterpret_cast<Act*>(scores + WIDEST_GROUP * CHUNK);
  auto* memory = reinterpret_cast<typename P::Elem*>(scores + 2 * WIDEST_GROUP * CHUNK);
  const ChunkTiles<P> values{{memory, memory + TILE * rank}};

  const i64 first_token = b.query_start[item.seq];
  const int context_before = b.seq_len[item.seq] - (b.query_start[item.seq + 1] - b.query_start[item.seq]);
  int limit[LATENT_ROWS];
  for (int r = 0; r < rows; r++) limit[r] = context_before + (item.first_row + r) / m.latent.heads + 1;
  const Act* queries = layer.queries + (first_token * m.latent.heads + item.first_row) * dim;
  const auto restart = [&] {
    clear(sums, rows * width);
    std::fill(top, top + rows, MASKED);
  };
  restart();
  bool merging = false;
  const int groups = (rows + LATENT_GROUP<P> - 1) / LATENT_GROUP<P>;
  ChunkTiles<P> coming = latent_tiles(layer, item, item.first_key);
  for (int start = item.first_key; start < item.keys; start += CHUNK) {
    if (start % SEGMENT == 0 && start > item.first_key) {
      if (!merging) {
        clear(merged, rows * width);
        std::fill(merged_top, merged_top + rows, MASKED);
        merging = true;
      }
      for (int r = 0; r < rows; r++) merge(merged + r * width, merged_top[r], sums + r * width, top[r], rank);
      restart();
    }
    const ChunkTiles<P> tiles = coming;
    coming = start + CHUNK < item.keys ? latent_tiles(layer, item, start + CHUNK)
                                       : latent_tiles(layer, next, next.first_key);
    for (int i = 0; i < 2; i++) rearrange_values<P>(tiles.at[i], rank, const_cast<typename P::Elem*>(values.at[i]));
    if constexpr (BY_TILE_REGISTERS<P>)
      for (int i = 0; i < 2; i++) prefetch_row(coming.at[i], TILE * dim);
    for (int group = 0; group < groups; group++) {
      const int first = rows * group / groups, count = rows * (group + 1) / groups - first;
      with_rows<LATENT_GROUP<P>>(count, [&]<int R>() {
        add_latents<P, R>(queries + i64(first) * dim, dim, rank, tiles, values, group ? tiles : coming, start,
                          limit + first, sums + first * width, top + first, scores, p);
      });
    }
  }

  const auto finish = [&](int row, const float* from, float) {
    const float inverse = 1.0f / sum(load(from + rank));
    const int number = item.first_row + row;
    const i64 token = first_token + number / m.latent.heads, head = number % m.latent.heads;
    Act* out = layer.out + (head * b.num_tokens + token) * rank;
    for (int i = 0; i < rank; i += W) store(out + i, load(from + i) * inverse);
  };
  finish_item(plan, item, rows, rank, merging ? merged : nullptr, merged_top, sums, top, finish);
}

// Called by every thread of the team.
template <class P>
static void latent_attention(const Model& m, const Batch& b, const LatentLayer<P>& pool, LatentPlan& plan,
                             float* scratch, Worker& worker) {
  using Act = typename P::Act;
  const LatentAttention<P> layer{m, b, pool, static_cast<const Act*>(m.latent.absorbed),
                                 static_cast<Act*>(m.latent.by_head)};
  worker.deal(plan.pieces(), [&](i64 piece) {
    const LatentItem* end = plan.end(piece);
    for (const LatentItem* item = plan.begin(piece); item < end; item++)
      attend_latents<P>(layer, plan, *item, item + 1 < end ? item[1] : *item, scratch);
  });
}

}  // namespace octavo
