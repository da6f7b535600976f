// Chooses the experts of a token from the logits of its router.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "abi.h"

namespace octavo {

// The largest values of a sequence and their indices, the first of equal ones. A value that is no number counts as less
// than all numbers, so there are always `count` of them.
class Largest {
 public:
  Largest(int32_t* ids, float* values, int count) : ids_(ids), values_(values), count_(count) {}

  void add(int32_t id, float value) {
    if (value != value) value = -std::numeric_limits<float>::infinity();
    if (found_ == count_ && !(value > values_[count_ - 1])) return;
    int at = found_ < count_ ? found_++ : count_ - 1;
    for (; at > 0 && value > values_[at - 1]; at--) ids_[at] = ids_[at - 1], values_[at] = values_[at - 1];
    ids_[at] = id, values_[at] = value;
  }
  float sum() const {
    float total = 0;
    for (int i = 0; i < found_; i++) total += values_[i];
    return total;
  }

 private:
  int32_t* ids_;
  float* values_;
  int count_, found_ = 0;
};

// values[i] = e^(values[i] - largest) / sum.
inline void softmax(float* values, int count) {
  const float largest = *std::max_element(values, values + count);
  float sum = 0;
  for (int i = 0; i < count; i++) sum += values[i] = std::exp(values[i] - largest);
  for (int i = 0; i < count; i++) values[i] /= sum;
}

// The groups whose experts may be chosen, in ascending order.
template <class F>
inline void choose_groups(const Routing& r, const F& wanted, std::vector<int32_t>& groups) {
  groups.assign(size_t(r.chosen_groups), 0);
  if (r.groups == 1) return;
  static thread_local std::vector<float> sums, values;
  static thread_local std::vector<int32_t> members;
  sums.resize(groups.size()), values.resize(size_t(r.group_best)), members.resize(size_t(r.group_best));
  Largest best(groups.data(), sums.data(), r.chosen_groups);
  const int size = r.count / r.groups;
  for (int g = 0; g < r.groups; g++) {
    Largest of_group(members.data(), values.data(), r.group_best);
    for (int e = g * size; e < (g + 1) * size; e++) of_group.add(e, wanted(e));
    best.add(g, of_group.sum());
  }
  std::sort(groups.begin(), groups.end());
}

// The share of a chosen expert in those near it that were not chosen before: all chosen before have larger scores, or come
// first of equal ones.
inline float share_of_near(const Routing& r, const float* scores, int32_t id) {
  const float top = scores[id];
  float sum = 0;
  for (int e = 0; e < r.count; e++) {
    const bool before = scores[e] > top || (scores[e] == top && e < id);
    const bool far = (top - scores[e]) / std::max(std::fabs(scores[e]), top) > r.near;
    if (!before && !far) sum += std::exp(scores[e] - top);
  }
  return 1 / sum;
}

// Chooses `chosen` of `count` experts: ids in ascending order, and their weights. Makes scores of the logits in place.
inline void route(const Routing& r, const float* correction, float* scores, int32_t* ids, float* weights) {
  const int per_group = r.count / r.groups;
  if (r.scoring == SCORING_SOFTMAX)
    softmax(scores, r.count);
  else if (r.scoring == SCORING_SIGMOID)
    for (int e = 0; e < r.count; e++) scores[e] = 1.0f / (1.0f + std::exp(-scores[e]));

  const auto wanted = [&](int e) { return correction ? scores[e] + correction[e] : scores[e]; };
  static thread_local std::vector<int32_t> groups;
  static thread_local std::vector<float> values;
  choose_groups(r, wanted, groups);
  values.resize(size_t(r.chosen));
  Largest best(ids, values.data(), r.chosen);
  for (const int g : groups)
    for (int e = g * per_group; e < (g + 1) * per_group; e++) best.add(e, wanted(e));

  std::sort(ids, ids + r.chosen);  // sums of a token's experts are in this order
  for (int i = 0; i < r.chosen; i++) weights[i] = scores[ids[i]];
  if (r.scoring == SCORING_SOFTMAX_OF_NEAR) {
    for (int i = 0; i < r.chosen; i++) weights[i] = share_of_near(r, scores, ids[i]);
  } else if (r.scoring == SCORING_SOFTMAX_OF_CHOSEN) {
    softmax(weights, r.chosen);
  } else if (r.normalized) {
    float sum = 0;
    for (int i = 0; i < r.chosen; i++) sum += weights[i];
    for (int i = 0; i < r.chosen; i++) weights[i] /= std::max(sum, std::numeric_limits<float>::min());
  }
  for (int i = 0; i < r.chosen; i++) weights[i] *= r.scale;
}

}  // namespace octavo
