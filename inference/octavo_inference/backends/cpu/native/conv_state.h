// Causal convolutions over the tokens of a sequence, each channel by itself. What earlier steps leave of a sequence is its
// last inputs: [taps - 1][channels], oldest first.
#pragma once

#include <algorithm>

#include "simd.h"

namespace octavo {

constexpr i64 CONV_CHANNELS = 64;  // of a piece
constexpr int MOST_TAPS = 8;       // state_packing.py refuses more

struct Convolution {
  const float *weights, *bias;  // [taps][channels], oldest token first; [channels] or null
  i64 channels;
  int taps;

  // Channels [first, first + count) over `tokens` tokens, oldest first. in(t, channel) is a vector of inputs, and
  // out(t, channel, sums) takes the results of the same ones. `last` begins with zeros if `fresh`.
  template <class In, class Out>
  void run(float* last, bool fresh, i64 first, i64 count, i64 tokens, In&& in, Out&& out) const {
    alignas(64) float past[MOST_TAPS - 1][CONV_CHANNELS] = {};
    const int kept = taps - 1;
    if (!fresh)
      for (int k = 0; k < kept; k++) std::copy_n(last + k * channels + first, count, past[k]);
    for (i64 t = 0; t < tokens; t++)
      for (i64 c = 0; c < count; c += W) {
        const Vec x = in(t, first + c);
        const float* weight = weights + first + c;
        Vec sums = bias ? load(bias + first + c) : Vec{};
        for (int k = 0; k < kept; k++) {
          const Vec before = load(past[k] + c);
          sums = fma(before, load(weight + k * channels), sums);
          if (k > 0) store(past[k - 1] + c, before);
        }
        store(past[kept - 1] + c, x);
        out(t, first + c, fma(x, load(weight + kept * channels), sums));
      }
    for (int k = 0; k < kept; k++) std::copy_n(past[k], count, last + k * channels + first);
  }
};

}  // namespace octavo
