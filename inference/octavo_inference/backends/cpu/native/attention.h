// Paged attention with online softmax, for prefill chunks and decode alike.
//
// A work item is up to MAX_ROWS rows, (query token, head) pairs that share a KV head of one sequence. It iterates over
// keys in chunks of 32. Scores and output accumulators stay in the L1 cache; dot_tile computes both products.
#pragma once

#include <algorithm>
#include <vector>

#include "layers.h"
#include "threads.h"

namespace octavo {

constexpr int CHUNK = 32;           // keys per iteration; block sizes are multiples of it
constexpr float MASKED = -1e30f;

struct AttentionItem {
  int32_t seq, kv_head, first_row, rows;  // rows are (token, head in group) pairs, heads fastest
  int32_t keys;                           // context of the last row, the longest
};

// Longest contexts first, so that no thread starts a long item when the other threads are done.
inline std::vector<AttentionItem> attention_items(const Model& m, const Batch& b) {
  std::vector<AttentionItem> items;
  const int group = m.heads / m.kv_heads;
  for (int seq = 0; seq < b.num_seqs; seq++) {
    const int queries = b.query_start[seq + 1] - b.query_start[seq], rows = queries * group;
    const int tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int tile = 0; tile < tiles; tile++) {
      const int first = int(i64(rows) * tile / tiles), last = int(i64(rows) * (tile + 1) / tiles);
      const int keys = b.seq_len[seq] - queries + (last - 1) / group + 1;
      for (int head = 0; head < m.kv_heads; head++) items.push_back({seq, head, first, last - first, keys});
    }
  }
  std::stable_sort(items.begin(), items.end(), [](auto& a, auto& c) { return a.keys > c.keys; });
  return items;
}

// Scratch floats of one item: q and p (activation type, at most 4 bytes), scores, accumulators.
inline i64 attention_scratch(int dim) { return MAX_ROWS * (2 * i64(dim) + 2 * CHUNK); }

template <class P, int R, int NV>
static OCTAVO_INLINE void score_columns(const typename P::Act* q, int dim, const typename P::Elem* keys, i64 block_size,
                                        float* scores, const char* ahead) {
  Vec acc[R][NV] = {};
  dot_tile<P, R, NV>(q, dim, keys, block_size * P::GROUP, dim / P::GROUP, acc, Prefetch{ahead, 64});
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
    for (int c = 0; c < NV; c++) store(scores + r * CHUNK + c * W, acc[r][c]);
}

template <class P, int R, int NV>
static OCTAVO_INLINE void add_values(const typename P::Act* p, const typename P::Elem* values, int dim,
                                     const float* rescale, float* out, const char* ahead) {
  Vec acc[R][NV] = {};
  dot_tile<P, R, NV>(p, CHUNK, values, dim * P::GROUP, CHUNK / P::GROUP, acc, Prefetch{ahead, 64});
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) {
      float* at = out + r * dim + c * W;
      store(at, fma(load(at), splat(rescale[r]), acc[r][c]));
    }
}

// One step of online softmax in base 2, for one row of scores. Returns the factor that rescales the previous sums.
// Keys outside [from, to) of the chunk are masked. WHOLE: no key of the chunk is.
template <bool WHOLE, class Act>
static OCTAVO_INLINE float soften(const float* scores, int from, int to, float& running_max, Vec& running_sum, Act* p) {
  constexpr int VECS = CHUNK / W;
  const auto seen = [&](int c, Vec x, Vec otherwise) {
    if (WHOLE) return x;
    const IVec lane = lane_numbers() + c * W;
    return ((lane >= from) & (lane < to)) ? x : otherwise;
  };
  Vec s[VECS], top = splat(MASKED);
  for (int c = 0; c < VECS; c++) {
    s[c] = seen(c, load(scores + c * W), splat(MASKED));
    top = max(top, s[c]);
  }
  const float chunk_max = highest(top);
  float rescale = 1.0f;
  if (chunk_max > running_max) {
    rescale = std::exp2(running_max - chunk_max);
    running_max = chunk_max;
    running_sum *= rescale;
  }
  for (int c = 0; c < VECS; c++) {
    Vec e = seen(c, exp2(s[c] - running_max), Vec{});
    running_sum += e;
    store(p + c * W, e);
  }
  return rescale;
}

template <class P, int R>
static void attend(const Model& m, const Batch& b, const KvLayer<P>& kv, int window, const AttentionItem& item,
                   const float* qkv, i64 qkv_stride, typename P::Act* attended, float* scratch) {
  using Act = typename P::Act;
  const int dim = m.head_dim, group = m.heads / m.kv_heads;
  const int32_t* table = b.block_table + i64(item.seq) * b.table_width;
  const int context_before = b.seq_len[item.seq] - (b.query_start[item.seq + 1] - b.query_start[item.seq]);
  float* acc = scratch;
  float* scores = acc + MAX_ROWS * dim;
  Act* p = reinterpret_cast<Act*>(scores + MAX_ROWS * CHUNK);
  Act* q = reinterpret_cast<Act*>(scores + 2 * MAX_ROWS * CHUNK);

  const float scale = m.score_scale * LOG2_E, cap = m.attention_softcap * LOG2_E;
  int first[R], limit[R];  // row r attends to keys [first[r], limit[r])
  i64 token[R], head[R];
  float running_max[R], rescale[R];
  Vec running_sum[R] = {};
  for (int r = 0; r < R; r++) {
    const int query = (item.first_row + r) / group;
    token[r] = b.query_start[item.seq] + query;
    head[r] = item.kv_head * group + (item.first_row + r) % group;
    limit[r] = context_before + query + 1;
    first[r] = window ? std::max(0, limit[r] - window) : 0;
    running_max[r] = MASKED;
    const float* from = qkv + token[r] * qkv_stride + head[r] * dim;
    for (int i = 0; i < dim; i += W) {
      store(q + r * dim + i, load(from + i) * scale);
      store(acc + r * dim + i, Vec{});
    }
  }

  // Tiles of few rows have twice the columns, so that enough independent sums are in flight to hide the FMA latency.
  constexpr int NARROW = 16 / W, WIDE = W == 16 || R <= 2 ? 32 / W : NARROW;
  // Rows are in token order, so first[r] and limit[r] never decrease with r.
  for (int start = first[0] / CHUNK * CHUNK; start < item.keys; start += CHUNK) {
    const i64 offset = start % m.block_size;
    const auto* keys = kv.keys(table[start / m.block_size], item.kv_head) + offset * P::GROUP;
    const auto* values = kv.values(table[start / m.block_size], item.kv_head) + offset * dim;
    const int coming = std::min(start + CHUNK, item.keys - 1);
    const char* next = reinterpret_cast<const char*>(kv.keys(table[coming / m.block_size], item.kv_head));
    const char* next_values = reinterpret_cast<const char*>(kv.values(table[coming / m.block_size], item.kv_head));

    for (int c = 0; c < CHUNK; c += WIDE * W)
      score_columns<P, R, WIDE>(q, dim, keys + c * P::GROUP, m.block_size, scores + c,
                                next + i64(c / (WIDE * W)) * 64 * (dim / P::GROUP));
    if (cap > 0)
      for (int i = 0; i < R * CHUNK; i += W) store(scores + i, softcap(load(scores + i), cap));
    if (start >= first[R - 1] && start + CHUNK <= limit[0]) {
      for (int r = 0; r < R; r++)
        rescale[r] = soften<true>(scores + r * CHUNK, 0, CHUNK, running_max[r], running_sum[r], p + r * CHUNK);
    } else {
      for (int r = 0; r < R; r++)
        rescale[r] = soften<false>(scores + r * CHUNK, first[r] - start, limit[r] - start, running_max[r],
                                   running_sum[r], p + r * CHUNK);
    }
    int c = 0;
    for (; c + WIDE * W <= dim; c += WIDE * W)
      add_values<P, R, WIDE>(p, values + c * P::GROUP, dim, rescale, acc + c,
                             next_values + i64(c / (WIDE * W)) * 64 * (CHUNK / P::GROUP));
    for (; c < dim; c += NARROW * W)
      add_values<P, R, NARROW>(p, values + c * P::GROUP, dim, rescale, acc + c, next_values);
  }
  for (int r = 0; r < R; r++) {
    const float inverse = 1.0f / sum(running_sum[r]);
    Act* out = attended + (token[r] * m.heads + head[r]) * dim;
    for (int i = 0; i < dim; i += W) store(out + i, load(acc + r * dim + i) * inverse);
  }
}

// Called by every thread of the team.
template <class P>
static void attention(const Model& m, const Batch& b, const KvLayer<P>& kv, int window,
                      const std::vector<AttentionItem>& items, const float* qkv, i64 qkv_stride,
                      typename P::Act* attended, float* scratch, Worker& worker) {
  worker.deal(i64(items.size()), [&](i64 i) {
    const AttentionItem& item = items[size_t(i)];
    with_rows(item.rows, [&]<int R>() { attend<P, R>(m, b, kv, window, item, qkv, qkv_stride, attended, scratch); });
  });
}

}  // namespace octavo
