// A feed-forward part: a mixture of experts, added to the residual stream.
//
// Tokens are sorted by expert, so that a product has the rows of all tokens that chose its expert. Rows are numbered by
// expert, within an expert by token; those of the shared MLP, one for each token, come last. The pieces of a product are
// those of all its experts one after the other: all threads work, whatever the number of tokens is, and only weights of
// chosen experts are read.
//
//   expert_inputs     [rows] inputs of gate and up that are not those of their token in memory; then outputs of down
//   expert_activated  [rows] inputs of down
//   expert_quantized  either, rounded to 8 bits
#pragma once

#include "router.h"
#include "step.h"

namespace octavo {

// The rows of an expert in the current layer.
struct ExpertRun {
  int32_t expert;
  i64 first, rows;
  i64 up_pieces, down_pieces;  // of all runs before it
  bool own_input;              // its input rows were copied; if not, they are one token's, or all tokens'
};

// Which experts compute which rows. One thread writes it for a layer, in a piece of its own. Numbers of pieces are kept
// for each layer: a late thread still asks for those of layers that are done (threads.h).
class ExpertPlan {
 public:
  ExpertPlan(const Model& m, const Batch& b)
      : tokens_(b.num_tokens), chosen_(m.routing.chosen), count_(m.routing.count), adapter_(b.adapter) {
    if (count_ == 0) return;
    if (adapter_) slots_.resize(size_t(tokens_ * (chosen_ + 1)));
    ids_.resize(size_t(tokens_ * chosen_)), weights_.resize(ids_.size()), row_.resize(ids_.size());
    token_.resize(ids_.size()), starts_.resize(size_t(count_ + 1));
    up_.resize(size_t(m.num_layers)), down_.resize(size_t(m.num_layers));
  }

  int chosen() const { return chosen_; }
  i64 routed_rows() const { return tokens_ * chosen_; }  // those of the shared MLP follow
  int32_t* ids(i64 token) { return ids_.data() + token * chosen_; }
  float* weights(i64 token) { return weights_.data() + token * chosen_; }
  i64 row(i64 token, int choice) const { return row_[size_t(token * chosen_ + choice)]; }

  i64 up_pieces(size_t layer) const { return up_[layer]; }
  i64 down_pieces(size_t layer) const { return down_[layer]; }
  const ExpertRun& run_of_row(i64 row) const {
    return *(std::partition_point(runs_.begin(), runs_.end(), [&](const ExpertRun& r) { return r.first <= row; }) - 1);
  }
  // The run that a piece belongs to, where `before` is its number of pieces of all runs before.
  const ExpertRun& run_of_piece(i64 piece, i64 ExpertRun::* before) const {
    return *(std::partition_point(runs_.begin(), runs_.end(), [&](const ExpertRun& r) { return r.*before <= piece; }) -
             1);
  }
  i64 token_of_row(i64 row) const { return row < routed_rows() ? token_[size_t(row)] : row - routed_rows(); }
  float weight_of_row(i64 row) const {
    const i64 token = token_of_row(row);
    int choice = 0;
    while (this->row(token, choice) != row) choice++;
    return weights_[size_t(token * chosen_ + choice)];
  }

  // Sorts the chosen experts of all tokens. pieces(matrix, rows) is the number of pieces of a product.
  template <class F>
  void sort(size_t layer, const Routing& routing, const Experts& experts, F&& pieces) {
    std::fill(starts_.begin(), starts_.end(), 0);
    for (const int32_t id : ids_) starts_[size_t(id) + 1]++;
    for (size_t e = 0; e < size_t(count_); e++) {
      experts.tokens[e] += starts_[e + 1];
      starts_[e + 1] += starts_[e];
    }
    runs_.clear();
    up_[layer] = down_[layer] = 0;
    const auto add = [&](int32_t expert, i64 first, i64 rows, bool own_input) {
      runs_.push_back({expert, first, rows, up_[layer], down_[layer], own_input});
      up_[layer] += pieces(experts.gate_up[expert], rows);
      down_[layer] += pieces(experts.down[expert], rows);
    };
    for (int32_t e = 0; e < count_; e++) {
      const i64 first = starts_[size_t(e)], rows = starts_[size_t(e) + 1] - first;
      if (rows) add(e, first, rows, rows > 1 || routing.input_scaled || experts.gate_up[e].order);
    }
    for (size_t i = 0; i < ids_.size(); i++) {
      const i64 row = starts_[size_t(ids_[i])]++;
      row_[i] = row;
      token_[size_t(row)] = i64(i) / chosen_;
    }
    if (experts.shared) add(count_, routed_rows(), tokens_, experts.gate_up[count_].order);
    for (size_t row = 0; row < slots_.size(); row++) slots_[row] = adapter_[token_of_row(i64(row))];
  }

  // Slots of the rows' adapters; null if no token has one.
  const int32_t* slots() const { return adapter_ ? slots_.data() : nullptr; }

 private:
  const i64 tokens_;
  const int chosen_, count_;
  const int32_t* const adapter_;  // of each token
  std::vector<int32_t> slots_;    // [rows]
  std::vector<int32_t> ids_;    // [tokens][chosen]
  std::vector<float> weights_;  // [tokens][chosen]
  std::vector<i64> row_;        // [tokens][chosen]
  std::vector<i64> token_;      // [rows]
  std::vector<i64> starts_;     // [count + 1]
  std::vector<ExpertRun> runs_;
  std::vector<i64> up_, down_;  // pieces of each layer's products
};

// The gate of gpt-oss.
template <class Act>
struct ClampedGate {
  Act* out;
  i64 stride;
  const float* bias;
  float clamp;
  OCTAVO_INLINE void expect(i64 row, i64 col) const {
    expect_lines(out + row * stride + col / 2, PANEL / 2 * sizeof(Act));
  }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    constexpr int HALF = PANEL_VECS / 2;
    const Vec most = splat(clamp);
    for (int c = 0; c < HALF; c++) {
      Vec gate = load(sums + c * W), up = load(sums + (c + HALF) * W);
      if (bias) gate += load(bias + col + c * W), up += load(bias + col + (c + HALF) * W);
      gate = min(gate, most), up = max(min(up, most), -most);
      store(out + row * stride + col / 2 + c * W, sigmoid_product(gate, 1.702f * gate) * (up + 1.0f));
    }
  }
};

template <class P>
class ExpertsPart {
  using Act = typename P::Act;

 public:
  ExpertsPart(Step<P>& step, const Layer& layer, size_t index, ExpertPlan& plan)
      : step_(step), m_(step.m), layer_(layer), experts_(*layer.experts), index_(index), plan_(plan),
        tokens_(step.b.num_tokens), rows_(plan.routed_rows() + (experts_.shared ? tokens_ : 0)) {}

  void run() {
    norm();
    choose();
    if (tokens_ > 1 || m_.routing.input_scaled || experts_.ordered)
      step_.rows(rows_, [&](i64 row) { gather(row); });
    multiply_down(false);
    step_.worker.share(plan_.up_pieces(index_), [&](i64 piece) { up(piece); });
    if (ROUNDS_ACTIVATIONS ? experts_.integers || experts_.ordered : experts_.ordered)
      step_.rows(rows_, [&](i64 row) { round(row); });
    multiply_down(true);
    step_.worker.share(plan_.down_pieces(index_), [&](i64 piece) { down(piece); });
    step_.rows(tokens_, [&](i64 token) { add(token); });
    step_.watch.lap(step_.profile.experts);
  }

 private:
  // The router reads floats; experts read the activation type, or 8 bits.
  void norm() {
    const i64 width = m_.hidden;
    step_.rows(tokens_, [&](i64 t) {
      if (layer_.post_norm.weight)
        normalize(m_, layer_.post_norm, step_.state(t), router_input() + t * width, width);
      else
        copy_row(step_.state(t), router_input() + t * width, width);
      Act* row = inputs(t);
      if constexpr (!std::is_same_v<Act, float>) copy_row(router_input() + t * width, row, width);
      if (ROUNDS_ACTIVATIONS && experts_.integers) quantize_row(row, width, rounded(t));
    });
  }

  void choose() {
    const Matrix& router = experts_.router;
    const i64 stride = router.rows;
    const StoreFloats epilogue{m_.router_logits, stride, router.bias};
    const auto product = [&](const VectorKernel& kernel) {
      const Gemm<VectorKernel, StoreFloats> gemm(kernel, router, router_input(), tokens_, epilogue);
      step_.worker.share(gemm.pieces(), [&](i64 piece) { gemm.piece(piece); });
    };
    if (router.format == FORMAT_F32)
      product(VectorKernel::of<FloatKernel<F32>>(router));
    else
      product(VectorKernel::of<FloatKernel<Bf16Fma>>(router));

    const auto choose_for = [&](i64 t) {
      route(m_.routing, experts_.correction, m_.router_logits + t * stride, plan_.ids(t), plan_.weights(t));
    };
    const bool few = tokens_ <= 4;  // a part costs as much as a few choices
    if (!few) step_.rows(tokens_, choose_for);
    step_.worker.share(1, [&](i64) {
      if (few)
        for (i64 t = 0; t < tokens_; t++) choose_for(t);
      plan_.sort(index_, m_.routing, experts_, [](const Matrix& matrix, i64 rows) {
        return Product<P, StoreFloats>(matrix, Input{}, rows, StoreFloats{}).pieces();
      });
    });
  }

  void gather(i64 row) {
    const ExpertRun& run = plan_.run_of_row(row);
    if (!run.own_input) return;
    const Matrix& matrix = experts_.gate_up[run.expert];
    const i64 width = m_.hidden, token = plan_.token_of_row(row);
    const bool rounds = rounds_activations(matrix), scaled = m_.routing.input_scaled && !is_shared(run);
    if (rounds && !scaled && !matrix.order) {
      std::copy_n(rounded(token), width / BLOCK, expert_rounded(row, width));
      return;
    }
    Act* copy = expert_inputs() + row * width;
    if (scaled) {
      const float weight = plan_.weight_of_row(row);
      for (i64 i = 0; i < width; i += W) store(copy + i, weight * load(router_input() + token * width + i));
    } else {
      std::copy_n(inputs(token), width, copy);
    }
    if (matrix.order) reorder(copy, matrix.order, width);
    if (rounds) quantize_row(copy, width, expert_rounded(row, width));
  }

  // Rows times `down` of their adapters (adapters.h), for the products with gate and up, or for those with down. Rows of
  // an expert have adapters in any order, so each is a piece.
  void multiply_down(bool last) {
    if (!plan_.slots()) return;
    const i64 blocks = m_.low_rank_stride / HALF;
    step_.worker.share(rows_ * blocks, [&](i64 piece) {
      const i64 row = piece / blocks;
      const int32_t slot = plan_.slots()[row];
      if (slot < 0) return;
      const ExpertRun& run = plan_.run_of_row(row);
      const LowRank& change = m_.adapters[slot].parts[adapted(run, last)];
      const i64 block = piece % blocks, cols = (last ? experts_.down : experts_.gate_up)[run.expert].cols;
      if (block >= change.ranks / HALF) return;
      multiply_down_block<P>(m_, change, block, last ? activated(run, row) : up_input(run, row), cols, row, 1);
    });
  }

  // The number of an expert's product among those that adapters change.
  i64 adapted(const ExpertRun& run, bool last) const {
    return step_.adapted_head() + 1 + (i64(index_) * (m_.routing.count + 1) + run.expert) * 2 + last;
  }

  // A row of the input of gate and up, in floats: gather() copies only what differs from its token's.
  const Act* up_input(const ExpertRun& run, i64 row) const {
    const bool copied = (m_.routing.input_scaled && !is_shared(run)) || experts_.gate_up[run.expert].order;
    return copied ? expert_inputs() + row * m_.hidden : inputs(plan_.token_of_row(row));
  }

  RowChanges changes(const ExpertRun& run, bool last) const {
    const i64 stride = m_.low_rank_stride;
    return {m_.adapters, plan_.slots() + run.first, m_.low_rank + run.first * stride, stride, adapted(run, last),
            m_.format};
  }

  void up(i64 piece) {
    const ExpertRun& run = plan_.run_of_piece(piece, &ExpertRun::up_pieces);
    const Matrix& matrix = experts_.gate_up[run.expert];
    const i64 width = m_.hidden, stride = experts_.down[run.expert].cols;
    const i64 token = plan_.token_of_row(run.first);
    const Input input = run.own_input ? Input{expert_inputs() + run.first * width, expert_rounded(run.first, width)}
                                      : Input{inputs(token), rounded(token)};
    const RowChanges changed = changes(run, false);
    const auto multiply = [&](const auto& epilogue) {
      const RowChanges* some = plan_.slots() ? &changed : nullptr;
      Product<P, std::decay_t<decltype(epilogue)>>(matrix, input, run.rows, epilogue, some)
          .piece(piece - run.up_pieces);
    };
    Act* const out = activated(run, run.first);
    if (m_.routing.clamp > 0 && !is_shared(run))
      return multiply(ClampedGate<Act>{out, stride, matrix.bias, m_.routing.clamp});
    with_activation(m_, layer_, [&]<class F>(F function) {
      if (m_.gated)
        multiply(Gated<Act, F>{out, stride, matrix.bias, function});
      else
        multiply(Activated<Act, F>{out, stride, matrix.bias, function});
    });
  }

  void round(i64 row) {
    const ExpertRun& run = plan_.run_of_row(row);
    const Matrix& matrix = experts_.down[run.expert];
    if (matrix.order) reorder(activated(run, row), matrix.order, matrix.cols);
    if (rounds_activations(matrix)) quantize_row(activated(run, row), matrix.cols, activated_rounded(run, row));
  }

  void down(i64 piece) {
    const ExpertRun& run = plan_.run_of_piece(piece, &ExpertRun::down_pieces);
    const Matrix& matrix = experts_.down[run.expert];
    const StoreFloats epilogue{output(run.first), step_.hidden_stride(), matrix.bias};
    const Input input{activated(run, run.first), activated_rounded(run, run.first)};
    const RowChanges changed = changes(run, true);
    Product<P, StoreFloats>(matrix, input, run.rows, epilogue, plan_.slots() ? &changed : nullptr)
        .piece(piece - run.down_pieces);
  }

  // Sums a token's experts in the order of their numbers, whatever tokens are computed with it.
  void add(i64 token) {
    const float* weights = plan_.weights(token);
    const float* shared = experts_.shared ? output(plan_.routed_rows() + token) : nullptr;
    const float* logits = m_.router_logits + token * experts_.router.rows;
    const float shared_weight = experts_.shared_gate ? 1.0f / (1.0f + std::exp(-logits[m_.routing.count])) : 1.0f;
    float* const state = step_.state(token);
    const Norm& norm = layer_.mlp_output_norm;
    float* const sums = norm.weight && !m_.post_residual_norms ? m_.projected + token * step_.hidden_stride() : state;
    for (i64 i = 0; i < m_.hidden; i += W) {
      Vec sum = {};
      for (int c = 0; c < plan_.chosen(); c++) {
        const Vec out = load(output(plan_.row(token, c)) + i);
        sum = m_.routing.input_scaled ? sum + out : fma(splat(weights[c]), out, sum);
      }
      if (shared) sum = fma(splat(shared_weight), load(shared + i), sum);
      store(sums + i, sums == state ? fma(splat(m_.residual_scale), sum, load(state + i)) : sum);
    }
    if (sums != state)
      add_normed(m_, norm, sums, state);
    else if (norm.weight)
      normalize(m_, norm, state, state, m_.hidden);
  }

  bool is_shared(const ExpertRun& run) const { return run.expert == m_.routing.count; }
  Act* inputs(i64 token) const { return static_cast<Act*>(m_.normed) + token * m_.hidden; }
  float* router_input() const {
    if constexpr (std::is_same_v<Act, float>)
      return static_cast<float*>(m_.normed);
    else
      return m_.router_input;
  }
  Int8Block* rounded(i64 token) const { return static_cast<Int8Block*>(m_.quantized) + token * (m_.hidden / BLOCK); }
  Act* expert_inputs() const { return static_cast<Act*>(m_.expert_inputs); }
  float* output(i64 row) const { return static_cast<float*>(m_.expert_inputs) + row * step_.hidden_stride(); }
  Int8Block* expert_rounded(i64 row, i64 width) const {
    return static_cast<Int8Block*>(m_.expert_quantized) + row * (width / BLOCK);
  }
  // The rows of the shared MLP have another width. They begin behind those of the experts.
  i64 activated_at(const ExpertRun& run, i64 row) const {
    const i64 width = experts_.down[run.expert].cols;
    if (!is_shared(run)) return row * width;
    return plan_.routed_rows() * experts_.down[0].cols + (row - plan_.routed_rows()) * width;
  }
  Act* activated(const ExpertRun& run, i64 row) const {
    return static_cast<Act*>(m_.expert_activated) + activated_at(run, row);
  }
  Int8Block* activated_rounded(const ExpertRun& run, i64 row) const {
    return static_cast<Int8Block*>(m_.expert_quantized) + activated_at(run, row) / BLOCK;
  }

  Step<P>& step_;
  const Model& m_;
  const Layer& layer_;
  const Experts& experts_;
  const size_t index_;
  ExpertPlan& plan_;
  const i64 tokens_, rows_;
};

}  // namespace octavo
