// Samples tokens by the rule in core/sampling.py, without sorting the vocabulary. Step numbers are those of the rule.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "abi.h"
#include "best.h"

namespace octavo {

constexpr i64 STRETCH = 256;  // elements that are summed in fp32 before their sum is added in fp64

inline uint64_t mix(uint64_t z) {  // SplitMix64
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

inline double uniform(uint64_t seed, int32_t position) {
  return double(mix(mix(seed) ^ uint64_t(position)) >> 11) * 0x1p-53;
}

inline void ban(float& logit) {
  if (logit < std::numeric_limits<float>::infinity()) logit = -std::numeric_limits<float>::infinity();
}

// Bans the last token of each bad word whose other tokens are the end of the output.
static void ban_completions(float* logits, const Adjust& a) {
  for (i64 word = 0; word < a.words; word++) {
    const int32_t *begin = a.word_tokens + (word ? a.word_ends[word - 1] : 0), *last = a.word_tokens + a.word_ends[word] - 1;
    const i64 before = last - begin;
    if (before <= a.output_len && std::equal(begin, last, a.output + a.output_len - before)) ban(logits[*last]);
  }
}

// Bans the ids whose bit in the mask is 0. In vectors: a mask of few ids has zeros in nearly every word.
static void ban_unmasked(float* logits, const uint32_t* mask, i64 vocab) {
  const i64 whole = vocab / 32 * 32;
  for (i64 first = 0; first < whole; first += 32) {
    const uint32_t word = mask[first / 32];
    if (word == ~0u) continue;
    for (i64 part = 0; part < 32; part += W)
      store(logits + first + part, ban_lanes(load(logits + first + part), word >> part));
  }
  for (i64 id = whole; id < vocab; id++)
    if (!(mask[id / 32] >> (id % 32) & 1)) ban(logits[id]);
}

// Step 1, in place. `counts` has one element per id and is all zero before and after.
static void adjust_logits(float* logits, const Adjust& a, i64 vocab, std::vector<int32_t>& counts) {
  for (i64 i = 0; i < a.bias_len; i++) logits[a.bias_ids[i]] += a.bias[i];
  if (a.repetition != 1.0f) {
    auto once = [&](int32_t id) {
      if (counts[size_t(id)]++ == 0) logits[id] = logits[id] > 0 ? logits[id] / a.repetition : logits[id] * a.repetition;
    };
    std::for_each(a.prompt, a.prompt + a.prompt_len, once);
    std::for_each(a.output, a.output + a.output_len, once);
    for (i64 i = 0; i < a.prompt_len; i++) counts[size_t(a.prompt[i])] = 0;
    for (i64 i = 0; i < a.output_len; i++) counts[size_t(a.output[i])] = 0;
  }
  if (a.frequency != 0.0f || a.presence != 0.0f) {
    for (i64 i = 0; i < a.output_len; i++) counts[size_t(a.output[i])]++;
    for (i64 i = 0; i < a.output_len; i++) {
      int32_t& count = counts[size_t(a.output[i])];
      if (count == 0) continue;
      logits[a.output[i]] -= a.frequency * float(count);
      logits[a.output[i]] -= a.presence;
      count = 0;
    }
  }
  for (i64 i = 0; i < a.banned_len; i++) ban(logits[a.banned[i]]);
  ban_completions(logits, a);
  if (a.mask) ban_unmasked(logits, a.mask, vocab);
}

// Step 3, negative if there is no choice; see Best. From here on, `n` is a multiple of W.
static int32_t argmax(const float* x, i64 n) {
  Best best;
  IVec ids = lane_numbers();
  for (i64 i = 0; i < n; i += W, ids += W) best.add(load(x + i), ids);
  return best.id();
}

// Step 4: out = exp((x - peak) * inverse_temperature), 0 where it would be below 2^-126.
static void softmax_weights(const float* x, i64 n, float peak, float inverse_temperature, float* out) {
  const float scale = inverse_temperature * LOG2_E;
  for (i64 i = 0; i < n; i += W) {
    const Vec t = (load(x + i) - peak) * scale;
    store(out + i, t >= splat(-126.0f) ? exp2(t) : Vec{});
  }
}

static double total(const float* w, i64 n) {
  double sum_of_sums = 0;
  for (i64 i = 0; i < n; i += STRETCH) {
    Vec s = {};
    for (i64 j = i; j < std::min(i + STRETCH, n); j += W) s += load(w + j);
    sum_of_sums += sum(s);
  }
  return sum_of_sums;
}

static void drop_below(float* w, i64 n, float limit) {
  for (i64 i = 0; i < n; i += W) {
    const Vec v = load(w + i);
    store(w + i, v >= splat(limit) ? v : Vec{});
  }
}

struct Candidate {
  float value;
  int32_t id;
};
// Larger values first, ties by lower id.
inline bool before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The first `count` candidates in the order of `before`, unsorted: a heap with the last of them on top.
static std::vector<Candidate> best_of(const float* x, i64 n, i64 count) {
  std::vector<Candidate> heap;
  heap.reserve(size_t(count));
  for (i64 i = 0; i < n; i += STRETCH) {
    const i64 end = std::min(i + STRETCH, n);
    if (i64(heap.size()) == count) {
      Vec top = load(x + i);
      for (i64 j = i + W; j < end; j += W) top = max(top, load(x + j));
      if (highest(top) <= heap.front().value) continue;
    }
    for (i64 j = i; j < end; j++) {
      if (i64(heap.size()) < count) {
        heap.push_back({x[j], int32_t(j)});
        std::push_heap(heap.begin(), heap.end(), before);
      } else if (x[j] > heap.front().value) {
        std::pop_heap(heap.begin(), heap.end(), before);
        heap.back() = {x[j], int32_t(j)};
        std::push_heap(heap.begin(), heap.end(), before);
      }
    }
  }
  return heap;
}

// Step 7: zeroes the weights outside the nucleus. Weights up to `unlikely` have a sum below (1 - p) of the total. So
// the nucleus is complete without them, and the heap stays small.
static void keep_nucleus(float* w, i64 n, float p) {
  const double whole = total(w, n), goal = double(p) * whole;
  const float unlikely = float(0.5 * (1.0 - double(p)) * whole / double(n));
  std::vector<Candidate> heap;
  for (i64 i = 0; i < n; i++)
    if (w[i] > unlikely) heap.push_back({w[i], int32_t(i)});
  auto after = [](const Candidate& a, const Candidate& b) { return before(b, a); };
  std::make_heap(heap.begin(), heap.end(), after);
  Candidate last{0.0f, 0};
  for (double running = 0; !heap.empty() && (running < goal || running == 0);) {
    last = heap.front();
    running += last.value;
    std::pop_heap(heap.begin(), heap.end(), after);
    heap.pop_back();
  }
  for (i64 i = 0; i < n; i++)
    if (before(last, {w[i], int32_t(i)})) w[i] = 0.0f;
}

// Step 8 for a uniform number u.
static i64 draw(const float* w, i64 n, double u) {
  const double goal = u * total(w, n);
  double running = 0;
  i64 last = 0;
  for (i64 i = 0; i < n; i += STRETCH) {
    const i64 end = std::min(i + STRETCH, n);
    const double stretch = total(w + i, end - i);
    if (running + stretch <= goal) {
      running += stretch;
      if (stretch > 0) last = i;
      continue;
    }
    for (i64 j = i; j < end; j++) {
      if (w[j] > 0) last = j;
      running += w[j];
      if (running > goal) return j;
    }
    return last;
  }
  for (i64 j = std::min(last + STRETCH, n) - 1; j > last; j--)
    if (w[j] > 0) return j;
  return last;
}

// Step 2 for the row's token and its alternatives.
static void log_probabilities(const Sampling& s, i64 row, const float* logits, i64 n, i64 vocab, float* scratch) {
  const int32_t token = s.tokens[row];
  const float peak = logits[argmax(logits, n)], chosen = logits[token];
  softmax_weights(logits, n, peak, 1.0f, scratch);
  const double log_total = double(peak) + std::log(total(scratch, n));
  s.logprob[row] = float(double(chosen) - log_total);
  IVec larger = {};
  for (i64 i = 0; i < n; i += W) larger -= load(logits + i) > splat(chosen);
  int32_t rank = 1;
  for (int lane = 0; lane < W; lane++) rank += larger[lane];
  s.rank[row] = rank;
  if (s.report_ids && s.report_ids[row]) {
    for (i64 i = 0; i < s.logprobs[row]; i++) {
      const int32_t id = s.report_ids[row][i];
      s.top_ids[row * s.top_width + i] = id;
      s.top_logprobs[row * s.top_width + i] = float(double(logits[id]) - log_total);
    }
    return;
  }
  const i64 count = std::min<i64>(s.logprobs[row], vocab);
  if (count == 0) return;
  auto best = best_of(logits, n, count);
  std::sort(best.begin(), best.end(), before);
  for (size_t i = 0; i < best.size(); i++) {
    s.top_ids[row * s.top_width + i64(i)] = best[i].id;
    s.top_logprobs[row * s.top_width + i64(i)] = float(double(best[i].value) - log_total);
  }
}

// True if a row of logits changes by its mask at most.
inline bool only_mask(const Adjust& a) {
  return !a.bias_len && !a.banned_len && !a.words && a.repetition == 1 && a.presence == 0 && a.frequency == 0;
}

// True if each row's token is the allowed id with the largest logit, and nothing else is asked for.
inline bool only_best(const Sampling& s) {
  for (int32_t row = 0; row < s.count; row++)
    if (s.temperature[row] != 0.0f || s.logprobs[row] >= 0 || (s.adjust && !only_mask(s.adjust[row]))) return false;
  return true;
}

// Samples one row: adjusts `logits` in place and fills the row's results. `n` is the padded vocabulary.
static void sample_row(const Sampling& s, i64 row, float* logits, i64 n, i64 vocab, float* scratch) {
  std::fill(logits + vocab, logits + n, -std::numeric_limits<float>::infinity());
  const float* raw = logits;
  if (s.adjust) {
    thread_local std::vector<int32_t> counts;
    thread_local std::vector<float> copy;
    if (s.logprobs[row] >= 0) {
      copy.assign(logits, logits + n);
      raw = copy.data();
    }
    counts.resize(size_t(n));
    adjust_logits(logits, s.adjust[row], vocab, counts);
  }
  const int32_t top = argmax(logits, n);
  s.tokens[row] = top;
  if (top < 0) return;
  if (s.temperature[row] != 0.0f) {
    softmax_weights(logits, n, logits[top], 1.0f / s.temperature[row], scratch);
    if (s.min_p[row] > 0.0f) drop_below(scratch, n, s.min_p[row]);
    if (s.top_k[row] > 0 && s.top_k[row] < vocab)
      drop_below(scratch, n, best_of(scratch, n, s.top_k[row]).front().value);
    if (s.top_p[row] < 1.0f) keep_nucleus(scratch, n, s.top_p[row]);
    const i64 token = draw(scratch, n, uniform(s.seed[row], s.position[row]));
    s.tokens[row] = scratch[token] > 0 ? int32_t(token) : top;
  }
  if (s.logprobs[row] >= 0) log_probabilities(s, row, raw, n, vocab, scratch);
}

// Scores the given token of one row: fills the row's log-probabilities; NaN if the row has no choice.
static void score_row(const Sampling& s, i64 row, float* logits, i64 n, i64 vocab, float* scratch) {
  std::fill(logits + vocab, logits + n, -std::numeric_limits<float>::infinity());
  if (argmax(logits, n) < 0)
    s.logprob[row] = std::numeric_limits<float>::quiet_NaN();
  else
    log_probabilities(s, row, logits, n, vocab, scratch);
}

}  // namespace octavo
