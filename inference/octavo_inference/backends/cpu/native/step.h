// What the parts of a step share, for one thread of the team: the model, the batch, and linears with their input rows.
#pragma once

#include <chrono>

#include "gemm.h"
#include "layers.h"

namespace octavo {

// Adds the time since the previous lap to a total. Enabled on rank 0 only.
class Stopwatch {
 public:
  explicit Stopwatch(bool enabled) : enabled_(enabled), last_(now()) {}
  void lap(double& total) {
    if (!enabled_) return;
    const double t = now();
    total += t - last_;
    last_ = t;
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  bool enabled_;
  double last_;
};

// The input of a product: rows that are there, or hidden states, normalized if `norm` has a weight.
template <class Act>
struct Rows {
  i64 count;
  Act* ready;
  Norm norm;
  const int32_t* token = nullptr;  // null: of the tokens in order
};

// Slots of the adapters of a step's tokens, and of its sampled rows; null if none has one. `layers` is where the step's
// layers begin.
struct StepAdapters {
  const int32_t *tokens, *sampled;
  const Layer* layers;
};

// Rows from `first` on times a block of `down`.
template <class P>
inline void multiply_down_block(const Model& m, const LowRank& change, i64 block, const typename P::Act* input, i64 cols,
                                i64 first, i64 rows) {
  const auto* down = static_cast<const typename P::Elem*>(change.down) + block * HALF * cols;
  multiply_block<P>(input, cols, rows, down, m.low_rank + first * m.low_rank_stride + block * HALF, m.low_rank_stride);
}

// Each part of a layer is a function of a Step. All threads call the same parts in the same order (threads.h).
template <class P>
struct Step {
  using Act = typename P::Act;
  const Model& m;
  const Batch& b;
  Worker& worker;
  Profile& profile;  // only rank 0 writes it
  const StepAdapters& adapters;
  Stopwatch watch;

  Step(const Model& m, const Batch& b, Worker& worker, Profile& profile, const StepAdapters& adapters)
      : m(m), b(b), worker(worker), profile(profile), adapters(adapters), watch(worker.rank() == 0) {}

  // Floats of a row of the residual stream: the padded rows of matrices that are added to it.
  i64 hidden_stride() const { return (m.hidden + PANEL - 1) / PANEL * PANEL; }
  float* state(i64 token) const { return m.hidden_state + token * hidden_stride(); }
  float* scratch() const { return m.scratch + worker.rank() * m.scratch_floats; }

  // Calls some(first, last) for `count` rows, in up to four pieces per thread.
  template <class F>
  void row_ranges(i64 count, F&& some) {
    const i64 pieces = std::min<i64>(count, worker.team_size() * 4);
    worker.share(pieces, [&](i64 i) { some(count * i / pieces, count * (i + 1) / pieces); });
  }

  // Calls row(r) for each of `count` rows.
  template <class F>
  void rows(i64 count, F&& row) {
    row_ranges(count, [&](i64 first, i64 last) {
      for (i64 r = first; r < last; r++) row(r);
    });
  }

  // Numbers of the matrices that adapters change (Adapter::parts).
  i64 adapted(const Layer& layer, AdaptedPart part) const { return (&layer - adapters.layers) * ADAPTED_PARTS + part; }
  i64 adapted_head() const { return i64(m.num_layers) * ADAPTED_PARTS; }

  // First puts the columns of its input rows in the order of the matrix's, where that is another one, and rounds them to
  // 8 bits, if its kernel reads such rows. `changed` is the matrix's number among those that adapters change.
  template <class Epilogue>
  void linear(const Matrix& matrix, const Rows<Act>& input, const Epilogue& epilogue, i64 changed) {
    const bool quantized = rounds_activations(matrix);
    auto* normed = static_cast<Act*>(m.normed);
    auto* blocks = static_cast<Int8Block*>(m.quantized);
    Act* complete = input.ready ? input.ready : normed;
    const i64 cols = matrix.cols;
    const int32_t* slots = input.token ? adapters.sampled : adapters.tokens;
    const auto prepare = [&](i64 r) {
      const i64 token = input.token ? input.token[r] : r;
      if (input.norm.weight)
        normalize(m, input.norm, state(token), normed + r * cols, cols);
      else if (!input.ready)
        copy_row(state(token), normed + r * cols, cols);
      if (matrix.order) reorder(complete + r * cols, matrix.order, cols);
      if (quantized) quantize_row(complete + r * cols, cols, blocks + r * (cols / BLOCK));
    };
    if (!input.ready || quantized || matrix.order || slots)
      row_ranges(input.count, [&](i64 first, i64 last) {
        for (i64 r = first; r < last; r++) prepare(r);
        if (slots) multiply_down(slots, first, last, complete, cols, changed);
      });
    const RowChanges changes{m.adapters, slots, m.low_rank, m.low_rank_stride, changed, m.format};
    gemm<P>(matrix, Input{complete, blocks}, input.count, epilogue, worker, slots ? &changes : nullptr);
  }

  // Rows times `down` of their adapters.
  void multiply_down(const int32_t* slots, i64 first, i64 last, const Act* input, i64 cols, i64 changed) {
    for (i64 row = first, count; row < last; row += count) {
      count = same_slot(slots, row, last, MOST_BLOCK_ROWS);
      if (slots[row] < 0) continue;
      const LowRank& change = m.adapters[slots[row]].parts[changed];
      for (i64 block = 0; block < change.ranks / HALF; block++)
        multiply_down_block<P>(m, change, block, input + row * cols, cols, row, count);
    }
  }

  // A linear added to the residual stream. An output norm needs complete rows, so they are stored in `projected` first;
  // or it is that of the sum.
  void add_linear(const Matrix& matrix, Act* input, const Norm& norm, i64 changed) {
    const i64 stride = matrix.rows;
    const Rows<Act> ready{b.num_tokens, input, {}};
    if (!norm.weight || m.post_residual_norms) {
      linear(matrix, ready, AddToResidual{m.hidden_state, stride, matrix.bias, m.residual_scale}, changed);
      watch.lap(profile.linears);
      if (!norm.weight) return;
      rows(b.num_tokens, [&](i64 t) { normalize(m, norm, state(t), state(t), m.hidden); });
      watch.lap(profile.elementwise);
      return;
    }
    linear(matrix, ready, StoreFloats{m.projected, stride, matrix.bias}, changed);
    watch.lap(profile.linears);
    rows(b.num_tokens, [&](i64 t) { add_normed(m, norm, m.projected + t * stride, state(t)); });
    watch.lap(profile.elementwise);
  }
};

}  // namespace octavo
