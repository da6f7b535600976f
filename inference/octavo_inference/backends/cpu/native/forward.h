// One step of the decoder: embedding, layers, logits of the sampled rows, sampling. A step is one job. Each part of it
// is split into pieces that any thread may run.
#pragma once

#include <map>

#include "attention_part.h"
#include "experts.h"
#include "latent_part.h"
#include "mlp_part.h"
#include "quant.h"
#include "sample.h"
#include "state_part.h"
#include "step.h"

namespace octavo {

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
        layers_(m.layers, m.layers + m.num_layers),
        adapters_{b.adapter, s.adapter, layers_.data()},
        latent_plan_(m, b, team_size), expert_plan_(m, b),
        pooled_(pooled_tokens(p)),
        own_logits_(have_own_logits(m, s)),
        best_((task == Task::SAMPLE || task == Task::CHOOSE) && only_best(s) && !own_logits_ ? size_t(team_size * s.count)
                                                                                           : 0) {
    for (const Layer& layer : layers_)
      if (layer.qkv.rows && !m.latent.rank) plans_.try_emplace({layer.heads, layer.kv_heads}, m, layer, b, team_size);
  }

  void run(Worker& worker) override {
    Step<P> step(m_, b_, worker, profile_, adapters_);
    if (task_ == Task::LOGITS || task_ == Task::SAMPLE) {
      step.rows(b_.num_tokens, [&](i64 t) { embed(step, t); });
      for (const Layer& each : layers_) layer(step, each);
    }

    if (!pooled_.empty()) pool(step);
    if (!m_.lm_head.rows) return;  // a model that predicts no tokens
    const Rows<Act> sampled{s_.count, nullptr, m_.final_norm, s_.row};
    const StoreLogits logits{m_.logits, m_.lm_head.rows, m_.lm_head.bias, m_.logit_scale, m_.logit_softcap};
    if (!best_.empty()) {
      step.linear(m_.lm_head, sampled, KeepBest{logits, s_.adjust, m_.vocab, best_.data() + worker.rank() * s_.count},
                  step.adapted_head());
      step.rows(s_.count, [&](i64 r) {
        for (int rank = 1; rank < worker.team_size(); rank++) best_[size_t(r)].add(best_[size_t(rank * s_.count + r)]);
        s_.tokens[r] = best_[size_t(r)].id();
      });
      return step.watch.lap(profile_.lm_head);
    }
    step.linear(m_.lm_head, sampled, logits, step.adapted_head());
    if (own_logits_) step.rows(s_.count, [&](i64 r) { write_own_logits(logits, r); });
    step.watch.lap(profile_.lm_head);
    if (task_ != Task::LOGITS) choose(step);
  }

 private:
  void embed(Step<P>& step, i64 t) {
    float* x = step.state(t);
    const int32_t token = b_.tokens[t];
    const Adapter* adapter = b_.adapter && b_.adapter[t] >= 0 ? m_.adapters + b_.adapter[t] : nullptr;
    const bool own = adapter && own_embedding(*adapter, token, x, m_.hidden, m_.format);
    if (!own) dequantize_row(m_.embedding, token, x);
    if (m_.embedding_scale != 1) scale_row(x, m_.embedding_scale, m_.hidden);
    if (adapter && !own) change_embedding(*adapter, token, x, m_.hidden, m_.embedding_scale);
    if (m_.positions.data) {
      dequantize_row(m_.positions, b_.positions[t], step.scratch());
      add_row(step.scratch(), x, m_.hidden);
    }
    const bool second = b_.token_types && b_.token_types[t] && m_.second_token_type;
    if (m_.token_type) add_row(second ? m_.second_token_type : m_.token_type, x, m_.hidden);
    if (m_.embedding_norm.weight) normalize(m_, m_.embedding_norm, x, x, m_.hidden);
  }

  // Mixers, then a feed-forward part. All mixers read the same hidden states, in parallel layers the last part too.
  void layer(Step<P>& step, const Layer& layer) {
    if (m_.latent.rank) {
      latent_part(step, layer, latent_plan_);
      return feed_forward(step, layer);
    }
    if (layer.state.slots) state_part(step, layer);
    if (layer.qkv.rows) project_part(step, layer);
    if (m_.parallel) feed_forward(step, layer);
    if (layer.qkv.rows) attention_part(step, layer, plans_.at({layer.heads, layer.kv_heads}));
    if (layer.state.slots)
      step.add_linear(layer.state.output, static_cast<Act*>(m_.mixed), layer.attention_output_norm,
                      step.adapted(layer, ADAPTED_STATE_OUTPUT));
    if (!m_.parallel) feed_forward(step, layer);
  }

  void feed_forward(Step<P>& step, const Layer& layer) {
    if (layer.experts)
      ExpertsPart<P>(step, layer, size_t(&layer - layers_.data()), expert_plan_).run();
    else if (layer.gate_up.rows)
      mlp_part(step, layer);
  }

  // Whether an adapter of a sampled row has rows of lm_head.
  static bool have_own_logits(const Model& m, const Sampling& s) {
    for (int32_t r = 0; s.adapter && r < s.count; r++)
      if (s.adapter[r] >= 0 && m.adapters[s.adapter[r]].head_rows.count) return true;
    return false;
  }

  // Writes the logits of ids for which the row's adapter has rows of its own. The product with lm_head has left the
  // normed states of the rows, in the order of its columns.
  void write_own_logits(const StoreLogits& logits, i64 r) {
    if (s_.adapter[r] < 0) return;
    const TokenRows& own = m_.adapters[s_.adapter[r]].head_rows;
    const Act* state = static_cast<const Act*>(m_.normed) + r * m_.hidden;
    float* out = m_.logits + r * m_.lm_head.rows;
    for (int32_t place = 0; place < own.count; place++)
      out[own.ids[place]] = logits.shape(splat(own_logit(own, place, state, m_.hidden, m_.format)))[0];
  }

  void choose(Step<P>& step) {
    const i64 padded_vocab = m_.lm_head.rows;
    step.worker.share(s_.count, [&](i64 r) {
      const auto finish = task_ == Task::SCORE ? score_row : sample_row;
      finish(s_, r, m_.logits + r * padded_vocab, padded_vocab, m_.vocab, step.scratch());
    });
    step.watch.lap(profile_.sampling);
  }

  static std::vector<int32_t> pooled_tokens(const Pooling& p) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < p.count; i++)
      for (int32_t t = p.first[i]; t < p.end[i]; t++) tokens.push_back(t);
    return tokens;
  }

  // Normalizes the hidden states of pooled tokens in place, because no later part reads them.
  void pool(Step<P>& step) {
    if (m_.final_norm.weight)
      step.rows(i64(pooled_.size()), [&](i64 i) {
        float* x = step.state(pooled_[size_t(i)]);
        normalize(m_, m_.final_norm, x, x, m_.hidden);
      });
    step.worker.share(p_.count, [&](i64 i) {
      float* sum = p_.sums + i64(p_.row[i]) * m_.hidden;
      if (p_.fresh[i]) std::fill(sum, sum + m_.hidden, 0.0f);
      for (i64 t = p_.first[i]; t < p_.end[i]; t++) add_row(step.state(t), sum, m_.hidden);
    });
    step.watch.lap(profile_.elementwise);
  }

  // Copies, because a late thread may read sizes after the caller has freed its structs. Parts of matrices live longer.
  const Model m_;
  const Batch b_;
  const Sampling s_;
  const Pooling p_;
  const Task task_;
  Profile& profile_;
  const std::vector<Layer> layers_;
  const StepAdapters adapters_;
  std::map<std::pair<int32_t, int32_t>, AttentionPlan> plans_;  // by the numbers of heads and KV heads
  LatentPlan latent_plan_;
  ExpertPlan expert_plan_;
  const std::vector<int32_t> pooled_;
  const bool own_logits_;
  std::vector<Best> best_;  // [team][rows], if only the best logits are asked for: then no logits are stored
};

}  // namespace octavo
