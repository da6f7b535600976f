// The activations of MLPs.
#pragma once

#include "abi.h"
#include "simd.h"

namespace octavo {

// x times the normal distribution function: 1 - P(t) exp(-x^2 / 2) for x > 0, and P(t) exp(-x^2 / 2) below, with the
// polynomial 7.1.26 of Abramowitz and Stegun's Handbook. The absolute error of the function is below 1e-7.
OCTAVO_INLINE Vec gelu(Vec x) {
  const Vec size = max(x, -x);
  const Vec t = 1.0f / fma(splat(0.3275911f * 0.70710678f), size, splat(1.0f));
  Vec p = splat(0.5f * 1.061405429f);
  p = fma(p, t, splat(0.5f * -1.453152027f));
  p = fma(p, t, splat(0.5f * 1.421413741f));
  p = fma(p, t, splat(0.5f * -0.284496736f));
  p = fma(p, t, splat(0.5f * 0.254829592f));
  const Vec tail = p * t * exp2(x * x * (-0.5f * LOG2_E));
  return x * (x > 0 ? 1.0f - tail : tail);
}

OCTAVO_INLINE Vec relu(Vec x) { return x < 0 ? Vec{} : x; }  // NaN must propagate

// xIELU (https://arxiv.org/abs/2411.13010) with beta 0.5: a parabola for x > 0, a bent exponential function below.
OCTAVO_INLINE Vec xielu(Vec x, float positive, float negative) {
  const Vec bent = exp2(min(x, splat(-1e-6f)) * LOG2_E) - 1.0f - x;
  return fma(x, splat(0.5f), x > 0 ? positive * x * x : negative * bent);
}

// The activations as functions of one vector. The usual ones are compiled into epilogues; the others are called.
struct Silu {
  OCTAVO_INLINE Vec operator()(Vec x) const { return silu(x); }
};

struct GeluTanh {
  OCTAVO_INLINE Vec operator()(Vec x) const { return gelu_tanh(x); }
};

struct OtherActivation {
  int32_t kind;
  float positive, negative;  // of xIELU

  __attribute__((noinline)) Vec operator()(Vec x) const {
    if (kind == ACTIVATION_GELU) return gelu(x);
    if (kind == ACTIVATION_XIELU) return xielu(x, positive, negative);
    x = relu(x);
    return kind == ACTIVATION_RELU2 ? x * x : x;
  }
};

// Calls f with the function of a layer's activation.
template <class F>
void with_activation(const Model& m, const Layer& layer, F&& f) {
  if (m.activation == ACTIVATION_SILU) return f(Silu{});
  if (m.activation == ACTIVATION_GELU_TANH) return f(GeluTanh{});
  f(OtherActivation{m.activation, layer.xielu_positive, layer.xielu_negative});
}

}  // namespace octavo
