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

// Rows of a product with the slots of their adapters, and these rows in runs; no runs: no row has an adapter.
struct AdaptedRows {
  const int32_t* slots;
  std::vector<AdapterRun> runs;
};

// The tokens of a step, and its sampled rows. `layers` is where the step's layers begin.
struct StepAdapters {
  AdaptedRows tokens, sampled;
  const Layer* layers;
};

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

  // Calls row(r) for each of `count` rows, in up to four pieces per thread.
  template <class F>
  void rows(i64 count, F&& row) {
    const i64 pieces = std::min<i64>(count, worker.team_size() * 4);
    worker.share(pieces, [&](i64 i) {
      for (i64 r = count * i / pieces; r < count * (i + 1) / pieces; r++) row(r);
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
    if (!input.ready || quantized || matrix.order)
      rows(input.count, [&](i64 r) {
        const i64 token = input.token ? input.token[r] : r;
        if (input.norm.weight)
          normalize(m, input.norm, state(token), normed + r * cols, cols);
        else if (!input.ready)
          copy_row(state(token), normed + r * cols, cols);
        if (matrix.order) reorder(complete + r * cols, matrix.order, cols);
        if (quantized) quantize_row(complete + r * cols, cols, blocks + r * (cols / BLOCK));
      });
    const AdaptedRows& adapted = input.token ? adapters.sampled : adapters.tokens;
    if (adapted.runs.empty()) return gemm<P>(matrix, Input{complete, blocks}, input.count, epilogue, worker);
    const RowChanges changes{m.adapters, adapted.slots, m.low_rank, m.low_rank_stride, changed, m.format};
    multiply_down(adapted, complete, cols, changed);
    gemm<P>(matrix, Input{complete, blocks}, input.count, epilogue, worker, &changes);
  }

  // Rows of runs times `down` of their adapters. A piece is a panel of a run, or nothing for adapters of fewer panels.
  void multiply_down(const AdaptedRows& rows, const Act* input, i64 cols, i64 changed) {
    const i64 panels = m.low_rank_stride / PANEL;
    worker.share(i64(rows.runs.size()) * panels, [&](i64 piece) {
      const AdapterRun& run = rows.runs[size_t(piece / panels)];
      const Matrix& down = m.adapters[run.slot].parts[changed].down;
      const i64 panel = piece % panels;
      if (panel >= down.rows / PANEL) return;
      const StoreFloats store{m.low_rank + run.first * m.low_rank_stride, m.low_rank_stride, nullptr};
      const Input some{input + run.first * cols, nullptr};
      const Product<P, StoreFloats> product(down, some, run.count, store);
      for (i64 piece = panel; piece < product.pieces(); piece += down.rows / PANEL) product.piece(piece);  // its blocks
    });
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
