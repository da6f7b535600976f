// One step of the decoder: embedding, layers, logits of the sampled rows, sampling. A step is one job. Each part of it
// is split into pieces that any thread may run.
#pragma once

#include <chrono>

#include "attention.h"
#include "gemm.h"
#include "latent_attention.h"
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

// What a step does: only logits of the sample rows, or tokens chosen from them. After a step, whose hidden states are
// still there: tokens chosen as in the step, or log-probabilities of given tokens after its query tokens.
enum class Task { LOGITS, SAMPLE, CHOOSE, SCORE };

template <class P>
class Forward final : public Job {
  using Act = typename P::Act;

 public:
  // Only the calling thread writes `profile`.
  Forward(const Model& m, const Batch& b, const Sampling& s, const Pooling& p, Task task, int team_size,
          Profile& profile)
      : Job(team_size), m_(m), b_(b), s_(s), p_(p), task_(task), profile_(profile),
        layers_(m.layers, m.layers + m.num_layers), plan_(m, b, team_size), latent_plan_(m, b, team_size),
        pooled_(pooled_tokens(p)),
        best_((task == Task::SAMPLE || task == Task::CHOOSE) && only_best(s) ? size_t(team_size * s.count) : 0) {}

  void run(Worker& worker) override {
    Stopwatch watch(worker.rank() == 0);
    if (task_ == Task::LOGITS || task_ == Task::SAMPLE) {
      rows(worker, b_.num_tokens, [&](i64 t) {
        dequantize_row(m_.embedding, b_.tokens[t], state(t));
        if (m_.embedding_scale != 1) scale_row(state(t), m_.embedding_scale, m_.hidden);
      });
      for (size_t i = 0; i < layers_.size(); i++) layer(i, worker, watch);
    }

    if (!pooled_.empty()) pool(worker, watch);
    const Rows sampled{s_.count, nullptr, m_.final_norm, s_.row};
    const StoreLogits logits{m_.logits, m_.lm_head.rows, m_.logit_scale, m_.logit_softcap};
    if (!best_.empty()) {
      linear(m_.lm_head, sampled, KeepBest{logits, s_.adjust, m_.vocab, best_.data() + worker.rank() * s_.count}, worker);
      rows(worker, s_.count, [&](i64 r) {
        for (int rank = 1; rank < worker.team_size(); rank++) best_[size_t(r)].add(best_[size_t(rank * s_.count + r)]);
        s_.tokens[r] = best_[size_t(r)].id();
      });
      return watch.lap(profile_.lm_head);
    }
    linear(m_.lm_head, sampled, logits, worker);
    watch.lap(profile_.lm_head);
    if (task_ != Task::LOGITS) choose(worker, watch);
  }

 private:
  // The input of a product: rows that are there, or the norms of hidden states.
  struct Rows {
    i64 count;
    Act* ready;
    const float* norm;
    const int32_t* token;  // null: of the tokens in order
  };

  void choose(Worker& worker, Stopwatch& watch) {
    float* scratch = m_.scratch + worker.rank() * m_.scratch_floats;
    const i64 padded_vocab = m_.lm_head.rows;
    worker.share(s_.count, [&](i64 r) {
      const auto finish = task_ == Task::SCORE ? score_row : sample_row;
      finish(s_, r, m_.logits + r * padded_vocab, padded_vocab, m_.vocab, scratch);
    });
    watch.lap(profile_.sampling);
  }

  static std::vector<int32_t> pooled_tokens(const Pooling& p) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < p.count; i++)
      for (int32_t t = p.first[i]; t < p.end[i]; t++) tokens.push_back(t);
    return tokens;
  }

  // Normalizes the hidden states of pooled tokens in place, because no later part reads them.
  void pool(Worker& worker, Stopwatch& watch) {
    rows(worker, i64(pooled_.size()), [&](i64 i) {
      float* x = state(pooled_[size_t(i)]);
      rms_norm(x, m_.final_norm, x, m_.hidden, m_.norm_eps);
    });
    worker.share(p_.count, [&](i64 i) {
      float* sum = p_.sums + i64(p_.row[i]) * m_.hidden;
      if (p_.fresh[i]) std::fill(sum, sum + m_.hidden, 0.0f);
      for (i64 t = p_.first[i]; t < p_.end[i]; t++)
        for (i64 c = 0; c < m_.hidden; c += W) store(sum + c, load(sum + c) + load(state(t) + c));
    });
    watch.lap(profile_.elementwise);
  }

  void layer(size_t index, Worker& worker, Stopwatch& watch) {
    const Layer& layer = layers_[index];
    const KvLayer<P> kv = kv_layer<P>(m_, i64(index));
    const i64 tokens = b_.num_tokens, qkv_stride = layer.qkv.rows;
    auto* attended = static_cast<Act*>(m_.attended);
    auto* activated = static_cast<Act*>(m_.activated);
    float* scratch = m_.scratch + worker.rank() * m_.scratch_floats;
    const Gated<Act> gated{activated, m_.intermediate, layer.gate_up.bias, m_.activation == ACTIVATION_GELU_TANH};

    if (m_.latent.rank) {
      latent_mixer(layer, i64(index), worker, watch);
    } else {
    linear(layer.qkv, Rows{tokens, nullptr, layer.input_norm, nullptr},
           StoreFloats{m_.qkv, qkv_stride, layer.qkv.bias}, worker);
    watch.lap(profile_.linears);
    rows(worker, tokens,
         [&](i64 t) { rope_and_store(m_, layer, kv, m_.qkv + t * qkv_stride, b_.positions[t], b_.slots[t]); });
    watch.lap(profile_.elementwise);
    attention(m_, b_, kv, layer.window, plan_, m_.qkv, qkv_stride, attended, scratch, worker);
    watch.lap(profile_.attention);
    }
    add_linear(layer.output, attended, layer.attention_output_norm, worker, watch);
    linear(layer.gate_up, Rows{tokens, nullptr, layer.post_norm, nullptr}, gated, worker);
    watch.lap(profile_.linears);
    add_linear(layer.down, activated, layer.mlp_output_norm, worker, watch);
  }

  // Latent attention, up to the rows of `attended`.
  void latent_mixer(const Layer& layer, i64 index, Worker& worker, Stopwatch& watch) {
    const Latent& l = m_.latent;
    const LatentLayer<P> pool = latent_layer<P>(m_, index);
    const i64 tokens = b_.num_tokens, stride = layer.qkv.rows;
    const i64 queries_stride = l.query_rank ? layer.query_up.rows : stride;
    const i64 compressed = l.query_rank ? l.query_rank : m_.heads * i64(l.nope + l.rope);  // offset in a row of qkv
    float* queries = l.query_rank ? l.queries : m_.qkv;
    auto* normed = static_cast<Act*>(m_.normed);
    auto *by_head = static_cast<Act*>(l.by_head), *absorbed = static_cast<Act*>(l.absorbed);

    linear(layer.qkv, Rows{tokens, nullptr, layer.input_norm, nullptr}, StoreFloats{m_.qkv, stride, nullptr}, worker);
    if (l.query_rank) {
      rows(worker, tokens, [&](i64 t) {
        rms_norm(m_.qkv + t * stride, layer.query_norm, normed + t * l.query_rank, l.query_rank, l.norm_eps);
      });
      linear(layer.query_up, Rows{tokens, normed, nullptr, nullptr}, StoreFloats{queries, queries_stride, nullptr}, worker);
    }
    watch.lap(profile_.linears);
    rows(worker, tokens, [&](i64 t) {
      prepare_latent(m_, layer, pool, queries + t * queries_stride, m_.qkv + t * stride + compressed, t, tokens,
                     b_.positions[t], b_.slots[t]);
    });
    watch.lap(profile_.elementwise);
    const float scale = m_.score_scale * LOG2_E;
    multiply_heads<P>(layer.key_up, m_.heads, by_head, tokens, absorbed, l.rank + l.rope, scale, worker);
    watch.lap(profile_.linears);
    latent_attention(m_, b_, pool, latent_plan_, m_.scratch + worker.rank() * m_.scratch_floats, worker);
    watch.lap(profile_.attention);
    multiply_heads<P>(layer.value_up, m_.heads, by_head, tokens, static_cast<Act*>(m_.attended), l.value, 1.0f, worker);
    watch.lap(profile_.linears);
  }

  // A linear added to the residual stream. An output norm needs complete rows, so they are stored in `projected` first.
  void add_linear(const Matrix& matrix, Act* input, const float* norm, Worker& worker, Stopwatch& watch) {
    const i64 stride = matrix.rows;
    const Rows ready{b_.num_tokens, input, nullptr, nullptr};
    if (!norm) {
      linear(matrix, ready, AddToResidual{m_.hidden_state, stride, matrix.bias, m_.residual_scale}, worker);
      watch.lap(profile_.linears);
      return;
    }
    linear(matrix, ready, StoreFloats{m_.projected, stride, matrix.bias}, worker);
    watch.lap(profile_.linears);
    rows(worker, b_.num_tokens, [&](i64 t) {
      add_normed(m_.projected + t * stride, norm, state(t), m_.hidden, m_.norm_eps, m_.residual_scale);
    });
    watch.lap(profile_.elementwise);
  }

  // First puts the columns of its input rows in the order of the matrix's, where that is another one, and rounds them to
  // 8 bits, if its kernel reads such rows.
  template <class Epilogue>
  void linear(const Matrix& matrix, const Rows& input, const Epilogue& epilogue, Worker& worker) {
    const bool quantized = rounds_activations(matrix);
    auto* normed = static_cast<Act*>(m_.normed);
    auto* blocks = static_cast<Int8Block*>(m_.quantized);
    Act* complete = input.norm ? normed : input.ready;
    const i64 cols = matrix.cols;
    if (input.norm || quantized || matrix.order)
      rows(worker, input.count, [&](i64 r) {
        const i64 token = input.token ? input.token[r] : r;
        if (input.norm) rms_norm(state(token), input.norm, normed + r * cols, cols, m_.norm_eps);
        if (matrix.order) reorder(complete + r * cols, matrix.order, cols);
        if (quantized) quantize_row(complete + r * cols, cols, blocks + r * (cols / BLOCK));
      });
    gemm<P>(matrix, Input{complete, blocks}, input.count, epilogue, worker);
  }

  // Calls row(r) for each of `count` rows, in up to four pieces per thread.
  template <class F>
  static void rows(Worker& worker, i64 count, F&& row) {
    const i64 pieces = std::min<i64>(count, worker.team_size() * 4);
    worker.share(pieces, [&](i64 i) {
      for (i64 r = count * i / pieces; r < count * (i + 1) / pieces; r++) row(r);
    });
  }

  float* state(i64 token) const { return m_.hidden_state + token * layers_[0].output.rows; }

  // Copies, because a late thread may read sizes after the caller has freed its structs. Parts of matrices live longer.
  const Model m_;
  const Batch b_;
  const Sampling s_;
  const Pooling p_;
  const Task task_;
  Profile& profile_;
  const std::vector<Layer> layers_;
  AttentionPlan plan_;
  LatentPlan latent_plan_;
  const std::vector<int32_t> pooled_;
  std::vector<Best> best_;  // [team][rows], if only the best logits are asked for: then no logits are stored
};

}  // namespace octavo
