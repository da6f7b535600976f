// The largest of many values and its id, and the ids that are allowed.
#pragma once

#include <algorithm>
#include <limits>

#include "simd.h"

namespace octavo {

// -infinity in lanes whose bit is 0. NaN and +infinity stay, because they make the row invalid.
OCTAVO_INLINE Vec ban_lanes(Vec v, uint32_t bits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const IVec allowed = (splat_int(int32_t(bits)) >> lane_numbers()) & 1;
  const IVec banned = (allowed == 0) & (v < splat(infinity));  // false for NaN
  return banned ? splat(-infinity) : v;
}

// Per vector lane: the largest value so far, the lowest id that has it, and whether a value was NaN. Values may come in
// any order.
struct Best {
  Vec value = splat(-std::numeric_limits<float>::infinity());
  IVec at = splat_int(std::numeric_limits<int32_t>::max());
  IVec unordered = {};

  OCTAVO_INLINE void add(Vec v, IVec ids) {
    const IVec better = (v > value) | ((v == value) & (ids < at));
    value = better ? v : value;
    at = better ? ids : at;
    unordered |= v != v;
  }

  void add(const Best& other) {
    add(other.value, other.at);
    unordered |= other.unordered;
  }

  // The lowest id of the largest value; -2 if all values are -inf, -1 if a value is NaN or the largest is infinite.
  int32_t id() const {
    for (int lane = 0; lane < W; lane++)
      if (unordered[lane]) return -1;
    const float top = highest(value);
    if (!std::isfinite(top)) return top < 0 ? -2 : -1;
    int32_t lowest = std::numeric_limits<int32_t>::max();
    for (int lane = 0; lane < W; lane++)
      if (value[lane] == top) lowest = std::min(lowest, at[lane]);
    return lowest;
  }
};

}  // namespace octavo
