// The microkernels of linears by AMX tiles: for bf16 weights, and for quantized weights that become bf16 on the way.
//
// The interface is that of kernel.h, with Panel and multiply() instead of tile(). Tiles compute every number of rows, so
// a row's result does not depend on its batch.
#pragma once

#include <algorithm>
#include <vector>

#include "amx.h"
#include "fp8.h"
#include "panels.h"

#if defined(OCTAVO_TILES)

namespace octavo {

static_assert(PANEL == 2 * TILE_ROWS);
constexpr i64 STEP_PAIR_BYTES = i64(TILE_ROWS) * PANEL * 2 * sizeof(bf16);  // of a panel, in one step of the tiles

constexpr i64 AHEAD_BYTES = 2048;  // from the place that is read to the one that is prefetched, where a tile reads memory

// sums[r][c] = sum over `steps` steps of a[r, :] * panel[:, c], for 1 to 2 * TILE_ROWS rows. panel(step, count) is the
// address of the pairs of at most `count` steps, with `count` set to how many they are. aside() is called
// once a step, where there are two registers of rows: vector instructions run beside the products, of 16 cycles each.
//
// Two registers of rows and two of columns give four of sums, so that each load serves two products. The second register
// of rows ends with the last row: it may repeat rows of the first one.
template <class Panel, class Aside>
OCTAVO_INLINE void multiply_tiles(const bf16* a, i64 lda, int rows, i64 steps, Panel&& panel, float* sums,
                                  Prefetch prefetch, Aside&& aside) {
  const i64 row_bytes = lda * i64(sizeof(bf16)), second = std::max(0, rows - TILE_ROWS);
  const auto ahead = [&] {
    for (i64 line = 0; line < prefetch.stride; line += 64) __builtin_prefetch(prefetch.next + line, 0, 2);
    prefetch.next += prefetch.stride;
  };
  // A step of the first register of rows.
  const auto first = [&](const uint8_t* b) __attribute__((always_inline)) {
    ahead();
    tile_load<4>(a, row_bytes);
    tile_load<6>(b, 2 * 64);
    tile_multiply<0, 4, 6>();
    tile_load<7>(b + 64, 2 * 64);
    tile_multiply<1, 4, 7>();
  };
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (i64 step = 0, count; step < steps; step += count) {
    count = steps - step;
    const uint8_t* b = panel(step, count);
    if (second == 0) {
      for (i64 i = 0; i < count; i++, a += STEP_COLS, b += STEP_PAIR_BYTES) first(b);
    } else {
      for (i64 i = 0; i < count; i++, a += STEP_COLS, b += STEP_PAIR_BYTES) {
        first(b);
        tile_load<5>(a + second * lda, row_bytes);
        tile_multiply<2, 5, 6>();
        tile_multiply<3, 5, 7>();
        aside();
      }
    }
  }
  constexpr i64 SUM_BYTES = PANEL * sizeof(float);
  tile_store<0>(sums, SUM_BYTES);
  tile_store<1>(sums + TILE_ROWS, SUM_BYTES);
  if (second) {
    tile_store<2>(sums + second * PANEL, SUM_BYTES);
    tile_store<3>(sums + second * PANEL + TILE_ROWS, SUM_BYTES);
  }
}

// Elements of the inner dimension beyond the last whole step.
static inline void add_rest(const bf16* a, i64 lda, int rows, i64 first, i64 cols, const uint8_t* panel, float* sums) {
  const auto* pairs = reinterpret_cast<const bf16*>(panel) + first * PANEL;
  for (int r = 0; r < rows; r++) {
    Vec acc[1][PANEL_VECS];
    for (int c = 0; c < PANEL_VECS; c++) acc[0][c] = load(sums + r * PANEL + c * W);
    dot_tile<Bf16Dot, 1, PANEL_VECS>(a + r * lda + first, lda, pairs, PANEL * 2, (cols - first) / 2, acc,
                                     Prefetch{reinterpret_cast<const char*>(pairs), 0});
    for (int c = 0; c < PANEL_VECS; c++) store(sums + r * PANEL + c * W, acc[0][c]);
  }
}

// out[r * stride + c] = a[r, :] * block[:, c], over the whole steps of `cols`, whose number of columns it returns. `block`
// is half a panel, and there are 1 to 2 * TILE_ROWS rows.
static inline i64 multiply_block_tiles(const bf16* a, i64 cols, i64 rows, const bf16* block, float* out, i64 stride) {
  const i64 whole = cols / STEP_COLS, row_bytes = cols * i64(sizeof(bf16)), out_bytes = stride * i64(sizeof(float));
  const i64 second = std::max<i64>(0, rows - TILE_ROWS);
  if (whole == 0) return 0;
  shape_tiles(int(std::min<i64>(rows, TILE_ROWS)));
  tile_zero<0>();
  tile_zero<1>();
  for (i64 step = 0; step < whole; step++, a += STEP_COLS, block += STEP_COLS * HALF) {
    tile_load<6>(block, 64);
    tile_load<4>(a, row_bytes);
    tile_multiply<0, 4, 6>();
    if (second == 0) continue;
    tile_load<5>(a + second * cols, row_bytes);
    tile_multiply<1, 5, 6>();
  }
  tile_store<0>(out, out_bytes);
  if (second) tile_store<1>(out + second * stride, out_bytes);
  return whole * STEP_COLS;
}

// What the kernels have in common. Each has a Panel, which is made once for all rows of a piece.
struct TileKernel {
  static constexpr int MOST_ROWS = 2 * TILE_ROWS;
  i64 max_tile = MOST_ROWS, row_bytes, panel_bytes, steps;
  static void start(i64 rows) { shape_tiles(int(std::min<i64>(rows, TILE_ROWS))); }
};

struct FloatTileKernel : TileKernel {
  explicit FloatTileKernel(const Matrix& matrix)
      : TileKernel{.row_bytes = matrix.cols * i64(sizeof(bf16)),
                   .panel_bytes = matrix.cols * PANEL * i64(sizeof(bf16)),
                   .steps = matrix.cols / 2} {}

  struct Panel {
    const uint8_t* pairs;
    Panel(const FloatTileKernel&, const Matrix&, const uint8_t* panel, i64) : pairs(panel) {}
  };

  template <class Aside>
  OCTAVO_INLINE void multiply(const bf16* a, int rows, i64 cols, const Panel& panel, float* sums, Prefetch prefetch,
                              Aside&& aside) const {
    const i64 whole = cols / STEP_COLS;
    prefetch.stride *= TILE_ROWS;
    // A single tile: without prefetches its loads do not keep the memory busy.
    if (prefetch.stride == 0)
      prefetch = {reinterpret_cast<const char*>(panel.pairs) + AHEAD_BYTES, STEP_PAIR_BYTES};
    multiply_tiles(
        a, cols, rows, whole, [&](i64, i64&) { return panel.pairs; }, sums, prefetch, aside);
    if (cols % STEP_COLS) add_rest(a, cols, rows, whole * STEP_COLS, cols, panel.pairs, sums);
  }
};

// Stores pairs of bf16 from 16 pairs of floats, rounded to nearest, ties away from zero.
//
// Unpacking is bound by the two units for vectors, so the upper halves of both are joined by stores: all of `odd`, then
// those of `even` two bytes further down, over the lower halves of `odd`.
OCTAVO_INLINE void store_pairs(uint8_t* out, Vec even, Vec odd) {
  const UVec first = (UVec)even + 0x8000u, second = (UVec)odd + 0x8000u;
#if defined(__AVX512BW__)
  _mm512_storeu_si512(out, (__m512i)second);
  _mm512_mask_storeu_epi16(out - 2, 0xaaaaaaaa, (__m512i)first);
#else
  const UVec both = select_bits(0xffff0000u, second, first >> 16);
  std::memcpy(out, &both, sizeof both);
#endif
}

// Makes bf16 pairs [16][PANEL][2] of blocks: scale * q + minimum, rounded.
//
// A lane holds four unsigned numbers u of BITS bits, from bit START of each byte on. One shift brings two of them into
// the mantissas of floats in [1, 2): the second one to its top, where the float is 1 + u / 2^BITS, and the first one eight
// bits below, where it is 1 + u / 2^(BITS + 8). A multiply-add turns these into weights.
template <class Q>
class Unpack {
 public:
  explicit Unpack(const Matrix& matrix) : values_(matrix) {}

  OCTAVO_INLINE void operator()(const uint8_t* step, const uint8_t* block, uint8_t* out) const {
    for (int c = 0; c < PANEL_VECS; c++) {
      Coefficients parts[Q::SUMS];
      for (int p = 0; p < Q::SUMS; p++) {
        const Vec scale = Q::Scales::scale(step, p, c);
        for (int i = 0; i < 2; i++) {
          parts[p].scale[i] = FACTOR[i] * scale;
          parts[p].minimum[i] = -(FACTOR[i] + float(Values::TILE_ADDED)) * scale;
          if constexpr (Q::MINIMA > 0) parts[p].minimum[i] += Q::Scales::minimum(step, std::min(p, Q::MINIMA - 1), c);
        }
      }
      vector<0>(block, c, parts, out);
    }
  }

 private:
  using Values = typename Q::Values;
  static constexpr int BITS = Values::STORED_BITS;
  static constexpr float FACTOR[2] = {float(1 << (BITS + 8)), float(1 << BITS)};  // of the first and the second
  struct Coefficients {
    Vec scale[2], minimum[2];
  };

  template <int V>
  OCTAVO_INLINE void vector(const uint8_t* block, int c, const Coefficients (&parts)[Q::SUMS], uint8_t* out) const {
    constexpr int START = Values::template start_bit<V>(), LEFT = 15 - BITS - START, RIGHT = BITS + 1 + START;
    constexpr uint32_t FIRST = ((1u << BITS) - 1) << (15 - BITS), SECOND = FIRST << 8;
    const UVec one = 0x3f800000u - UVec{}, fields = values_.template fields<V>(block, c);
    const Coefficients& part = parts[V * Q::SUMS / VECTORS];
    for (int pair = 0; pair < 2; pair++) {
      const UVec moved = pair == 0 ? fields << LEFT : fields >> RIGHT;
      const Vec first = fma(part.scale[0], (Vec)select_bits(FIRST, moved, one), part.minimum[0]);
      const Vec second = fma(part.scale[1], (Vec)select_bits(SECOND, moved, one), part.minimum[1]);
      store_pairs(out + (2 * V + pair) * PANEL * 4 + c * 64, first, second);
    }
    if constexpr (V + 1 < VECTORS) vector<V + 1>(block, c, parts, out);
  }

  Values values_;
};

template <>
class Unpack<Fp8> {
 public:
  explicit Unpack(const Matrix&) {}

  OCTAVO_INLINE void operator()(const uint8_t* step, const uint8_t* block, uint8_t* out) const {
    for (int c = 0; c < PANEL_VECS; c++) {
      const Vec scale = Fp8::scale(step, c);
      const auto weights = [&](int k) { return load_e4m3(block + k * PANEL + c * W) * scale; };
#pragma GCC unroll 16
      for (int k = 0; k < BLOCK; k += 2) store_pairs(out + k / 2 * PANEL * 4 + c * 64, weights(k), weights(k + 1));
    }
  }
};

// Blocks of a panel, from `first` on, as bf16 pairs.
template <class Q>
static __attribute__((noinline)) void unpack_blocks(const Matrix& matrix, const uint8_t* panel, i64 first, i64 count,
                                                    uint8_t* pairs) {
  const Unpack<Q> unpack(matrix);
  i64 index = first % matrix.span;  // of a block in its step
  const uint8_t* step = panel + first / matrix.span * step_bytes<Q>(matrix);
  for (i64 i = 0; i < count; i++, pairs += STEP_PAIR_BYTES) {
    const uint8_t* block = step + Q::HEADER_BYTES + index * Q::BLOCK_BYTES;
    for (i64 line = 0; line < Q::BLOCK_BYTES + Q::HEADER_BYTES / matrix.span; line += 64)
      __builtin_prefetch(block + AHEAD_BYTES + line);
    unpack(step, block, pairs);
    if (++index == matrix.span) index = 0, step = block + Q::BLOCK_BYTES;
  }
}

// Quantized weights times bf16 activations. The weights become bf16 in the cache: a panel at once for many rows, a few
// blocks at a time for a single tile, so that they are still in L1 when they are multiplied.
struct QuantizedTileKernel : TileKernel {
  static_assert(BLOCK == STEP_COLS);
  static constexpr i64 AT_ONCE = 2;
  void (*unpack)(const Matrix&, const uint8_t*, i64, i64, uint8_t*);

  template <class Q>
  static QuantizedTileKernel of(const Matrix& matrix) {
    const i64 blocks = matrix.cols / BLOCK;
    return {{.row_bytes = matrix.cols * i64(sizeof(bf16)),
             .panel_bytes = blocks / matrix.span * step_bytes<Q>(matrix),
             .steps = blocks},
            unpack_blocks<Q>};
  }

  class Panel {
   public:
    Panel(const QuantizedTileKernel& kernel, const Matrix& matrix, const uint8_t* packed, i64 tiles)
        : kernel_(kernel), matrix_(matrix), packed_(packed), whole_(tiles > 1),
          pairs_(panel_memory((whole_ ? kernel.steps : AT_ONCE) * STEP_PAIR_BYTES)) {
      if (whole_) kernel.unpack(matrix, packed, 0, kernel.steps, pairs_);
    }
    const uint8_t* operator()(i64 step, i64& count) const {
      if (whole_) return pairs_;
      count = std::min(count, AT_ONCE);
      kernel_.unpack(matrix_, packed_, step, count, pairs_);
      return pairs_;
    }

   private:
    const QuantizedTileKernel& kernel_;
    const Matrix& matrix_;
    const uint8_t* packed_;
    bool whole_;
    uint8_t* pairs_;
  };

  template <class Aside>
  OCTAVO_INLINE void multiply(const bf16* a, int rows, i64 cols, const Panel& panel, float* sums, Prefetch prefetch,
                              Aside&& aside) const {
    multiply_tiles(a, cols, rows, steps, panel, sums, prefetch, aside);
  }
};

}  // namespace octavo

#endif
