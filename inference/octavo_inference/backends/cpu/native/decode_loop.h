// Several decode steps in one call: each computes the tokens that the step before it sampled.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "abi.h"

namespace octavo {

// The batch of a step in which every sequence decodes a token. After a step it takes its tokens and becomes the next.
class DecodeBatch {
 public:
  DecodeBatch(const Batch& first, const Sampling& sampling, int32_t block_size)
      : batch_(first), sampling_(sampling), block_size_(block_size),
        tokens_(first.tokens, first.tokens + first.num_seqs),
        positions_(first.positions, first.positions + first.num_seqs),
        slots_(first.slots, first.slots + first.num_groups * first.num_seqs),
        seq_len_(first.seq_len, first.seq_len + first.num_seqs),
        sampled_(sampling.position, sampling.position + first.num_seqs) {
    if (sampling.adjust) {
      adjust_.assign(sampling.adjust, sampling.adjust + first.num_seqs);
      for (const Adjust& row : adjust_) outputs_.emplace_back(row.output, row.output + row.output_len);
      sampling_.adjust = adjust_.data();
    }
    batch_.tokens = tokens_.data();
    batch_.positions = positions_.data();
    batch_.slots = slots_.data();
    batch_.seq_len = seq_len_.data();
    sampling_.position = sampled_.data();
  }
  DecodeBatch(const DecodeBatch&) = delete;
  DecodeBatch& operator=(const DecodeBatch&) = delete;

  const Batch& batch() const { return batch_; }
  const Sampling& sampling() const { return sampling_; }

  void advance() {
    for (size_t i = 0; i < tokens_.size(); i++) {
      tokens_[i] = sampling_.tokens[i];
      const int32_t position = ++positions_[i];
      for (size_t row = i; row < slots_.size(); row += tokens_.size()) {
        const int32_t* blocks = batch_.block_table + row * size_t(batch_.table_width);
        slots_[row] = blocks[position / block_size_] * block_size_ + position % block_size_;
      }
      seq_len_[i]++;
      sampled_[i]++;
      if (!adjust_.empty()) append_output(i, tokens_[i]);
    }
    sampling_.tokens += sampling_.count;
  }

 private:
  // Only rows with penalties or bad words use their output.
  void append_output(size_t row, int32_t token) {
    outputs_[row].push_back(token);
    adjust_[row].output = outputs_[row].data();
    adjust_[row].output_len = int64_t(outputs_[row].size());
  }

  Batch batch_;
  Sampling sampling_;
  const int32_t block_size_;
  std::vector<int32_t> tokens_, positions_, slots_, seq_len_, sampled_;
  std::vector<Adjust> adjust_;
  std::vector<std::vector<int32_t>> outputs_;
};

// Whether one of a step's tokens ends its sequence.
inline bool any_ends(const DecodeRun& run, const Sampling& sampling) {
  for (int32_t i = 0; i < sampling.count; i++) {
    const int32_t token = sampling.tokens[i];
    const int32_t *begin = run.end_ids + run.end_start[i], *end = run.end_ids + run.end_start[i + 1];
    if (token < 0 || std::find(begin, end, token) != end) return true;
  }
  return false;
}

inline bool is_readable(int32_t fd) {
  pollfd watched{fd, POLLIN, 0};  // a negative descriptor is ignored
  return poll(&watched, 1, 0) != 0;
}

// Calls step(batch, sampling) until the run ends. Returns the number of steps.
template <class Step>
int32_t decode_loop(const DecodeRun& run, const Batch& first, const Sampling& sampling, int32_t block_size,
                    Step&& step) {
  using Clock = std::chrono::steady_clock;
  const auto limit = std::chrono::duration<double>(run.seconds);
  DecodeBatch state(first, sampling, block_size);
  const auto start = Clock::now();
  for (auto begin = start;; state.advance()) {
    step(state.batch(), state.sampling());
    const auto end = Clock::now();
    const auto done = int32_t((state.sampling().tokens - sampling.tokens) / sampling.count) + 1;
    if (done == run.steps || end - start + (end - begin) > limit) return done;
    if (any_ends(run, state.sampling()) || is_readable(run.message_fd)) return done;
    begin = end;
  }
}

}  // namespace octavo
