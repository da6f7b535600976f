// One step of the decoder: embedding, layers, logits of the sampled rows, sampling. A step is one job. Each part of it
// is split into pieces that any thread may run.
#pragma once

#include <chrono>

#include "attention.h"
#include "gemm.h"
#include "layers.h"
#include "quant.h"
#include "sample.h"

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

// What a step does: only logits of the sample rows, or tokens chosen from them. After a step, whose logits and hidden
// states are still there: only tokens chosen from its logits, or log-probabilities of given tokens after its query tokens.
enum class Task { LOGITS, SAMPLE, CHOOSE, SCORE };

template <class P>
class Forward final : public Job {
  using Act = typename P::Act;

 public:
  // Only the calling thread writes `profile`. A thread that starts late finds all pieces taken.
  Forward(const Model& m, const Batch& b, const Sampling& s, const Pooling& p, Task task, int team_size,
          Profile& profile)
      : m_(m), b_(b), s_(s), p_(p), task_(task), team_size_(team_size), profile_(profile),
        layers_(m.layers, m.layers + m.num_layers), layer_parts_(layers_.size()), plan_(m, b, team_size),
        pooled_(pooled_tokens(p)) {}

  void run(int rank) override {
    Stopwatch watch(rank == 0);
    if (task_ == Task::CHOOSE) return choose(rank, watch);
    if (task_ != Task::SCORE) {
      rows(embed_, b_.num_tokens, [&](i64 t) {
        dequantize_row(m_.embedding, b_.tokens[t], state(t));
        if (m_.embedding_scale != 1) scale_row(state(t), m_.embedding_scale, m_.hidden);
      });
      for (size_t i = 0; i < layers_.size(); i++) layer(i, rank, watch);
    }

    if (!pooled_.empty()) pool(watch);
    const i64 padded_vocab = m_.lm_head.rows;
    auto* normed = static_cast<Act*>(m_.normed);
    rows(final_norm_, s_.count, [&](i64 r) {
      rms_norm(state(s_.row[r]), m_.final_norm, normed + r * m_.hidden, m_.hidden, m_.norm_eps);
    });
    watch.lap(profile_.elementwise);
    linear(m_.lm_head, normed, s_.count, StoreFloats{m_.logits, padded_vocab, nullptr}, lm_head_);
    if (m_.logit_scale != 1 || m_.logit_softcap > 0)
      rows(finish_logits_, s_.count, [&](i64 r) { finish_logits(m_.logits + r * padded_vocab, padded_vocab); });
    watch.lap(profile_.lm_head);
    if (task_ != Task::LOGITS) choose(rank, watch);
  }

 private:
  void choose(int rank, Stopwatch& watch) {
    float* scratch = m_.scratch + rank * m_.scratch_floats;
    const i64 padded_vocab = m_.lm_head.rows;
    sampling_.share(s_.count, [&](i64 r) {
      const auto finish = task_ == Task::SCORE ? score_row : sample_row;
      finish(s_, r, m_.logits + r * padded_vocab, padded_vocab, m_.vocab, scratch);
    });
    watch.lap(profile_.sampling);
  }

  struct LinearParts {
    Part rounding, product;
  };
  struct LayerParts {
    Part input_norm, rope, attention, output_norm, post_norm, down_norm;
    LinearParts qkv, output, gate_up, down;
  };

  static std::vector<int32_t> pooled_tokens(const Pooling& p) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < p.count; i++)
      for (int32_t t = p.first[i]; t < p.end[i]; t++) tokens.push_back(t);
    return tokens;
  }

  // Normalizes the hidden states of pooled tokens in place, because no later part reads them.
  void pool(Stopwatch& watch) {
    rows(pool_norm_, i64(pooled_.size()), [&](i64 i) {
      float* x = state(pooled_[size_t(i)]);
      rms_norm(x, m_.final_norm, x, m_.hidden, m_.norm_eps);
    });
    pool_sum_.share(p_.count, [&](i64 i) {
      float* sum = p_.sums + i64(p_.row[i]) * m_.hidden;
      if (p_.fresh[i]) std::fill(sum, sum + m_.hidden, 0.0f);
      for (i64 t = p_.first[i]; t < p_.end[i]; t++)
        for (i64 c = 0; c < m_.hidden; c += W) store(sum + c, load(sum + c) + load(state(t) + c));
    });
    watch.lap(profile_.elementwise);
  }

  void layer(size_t index, int rank, Stopwatch& watch) {
    const Layer& layer = layers_[index];
    LayerParts& parts = layer_parts_[index];
    const KvLayer<P> kv = kv_layer<P>(m_, i64(index));
    const i64 tokens = b_.num_tokens, hidden = m_.hidden, qkv_stride = layer.qkv.rows;
    auto* normed = static_cast<Act*>(m_.normed);
    auto* attended = static_cast<Act*>(m_.attended);
    auto* activated = static_cast<Act*>(m_.activated);
    float* scratch = m_.scratch + rank * m_.scratch_floats;
    const Gated<Act> gated{activated, m_.intermediate, layer.gate_up.bias, m_.activation == ACTIVATION_GELU_TANH};

    rows(parts.input_norm, tokens,
         [&](i64 t) { rms_norm(state(t), layer.input_norm, normed + t * hidden, hidden, m_.norm_eps); });
    watch.lap(profile_.elementwise);
    linear(layer.qkv, normed, tokens, StoreFloats{m_.qkv, qkv_stride, layer.qkv.bias}, parts.qkv);
    watch.lap(profile_.linears);
    rows(parts.rope, tokens,
         [&](i64 t) { rope_and_store(m_, layer, kv, m_.qkv + t * qkv_stride, b_.positions[t], b_.slots[t]); });
    watch.lap(profile_.elementwise);
    attention(m_, b_, kv, layer.window, plan_, m_.qkv, qkv_stride, attended, scratch, parts.attention);
    watch.lap(profile_.attention);
    add_linear(layer.output, attended, layer.attention_output_norm, parts.output, parts.output_norm, watch);
    rows(parts.post_norm, tokens,
         [&](i64 t) { rms_norm(state(t), layer.post_norm, normed + t * hidden, hidden, m_.norm_eps); });
    watch.lap(profile_.elementwise);
    linear(layer.gate_up, normed, tokens, gated, parts.gate_up);
    watch.lap(profile_.linears);
    add_linear(layer.down, activated, layer.mlp_output_norm, parts.down, parts.down_norm, watch);
  }

  // A linear added to the residual stream. An output norm needs complete rows, so they are stored in `projected` first.
  void add_linear(const Matrix& matrix, const Act* input, const float* norm, LinearParts& parts, Part& norm_part,
                  Stopwatch& watch) {
    const i64 stride = matrix.rows;
    if (!norm) {
      const AddToResidual residual{m_.hidden_state, stride, matrix.bias, m_.residual_scale};
      linear(matrix, input, b_.num_tokens, residual, parts);
      watch.lap(profile_.linears);
      return;
    }
    linear(matrix, input, b_.num_tokens, StoreFloats{m_.projected, stride, matrix.bias}, parts);
    watch.lap(profile_.linears);
    rows(norm_part, b_.num_tokens, [&](i64 t) {
      add_normed(m_.projected + t * stride, norm, state(t), m_.hidden, m_.norm_eps, m_.residual_scale);
    });
    watch.lap(profile_.elementwise);
  }

  void finish_logits(float* row, i64 width) const {
    if (m_.logit_scale != 1) scale_row(row, m_.logit_scale, width);
    if (m_.logit_softcap > 0)
      for (i64 i = 0; i < width; i += W) store(row + i, softcap(load(row + i), m_.logit_softcap));
  }

  // A quantized linear first quantizes its input rows to int8.
  template <class Epilogue>
  void linear(const Matrix& matrix, const Act* input, i64 count, const Epilogue& epilogue, LinearParts& parts) {
    const void* a = input;
    if (is_quantized(matrix)) {
      auto* blocks = static_cast<Int8Block*>(m_.quantized);
      const i64 cols = matrix.cols;
      rows(parts.rounding, count, [&](i64 r) { quantize_row(input + r * cols, cols, blocks + r * (cols / BLOCK)); });
      a = blocks;
    }
    gemm<P>(matrix, a, count, epilogue, parts.product, team_size_);
  }

  // Calls row(r) for each of `count` rows, in up to four pieces per thread.
  template <class F>
  void rows(Part& part, i64 count, F&& row) {
    const i64 pieces = std::min<i64>(count, team_size_ * 4);
    part.share(pieces, [&](i64 i) {
      for (i64 r = count * i / pieces; r < count * (i + 1) / pieces; r++) row(r);
    });
  }

  float* state(i64 token) const { return m_.hidden_state + token * layers_[0].output.rows; }

  // Copies, because a late thread may read sizes after the caller has freed its structs.
  const Model m_;
  const Batch b_;
  const Sampling s_;
  const Pooling p_;
  const Task task_;
  const int team_size_;
  Profile& profile_;
  const std::vector<Layer> layers_;
  Part embed_, pool_norm_, pool_sum_, final_norm_, finish_logits_, sampling_;
  LinearParts lm_head_;
  std::vector<LayerParts> layer_parts_;
  AttentionPlan plan_;
  const std::vector<int32_t> pooled_;
};

}  // namespace octavo
