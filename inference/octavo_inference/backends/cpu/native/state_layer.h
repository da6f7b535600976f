// The parts of a state layer between its linears: convolution, recurrence, gated norm. They read and write the rows of its
// inputs, in fp32.
#pragma once

#include "abi.h"
#include "conv_state.h"
#include "gated_delta.h"
#include "layers.h"
#include "mamba2.h"
#include "threads.h"

namespace octavo {

// First columns of what a row of inputs consists of.
struct StateColumns {
  i64 conv, value, key, query, gate, step, beta;
};

inline StateColumns state_columns(const StateSizes& s) {
  const i64 keys = i64(s.key_heads) * s.rows, inner = s.inner;
  if (s.kind == STATE_MAMBA2) return {inner, inner, 2 * inner, 2 * inner + keys, 0, 2 * (inner + keys), 0};
  if (s.kind == STATE_SHORT_CONV) return {0, 2 * inner, 0, 0, inner, 0, 0};
  return {0, 2 * keys, keys, 0, 2 * keys + inner, 2 * (keys + inner) + s.heads, 2 * (keys + inner)};
}

// out = norm(y) * silu(z), or norm(y * silu(z)), over parts of `group` elements. Overwrites y.
template <class Act>
static void gated_norm(float* y, const float* z, const float* norm, i64 width, i64 group, bool norm_first, float eps,
                       Act* out) {
  for (i64 from = 0; from < width; from += group) {
    Vec squares = {};
    for (i64 i = from; i < from + group; i += W) {
      if (!norm_first) store(y + i, load(y + i) * silu(load(z + i)));
      squares = fma(load(y + i), load(y + i), squares);
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / float(group) + eps);
    for (i64 i = from; i < from + group; i += W) {
      Vec v = load(y + i) * scale * load(norm + i);
      if (norm_first) v *= silu(load(z + i));
      store(out + i, v);
    }
  }
}

// One state layer of a step: `inputs` [tokens][stride] become `outputs` [tokens][inner].
template <class Act>
class StateMixer {
 public:
  StateMixer(const Model& m, const Batch& b, const StateLayer& layer, float* inputs, Act* outputs)
      : shape_(m.state), batch_(b), layer_(layer), at_(state_columns(m.state)), inputs_(inputs),
        stride_(layer.inputs.rows), outputs_(outputs), norm_eps_(m.norm_eps) {}

  // Whether heads have a state: else the convolution writes the outputs.
  bool recurs() const { return shape_.kind != STATE_SHORT_CONV; }

  // Called by every thread of the team, as the next one.
  void convolve(Worker& worker) const {
    const i64 pieces = (shape_.channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
    worker.share(pieces, [&](i64 piece) {
      const i64 first = piece * CONV_CHANNELS, count = std::min(CONV_CHANNELS, shape_.channels - first);
      for (i64 seq = 0; seq < batch_.num_seqs; seq++) convolve(sequence(seq), first, count);
    });
  }

  void recur(Worker& worker) const {
    // Sequences in reverse: prompts come after decodes, and long pieces go first.
    worker.share(i64(batch_.num_seqs) * shape_.heads, [&](i64 piece) {
      recur(sequence(batch_.num_seqs - 1 - piece / shape_.heads), piece % shape_.heads);
    });
  }

  void norm(i64 token) const {
    float* row = inputs_ + token * stride_;
    float *y = row + at_.value, *z = row + at_.gate;
    Act* out = outputs_ + token * shape_.inner;
    if (shape_.norm_group)
      gated_norm(y, z, layer_.norm, shape_.inner, shape_.norm_group, shape_.norm_first, norm_eps_, out);
    else
      for (i64 i = 0; i < shape_.inner; i += W) store(out + i, load(y + i) * silu(load(z + i)));
  }

 private:
  struct Sequence {
    float *rows, *slot;
    i64 first, tokens;
    bool fresh;  // its state is that of no tokens
  };

  Sequence sequence(i64 seq) const {
    const i64 first = batch_.query_start[seq], tokens = batch_.query_start[seq + 1] - first;
    float* slot = layer_.slots + batch_.states[seq] * shape_.elements;
    return {inputs_ + first * stride_, slot, first, tokens, tokens > 0 && batch_.positions[first] == 0};
  }

  void convolve(const Sequence& s, i64 first, i64 count) const {
    if (s.tokens == 0) return;
    const Convolution convolution{layer_.conv, layer_.conv_bias, shape_.channels, shape_.taps};
    if (shape_.kind == STATE_SHORT_CONV) {
      const auto at = [&](i64 t, i64 column) { return s.rows + t * stride_ + column; };
      convolution.run(
          s.slot, s.fresh, first, count, s.tokens,
          [&](i64 t, i64 c) { return load(at(t, c)) * load(at(t, at_.value + c)); },
          [&](i64 t, i64 c, Vec v) {
            store(outputs_ + (s.first + t) * shape_.inner + c, v * load(at(t, at_.gate + c)));
          });
      return;
    }
    const auto at = [&](i64 t, i64 c) { return s.rows + t * stride_ + at_.conv + c; };
    convolution.run(
        s.slot, s.fresh, first, count, s.tokens, [&](i64 t, i64 c) { return load(at(t, c)); },
        [&](i64 t, i64 c, Vec v) { store(at(t, c), silu(v)); });
  }

  void recur(const Sequence& s, i64 head) const {
    if (s.tokens == 0) return;
    const i64 size = i64(shape_.rows) * shape_.columns;
    const i64 keys = head / (shape_.heads / shape_.key_heads) * shape_.rows;
    float* state = s.slot + i64(shape_.taps - 1) * shape_.channels + head * size;
    float *value = s.rows + at_.value + head * shape_.columns, *key = s.rows + at_.key + keys;
    const float *query = s.rows + at_.query + keys, *step = s.rows + at_.step + head;
    const float decay = layer_.decay[head], bias = layer_.step_bias[head];
    if (s.fresh) std::fill(state, state + size, 0.0f);
    if (shape_.kind == STATE_MAMBA2)
      run(Mamba2Head{value, key, query, step, stride_, shape_.rows, shape_.columns, decay, bias, layer_.skip[head],
                     shape_.step_least, shape_.step_most},
          state, s.tokens);
    else
      run(GatedDeltaHead{value, key, query, s.rows + at_.beta + head, step, stride_, shape_.rows, shape_.columns, decay,
                         bias},
          state, s.tokens);
  }

  template <class Head>
  void run(const Head& head, float* state, i64 tokens) const {
    if (shape_.columns % STATE_BLOCK == 0)
      head.template run<STATE_BLOCK / W>(state, tokens);
    else
      head.template run<STATE_BLOCK / 2 / W>(state, tokens);
  }

  const StateSizes& shape_;
  const Batch& batch_;
  const StateLayer& layer_;
  const StateColumns at_;
  float* inputs_;
  const i64 stride_;
  Act* outputs_;
  const float norm_eps_;
};

}  // namespace octavo
