// Paged attention with online softmax, for prefill chunks and decode alike.
//
// A row is a pair of query token and head. Up to MAX_ROWS rows that share a KV head are computed together: K and V are
// loaded once for all of them. Keys are taken in chunks of two tiles of the KV pool. Sums start from zero in every
// segment of SEGMENT keys, and the segments of a row are merged in order. Chunks and segments count from the start of
// the sequence, so a row's result does not depend on how its sequence is divided into items.
#pragma once

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <vector>

#include "layers.h"
#include "threads.h"
#include "tile_attention.h"

namespace octavo {

constexpr int CHUNK = 2 * TILE;     // keys per iteration
constexpr int SEGMENT = 512;        // keys per partial sum
constexpr int ITEM_ROWS = 48;       // most rows of an item, over all of its KV heads
constexpr float MASKED = -1e30f;

// Work of one thread: rows [first_row, first_row + rows) of a sequence, for each of `heads` KV heads. These are (token,
// head in group) pairs with heads fastest. They attend to keys [first_key, keys).
struct AttentionItem {
  int32_t seq, first_head, heads, first_row, rows, first_key, keys;
  int32_t split, segment;  // index of the AttentionSplit, or -1, and of the item's segment in it
};

// Heads of a sequence whose segments are separate items. The item that finishes last merges them.
struct AttentionSplit {
  int32_t segments;
  i64 partials;  // offset of [segments][heads][rows] partial sums
};

// Sums of a row: its `dim` weighted values, then the weights themselves in W lanes.
inline int sum_floats(int dim) { return dim + W; }

// The items of a step, and the partial sums of the layer that is being computed.
class AttentionPlan {
 public:
  AttentionPlan(const Model& m, const Layer& layer, const Batch& b, int team_size);

  // A piece is a run of items. A thread prefetches across the items of its run.
  i64 pieces() const { return i64(piece_ends_.size()); }
  const AttentionItem* begin(i64 piece) const { return items_.data() + (piece ? piece_ends_[size_t(piece) - 1] : 0); }
  const AttentionItem* end(i64 piece) const { return items_.data() + piece_ends_[size_t(piece)]; }

  // Partial sums of a row, as sum_floats says, then their maximum.
  float* partial(const AttentionItem& item, int segment, int row) const {
    const AttentionSplit& split = splits_[size_t(item.split)];
    return partials_ + split.partials + (i64(segment) * item.heads * item.rows + row) * partial_floats_;
  }
  int segments(const AttentionItem& item) const { return splits_[size_t(item.split)].segments; }
  // True for the last of a split's items in this layer.
  bool finish(const AttentionItem& item) {
    const int before = finished_[size_t(item.split)].fetch_add(1, std::memory_order_acq_rel);
    return (before + 1) % segments(item) == 0;
  }

 private:
  void add_sequence(const Model& m, const Batch& b, int seq, int heads);

  const int kv_heads_, group_;  // heads of queries in a group
  float* const partials_;
  const i64 partial_floats_;
  i64 partials_size_ = 0;
  std::vector<AttentionItem> items_;
  std::vector<i64> piece_ends_;
  std::vector<AttentionSplit> splits_;
  std::vector<std::atomic<int32_t>> finished_;
};

inline i64 work(const AttentionItem& item) { return i64(item.keys - item.first_key) * item.heads * item.rows; }

// The ends of pieces of sorted items. Pieces shrink towards the end, so that all threads end at about the same time.
template <class Item>
static std::vector<i64> cut_pieces(const std::vector<Item>& items, int team_size) {
  std::vector<i64> ends;
  i64 left = 0;
  for (const Item& item : items) left += work(item);
  for (size_t at = 0; at < items.size();) {
    const i64 wanted = left / (2 * team_size);
    i64 taken = work(items[at++]);
    while (at < items.size() && taken + work(items[at]) <= wanted) taken += work(items[at++]);
    ends.push_back(i64(at));
    left -= taken;
  }
  return ends;
}

inline AttentionPlan::AttentionPlan(const Model& m, const Layer& layer, const Batch& b, int team_size)
    : kv_heads_(layer.kv_heads), group_(layer.heads / layer.kv_heads), partials_(m.partials),
      partial_floats_(sum_floats(m.head_dim) + TILE) {
  // All KV heads together read whole tiles, front to back. With little to share out, each head is an item of its own.
  i64 segments = 0;
  for (int seq = 0; seq < b.num_seqs; seq++) segments += (b.seq_len[seq] + SEGMENT - 1) / SEGMENT;
  const int heads = segments < 4 * team_size ? 1 : std::clamp(ITEM_ROWS / group_, 1, kv_heads_);
  for (int seq = 0; seq < b.num_seqs; seq++) add_sequence(m, b, seq, heads);
  finished_ = std::vector<std::atomic<int32_t>>(splits_.size());
  std::stable_sort(items_.begin(), items_.end(), [](auto& a, auto& c) { return work(a) > work(c); });
  piece_ends_ = cut_pieces(items_, team_size);
}

inline void AttentionPlan::add_sequence(const Model& m, const Batch& b, int seq, int heads) {
  const int length = b.seq_len[seq];
  const int queries = b.query_start[seq + 1] - b.query_start[seq], rows = queries * group_;
  const int tiles = (rows + MAX_ROWS - 1) / MAX_ROWS, segments = (length + SEGMENT - 1) / SEGMENT;
  // Where partial sums do not fit, an item merges all segments of its head itself, to the same bits.
  const i64 partials = segments > 1 ? i64(segments) * kv_heads_ * rows * partial_floats_ : 0;
  if (tiles > 1 || partials_size_ + partials > m.partial_floats) {
    for (int tile = 0; tile < tiles; tile++) {
      const int first = int(i64(rows) * tile / tiles), last = int(i64(rows) * (tile + 1) / tiles);
      const int keys = m.bidirectional ? length : length - queries + (last - 1) / group_ + 1;
      for (int head = 0; head < kv_heads_; head++)
        items_.push_back({seq, head, 1, first, last - first, 0, keys, -1, 0});
    }
    return;
  }
  heads = std::min(heads, std::max(1, ITEM_ROWS / rows));
  for (int head = 0; head < kv_heads_; head += heads) {
    const int count = std::min(heads, kv_heads_ - head), split = segments > 1 ? int(splits_.size()) : -1;
    for (int segment = 0; segment < segments; segment++) {
      const int first = segment * SEGMENT, last = std::min(first + SEGMENT, length);
      items_.push_back({seq, head, count, 0, rows, first, last, split, segment});
    }
    if (split < 0) continue;
    splits_.push_back({segments, partials_size_});
    partials_size_ += i64(segments) * count * rows * partial_floats_;
  }
}

// What the items of one layer share.
template <class P>
struct AttentionLayer {
  const Model& m;
  const Batch& b;
  const Layer& own;
  const KvLayer<P> kv;
  const float* qkv;
  i64 qkv_stride;
  typename P::Act* attended;
};

// Scratch floats of a thread. For each row of an item: sums, q (activation type, at most 4 bytes), maximum. For each of
// one KV head: merged sums, scores, p.
inline i64 attention_scratch(int dim) {
  return ITEM_ROWS * (i64(sum_floats(dim)) + dim + 1) + MAX_ROWS * (i64(sum_floats(dim)) + 2 * CHUNK);
}

// K of a chunk's two tiles, for one head. V follows K.
template <class P>
struct ChunkTiles {
  const typename P::Elem* at[2];

  ChunkTiles head(int head, int dim) const {
    const i64 skipped = i64(head) * 2 * TILE * dim;
    return {{at[0] + skipped, at[1] + skipped}};
  }
  ChunkTiles values(int dim) const { return {{at[0] + TILE * dim, at[1] + TILE * dim}}; }
};

// A chunk's tiles for the first head of an item. Beyond the last key, the tile is that of the last key; before
// `first_key`, that of this key: the blocks of earlier ones may belong to another sequence.
template <class P>
static OCTAVO_INLINE ChunkTiles<P> chunk_tiles(const AttentionLayer<P>& layer, const AttentionItem& item, int first_key,
                                               int start) {
  const int32_t* table = layer.b.block_table + (i64(layer.own.group) * layer.b.num_seqs + item.seq) * layer.b.table_width;
  const auto tile = [&](int key) {
    const int block_size = layer.m.block_size;
    return layer.kv.tile(table[key / block_size], key % block_size);
  };
  const int last = item.keys - 1;
  const ChunkTiles<P> tiles{{tile(std::clamp(first_key / TILE * TILE, start, last)), tile(std::min(start + TILE, last))}};
  return tiles.head(item.first_head, layer.m.head_dim);
}

// With these instructions, dot_tile computes pairs of rows at once. It prefetches as much as the loops below.
#if defined(OCTAVO_ARM_BF16)
template <class P, int R>
constexpr bool ROW_PAIRS = R > 2 && P::GROUP == 2;
#else
template <class P, int R>
constexpr bool ROW_PAIRS = false;
#endif

// Prefetches, line by line, the row of `next` at the same place as a row that is being read. Into L2: its misses are
// more than those that L1 can have in flight, and it needs as many to keep the memory busy.
template <class Elem>
static OCTAVO_INLINE void prefetch_row(const Elem* next, int elements) {
  const char* line = reinterpret_cast<const char*>(next);
#pragma GCC unroll 8
  for (int at = 0; at < elements * int(sizeof(Elem)); at += 64) __builtin_prefetch(line + at, 0, 2);
}

template <class P, int STEP, int R, int TILES>
static OCTAVO_INLINE void score_step(const typename P::Act* q, int dim, const typename P::Elem* const (&keys)[TILES],
                                     Vec (&acc)[R][TILES * TILE / W]) {
  constexpr int NV = TILE / W;
  typename P::Operand columns[TILES * NV];
#pragma GCC unroll 8
  for (int c = 0; c < TILES * NV; c++) columns[c] = P::template operand<STEP>(keys[c / NV] + c % NV * W * P::GROUP);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) {
    auto x = P::template broadcast<STEP>(q + r * dim);
#pragma GCC unroll 8
    for (int c = 0; c < TILES * NV; c++) acc[r][c] = P::multiply_add(acc[r][c], x, columns[c]);
  }
}

// scores[r][column] = q[r] · k[column] for the columns of TILES tiles, beginning with `tile`.
template <class P, int R, int TILES>
static OCTAVO_INLINE void score_tiles(const typename P::Act* q, int dim, const ChunkTiles<P>& k, int tile,
                                      float* scores, const ChunkTiles<P>& next) {
  constexpr int NV = TILES * TILE / W, ROW = TILE * P::GROUP;
  const typename P::Elem *keys[TILES], *ahead[TILES];
  for (int i = 0; i < TILES; i++) keys[i] = k.at[tile + i], ahead[i] = next.at[tile + i];
  Vec acc[R][NV] = {};
  if constexpr (ROW_PAIRS<P, R>) {
    static_assert(TILES == 1);
    dot_tile<P, R, NV>(q, dim, keys[0], ROW, dim / P::GROUP, acc, Prefetch{reinterpret_cast<const char*>(ahead[0]), 64});
  } else {
    for (int g = 0; g < dim / P::GROUP; g++) {
      score_step<P, 0, R, TILES>(q, dim, keys, acc);
      if constexpr (P::STEPS == 2) score_step<P, 1, R, TILES>(q, dim, keys, acc);
      q += P::GROUP;
      for (int i = 0; i < TILES; i++) {
        prefetch_row(ahead[i], ROW);
        keys[i] += ROW, ahead[i] += ROW;
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) store(scores + r * CHUNK + tile * TILE + c * W, acc[r][c]);
}

// sums[r][column] = rescale[r] * sums[r][column] + p[r] · v[column] for NV vectors of columns, the first at `column`.
template <class P, int R, int NV>
static OCTAVO_INLINE void add_values(const typename P::Act* p, const ChunkTiles<P>& v, int dim, int column,
                                     const float* rescale, float* sums, const ChunkTiles<P>& next) {
  constexpr int G = P::GROUP;
  Vec acc[R][NV] = {};
  for (int tile = 0; tile < 2; tile++) {
    const typename P::Elem *values = v.at[tile] + column * G, *ahead = next.at[tile] + column * G;
    if constexpr (ROW_PAIRS<P, R>) {
      static_assert(NV * W == TILE);
      const Prefetch prefetch{reinterpret_cast<const char*>(ahead), i64(sizeof *ahead) * dim * G};
      dot_tile<P, R, NV>(p + tile * TILE, CHUNK, values, dim * G, TILE / G, acc, prefetch);
    } else {
      for (int g = 0; g < TILE / G; g++, values += dim * G, ahead += dim * G) {
        const auto* weights = p + tile * TILE + g * G;
        dot_step<P, 0>(weights, CHUNK, values, acc);
        if constexpr (P::STEPS == 2) dot_step<P, 1>(weights, CHUNK, values, acc);
        prefetch_row(ahead, NV * W * G);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) {
      float* at = sums + r * sum_floats(dim) + column + c * W;
      store(at, fma(load(at), splat(rescale[r]), acc[r][c]));
    }
}

// Adds as many columns as possible in passes of NV vectors, then the others in narrower ones.
template <class P, int R, int NV>
static OCTAVO_INLINE void add_all_values(const typename P::Act* p, const ChunkTiles<P>& v, int dim, int column,
                                         const float* rescale, float* sums, const ChunkTiles<P>& next) {
  for (; column + NV * W <= dim; column += NV * W) add_values<P, R, NV>(p, v, dim, column, rescale, sums, next);
  if constexpr (NV * W > TILE)
    if (column < dim) add_all_values<P, R, NV / 2>(p, v, dim, column, rescale, sums, next);
}

// Tiles of few rows have more columns, so that enough independent sums are in flight to hide the FMA latency.
template <int R>
constexpr int SCORE_TILES = W == 16 || R <= 2 ? 2 : 1;
template <int R>
constexpr int VALUE_VECS = W == 16 ? (R <= 2 ? 8 : R <= 6 ? 4 : 2) : R <= 2 ? 32 / W : 16 / W;

// Both products by tiles instead: for bf16, where the processor has them.
#if defined(OCTAVO_TILES)
template <class P>
constexpr bool BY_TILE_REGISTERS = std::is_same_v<P, Bf16>;
static_assert(TILE == TILE_ROWS && W == TILE_ROWS && CHUNK == STEP_COLS);
#else
template <class P>
constexpr bool BY_TILE_REGISTERS = false;
void shape_attention_tiles(int rows);  // for the compiler only: never called
#endif

// Prefetches half a chunk, its keys or its values.
template <class P>
static OCTAVO_INLINE void prefetch_half(const ChunkTiles<P>& next, int dim) {
  for (int i = 0; i < 2; i++)
    for (int at = 0; at < TILE * dim; at += TILE * P::GROUP) prefetch_row(next.at[i] + at, TILE * P::GROUP);
}

// One step of online softmax in base 2, for one row of scores. Adds the chunk's weights to `weights`, and returns the
// factor that rescales the previous sums of values. Keys outside [from, to) are masked. WHOLE: no key is.
template <bool WHOLE, class Act>
static OCTAVO_INLINE float soften(const float* scores, int from, int to, float& top, float* weights, Act* p) {
  constexpr int VECS = CHUNK / W;
  const auto seen = [&](int c, Vec x, Vec otherwise) {
    if (WHOLE) return x;
    const IVec lane = lane_numbers() + c * W;
    return ((lane >= from) & (lane < to)) ? x : otherwise;
  };
  Vec s[VECS], peaks = splat(MASKED), total = load(weights);
  for (int c = 0; c < VECS; c++) {
    s[c] = seen(c, load(scores + c * W), splat(MASKED));
    peaks = max(peaks, s[c]);
  }
  const float before = top, now = std::max(before, highest(peaks));
  float rescale = 1.0f;
  if (now > before) {
    rescale = std::exp2(before - now);
    total *= rescale;
    top = now;
  }
  for (int c = 0; c < VECS; c++) {
    Vec e = seen(c, exp2(s[c] - now), Vec{});
    total += e;
    store(p + c * W, e);
  }
  store(weights, total);
  return rescale;
}

// Adds the sums of a later segment to those of earlier ones.
static OCTAVO_INLINE void merge(float* sums, float& top, const float* later, float later_top, int dim) {
  const float now = std::max(top, later_top);
  const float scale = top < now ? std::exp2(top - now) : 1.0f;
  const float later_scale = later_top < now ? std::exp2(later_top - now) : 1.0f;
  for (int i = 0; i < sum_floats(dim); i += W)
    store(sums + i, fma(load(later + i), splat(later_scale), load(sums + i) * scale));
  top = now;
}

static OCTAVO_INLINE void clear(float* values, int count) {
  for (int i = 0; i < count; i += W) store(values + i, Vec{});
}

// Ends an item. Each row is a merge of earlier segments, where there is any, and of the last one; of split keys the item
// that ends last merges all. finish(row, sums, top) writes a row's result.
template <class Plan, class Item, class Finish>
static OCTAVO_INLINE void finish_item(Plan& plan, const Item& item, int rows, int dim, float* merged, float* merged_top,
                                      float* sums, const float* top, const Finish& finish) {
  const int width = sum_floats(dim);
  if (item.split < 0) {
    for (int row = 0; row < rows; row++) {
      if (merged) merge(merged + row * width, merged_top[row], sums + row * width, top[row], dim);
      finish(row, (merged ? merged : sums) + row * width, merged ? merged_top[row] : top[row]);
    }
    return;
  }
  for (int row = 0; row < rows; row++) {
    float* partial = plan.partial(item, item.segment, row);
    std::copy(sums + row * width, sums + (row + 1) * width, partial);
    partial[width] = top[row];
  }
  if (!plan.finish(item)) return;
  for (int row = 0; row < rows; row++) {
    float highest = MASKED;
    clear(sums, width);
    for (int segment = 0; segment < plan.segments(item); segment++) {
      const float* partial = plan.partial(item, segment, row);
      merge(sums, highest, partial, partial[width], dim);
    }
    finish(row, sums, highest);
  }
}

struct KeyRange {
  int first, end;
};

// The keys that a token attends to in a sequence of `length` tokens, in chunks or in both directions.
static __attribute__((noinline)) KeyRange visible(const Model& m, const Layer& layer, int position, int length) {
  if (m.bidirectional) {
    const int reach = layer.window ? layer.window / 2 : length;
    return {std::max(0, position - reach), std::min(length, position + reach + 1)};
  }
  const int first = layer.window ? std::max(0, position + 1 - layer.window) : 0;
  return {layer.chunk ? std::max(first, position / layer.chunk * layer.chunk) : first, position + 1};
}

// The part of a head's sink in the sum of its weights, where `highest` is the maximum of its scores.
static __attribute__((noinline)) float sink_weight(float sink, float highest) {
  return std::exp2(sink * LOG2_E - highest);
}

// ALiBi: the scores of a chunk fall by `slope` for each token of distance. `first`: from the query to the first key.
static __attribute__((noinline)) void add_slope(float* scores, float slope, int first) {
  for (int c = 0; c < CHUNK; c += W) {
    const Vec distance = __builtin_convertvector(lane_numbers() + (first + c), Vec);
    store(scores + c, fma(splat(-slope), max(distance, -distance), load(scores + c)));
  }
}

// Computes an item. `next` is the thread's next item, or the same.
template <class P, int R>
static void attend(const AttentionLayer<P>& layer, AttentionPlan& plan, const AttentionItem& item,
                   const AttentionItem& next, float* scratch) {
  using Act = typename P::Act;
  const Model& m = layer.m;
  const Batch& b = layer.b;
  const Layer& own = layer.own;
  // Stores of vectors may be stores to anything, so these are read once.
  const bool special = m.bidirectional || own.chunk;
  const float *const slopes = own.slopes, *const sinks = own.sinks;
  const int window = own.window, all_heads = own.heads, group = all_heads / own.kv_heads;
  const int dim = m.head_dim, width = sum_floats(dim), rows = item.heads * R;
  float* sums = scratch;
  float* merged = sums + ITEM_ROWS * width;
  float* scores = merged + MAX_ROWS * width;
  float* top = scores + MAX_ROWS * CHUNK;
  Act* p = reinterpret_cast<Act*>(top + ITEM_ROWS);
  Act* q = reinterpret_cast<Act*>(top + ITEM_ROWS + MAX_ROWS * CHUNK);

  const float scale = m.score_scale * LOG2_E, cap = m.attention_softcap * LOG2_E;
  const int context_before = b.seq_len[item.seq] - (b.query_start[item.seq + 1] - b.query_start[item.seq]);
  int first[R], limit[R];  // row r attends to keys [first[r], limit[r])
  i64 token[R], head[R];   // head: in the item's first group
  for (int r = 0; r < R; r++) {
    const int query = (item.first_row + r) / group;
    limit[r] = context_before + query + 1;
    first[r] = window ? std::max(0, limit[r] - window) : 0;
    if (special) [[unlikely]] {
      const KeyRange keys = visible(m, own, context_before + query, b.seq_len[item.seq]);
      first[r] = keys.first, limit[r] = keys.end;
    }
    token[r] = b.query_start[item.seq] + query;
    head[r] = item.first_head * group + (item.first_row + r) % group;
    for (int h = 0; h < item.heads; h++) {
      const float* from = layer.qkv + token[r] * layer.qkv_stride + (head[r] + h * group) * dim;
      for (int i = 0; i < dim; i += W) store(q + (h * R + r) * dim + i, load(from + i) * scale);
    }
  }
  const auto restart = [&] {
    clear(sums, rows * width);
    std::fill(top, top + rows, MASKED);
  };
  restart();
  if constexpr (BY_TILE_REGISTERS<P>) shape_attention_tiles(R);

  constexpr int TILES = SCORE_TILES<R>, NV = VALUE_VECS<R>;
  float merged_top[R] = {};
  bool merging = false;  // only items of one head have several segments
  // Rows are in token order, so first[r] and limit[r] never decrease with r.
  const int begin = std::max(item.first_key, first[0] / CHUNK * CHUNK), end = std::min(item.keys, limit[R - 1]);
  ChunkTiles<P> coming = chunk_tiles(layer, item, first[0], std::min(begin, item.keys - 1));
  for (int start = begin; start < end; start += CHUNK) {
    if (start % SEGMENT == 0 && start > begin) {
      if (!merging) {
        clear(merged, R * width);
        std::fill(merged_top, merged_top + R, MASKED);
        merging = true;
      }
      for (int r = 0; r < R; r++) merge(merged + r * width, merged_top[r], sums + r * width, top[r], dim);
      restart();
    }
    const ChunkTiles<P> tiles = coming;
    coming = start + CHUNK < end ? chunk_tiles(layer, item, first[0], start + CHUNK)
                                 : chunk_tiles(layer, next, 0, next.first_key);  // only to prefetch
    const bool whole = start >= first[R - 1] && start + CHUNK <= limit[0];
    for (int h = 0; h < item.heads; h++) {
      const ChunkTiles<P> k = tiles.head(h, dim), ahead = h + 1 < item.heads ? tiles.head(h + 1, dim) : coming;
      if constexpr (BY_TILE_REGISTERS<P>) {
        prefetch_half(ahead, dim);
        score_by_tiles(q + h * R * dim, dim, k.at, scores, CHUNK);
      } else {
        for (int tile = 0; tile < 2; tile += TILES)
          score_tiles<P, R, TILES>(q + h * R * dim, dim, k, tile, scores, ahead);
      }
      if (cap > 0)
        for (int i = 0; i < R * CHUNK; i += W) store(scores + i, softcap(load(scores + i), cap));
      if (slopes) [[unlikely]]
        for (int r = 0; r < R; r++) {
          const int position = context_before + (item.first_row + r) / group;
          add_slope(scores + r * CHUNK, slopes[head[r] + h * group] * LOG2_E, start - position);
        }
      float rescale[R];
      for (int r = 0; r < R; r++) {
        const float* row = scores + r * CHUNK;
        float* weights = sums + (h * R + r) * width + dim;
        rescale[r] = whole ? soften<true>(row, 0, CHUNK, top[h * R + r], weights, p + r * CHUNK)
                           : soften<false>(row, first[r] - start, limit[r] - start, top[h * R + r], weights,
                                           p + r * CHUNK);
      }
      if constexpr (BY_TILE_REGISTERS<P>) {
        prefetch_half(ahead.values(dim), dim);
        add_values_by_tiles<R>(p, k.values(dim).at, dim, rescale, sums + h * R * width, width);
      } else {
        add_all_values<P, R, NV>(p, k.values(dim), dim, 0, rescale, sums + h * R * width, ahead.values(dim));
      }
    }
  }

  const auto finish = [&](int row, const float* from, float highest) {
    const i64 query_head = head[row % R] + row / R * group;
    float total = sum(load(from + dim));
    if (sinks) [[unlikely]] total += sink_weight(sinks[query_head], highest);
    const float inverse = 1.0f / total;
    Act* out = layer.attended + (token[row % R] * all_heads + query_head) * dim;
    for (int i = 0; i < dim; i += W) store(out + i, load(from + i) * inverse);
  };
  finish_item(plan, item, rows, dim, merging ? merged : nullptr, merged_top, sums, top, finish);
}

// Called by every thread of the team.
template <class P>
static void attention(const Model& m, const Batch& b, const Layer& own, AttentionPlan& plan, const float* qkv,
                      i64 qkv_stride, typename P::Act* attended, float* scratch, Worker& worker) {
  const AttentionLayer<P> layer{m, b, own, kv_layer<P>(m, own), qkv, qkv_stride, attended};
  worker.deal(plan.pieces(), [&](i64 piece) {
    const AttentionItem* end = plan.end(piece);
    for (const AttentionItem* item = plan.begin(piece); item < end; item++)
      with_rows(item->rows, [&]<int R>() {
        attend<P, R>(layer, plan, *item, item + 1 < end ? item[1] : *item, scratch);
      });
  });
}

}  // namespace octavo
