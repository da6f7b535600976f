// One step of the decoder: embedding, layers, logits of the sampled rows, sampling. One parallel region, barriers
// between parts.
#pragma once

#include <chrono>

#include "attention.h"
#include "gemm.h"
#include "layers.h"
#include "quant.h"
#include "sample.h"

namespace octavo {

// Books the time since the last call on the calling thread's clock; other threads keep none.
class Stopwatch {
 public:
  explicit Stopwatch(bool enabled) : enabled_(enabled) { last_ = now(); }
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

// The parts of a layer that hand out tickets.
enum Part { QKV, ATTENTION, OUTPUT, GATE_UP, DOWN, PARTS };

template <class P>
class Forward {
  using Act = typename P::Act;

 public:
  Forward(const Model& m, const Batch& b, const Sampling& s, bool choose, Team& team, Profile& profile)
      : m_(m), b_(b), s_(s), choose_(choose), team_(team), profile_(profile),
        tickets_(size_t(m.num_layers) * PARTS + 2), items_(attention_items(m, b)) {}

  // Called by every thread of the team.
  void run(int rank) {
    const i64 tokens = b_.num_tokens, from = tokens * rank / team_.size(), to = tokens * (rank + 1) / team_.size();
    Stopwatch watch(rank == 0);
    for (i64 t = from; t < to; t++) dequantize_row(m_.embedding, b_.tokens[t], state(t));
    for (i64 i = 0; i < m_.num_layers; i++) layer(i, rank, from, to, watch);

    auto* normed = static_cast<Act*>(m_.normed);
    const i64 rows = s_.count, padded_vocab = m_.lm_head.rows;
    Tickets* tickets = &tickets_[size_t(m_.num_layers) * PARTS];
    for (i64 r = rows * rank / team_.size(); r < rows * (rank + 1) / team_.size(); r++)
      rms_norm(state(s_.row[r]), m_.final_norm, normed + r * m_.hidden, m_.hidden, m_.norm_eps);
    part_done(watch, profile_.elementwise);
    gemm<P>(m_.lm_head, normed, rows, StoreFloats{m_.logits, padded_vocab, nullptr}, tickets[0], team_.size());
    part_done(watch, profile_.lm_head);
    if (!choose_) return;
    for (i64 r = tickets[1].take(); r < rows; r = tickets[1].take())
      sample_row(s_, r, m_.logits + r * padded_vocab, padded_vocab, m_.vocab, m_.scratch + rank * m_.scratch_floats);
    part_done(watch, profile_.sampling);
  }

 private:
  void layer(i64 index, int rank, i64 from, i64 to, Stopwatch& watch) {
    const Layer& layer = m_.layers[index];
    Tickets* tickets = &tickets_[size_t(index) * PARTS];
    const KvLayer<P> kv = kv_layer<P>(m_, index);
    const i64 tokens = b_.num_tokens, hidden = m_.hidden, qkv_stride = layer.qkv.rows;
    auto* normed = static_cast<Act*>(m_.normed);
    auto* attended = static_cast<Act*>(m_.attended);
    auto* activated = static_cast<Act*>(m_.activated);
    float* scratch = m_.scratch + rank * m_.scratch_floats;
    const AddToResidual residual{m_.hidden_state, layer.output.rows};

    for (i64 t = from; t < to; t++) rms_norm(state(t), layer.input_norm, normed + t * hidden, hidden, m_.norm_eps);
    part_done(watch, profile_.elementwise);
    gemm<P>(layer.qkv, normed, tokens, StoreFloats{m_.qkv, qkv_stride, layer.qkv.bias}, tickets[QKV], team_.size());
    part_done(watch, profile_.linears);
    for (i64 t = from; t < to; t++) rope_and_store(m_, kv, m_.qkv + t * qkv_stride, b_.positions[t], b_.slots[t]);
    part_done(watch, profile_.elementwise);
    attention(m_, b_, kv, items_, m_.qkv, qkv_stride, attended, scratch, tickets[ATTENTION]);
    part_done(watch, profile_.attention);
    gemm<P>(layer.output, attended, tokens, residual, tickets[OUTPUT], team_.size());
    part_done(watch, profile_.linears);
    for (i64 t = from; t < to; t++) rms_norm(state(t), layer.post_norm, normed + t * hidden, hidden, m_.norm_eps);
    part_done(watch, profile_.elementwise);
    gemm<P>(layer.gate_up, normed, tokens, GatedSilu<Act>{activated, m_.intermediate}, tickets[GATE_UP], team_.size());
    part_done(watch, profile_.linears);
    gemm<P>(layer.down, activated, tokens, residual, tickets[DOWN], team_.size());
    part_done(watch, profile_.linears);
  }

  float* state(i64 token) const { return m_.hidden_state + token * m_.layers[0].output.rows; }

  void part_done(Stopwatch& watch, double& total) {
    team_.barrier();
    watch.lap(total);
  }

  const Model& m_;
  const Batch& b_;
  const Sampling& s_;
  const bool choose_;
  Team& team_;
  Profile& profile_;
  std::vector<Tickets> tickets_;
  std::vector<AttentionItem> items_;
};

}  // namespace octavo
