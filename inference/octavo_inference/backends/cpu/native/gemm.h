// Linear layers: GEMM of activations [rows, inner] and a packed matrix, split among threads by runs of panels.
#pragma once

#include <algorithm>

#include "abi.h"
#include "best.h"
#include "kernel.h"
#include "threads.h"

namespace octavo {

// Epilogues: called for each finished row of a tile with the sums of the PANEL columns from `col` on. expect() prefetches
// what the call will write.
OCTAVO_INLINE void expect_lines(const void* from, i64 bytes) {
  for (i64 at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 1);
}

struct StoreFloats {
  float* out;
  i64 stride;
  const float* bias;
  OCTAVO_INLINE void expect(i64 row, i64 col) const { expect_lines(out + row * stride + col, PANEL * sizeof(float)); }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    for (int c = 0; c < PANEL_VECS; c++) {
      Vec v = load(sums + c * W);
      if (bias) v += load(bias + col + c * W);
      store(out + row * stride + col + c * W, v);
    }
  }
};

// Logits, scaled and capped.
struct StoreLogits {
  float* out;
  i64 stride;
  float scale, cap;
  OCTAVO_INLINE void expect(i64 row, i64 col) const { expect_lines(out + row * stride + col, PANEL * sizeof(float)); }
  OCTAVO_INLINE Vec finish(Vec v) const {
    if (scale != 1) v *= scale;
    return cap > 0 ? softcap(v, cap) : v;
  }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    for (int c = 0; c < PANEL_VECS; c++) store(out + row * stride + col + c * W, finish(load(sums + c * W)));
  }
};

// Only the best logit of each row, of the ids that its mask allows.
struct KeepBest {
  StoreLogits logits;
  const Adjust* adjust;  // null if no row has a mask
  i64 vocab;
  Best* best;
  OCTAVO_INLINE void expect(i64, i64) const {}
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    static_assert(32 % PANEL == 0);  // a panel's bits are in one word
    const uint32_t* mask = adjust ? adjust[row].mask : nullptr;
    const uint32_t bits = mask ? mask[col / 32] >> (col % 32) : ~0u;
    for (int c = 0; c < PANEL_VECS; c++) {
      const IVec ids = lane_numbers() + int32_t(col + c * W);
      Vec v = logits.finish(load(sums + c * W));
      if (bits != ~0u) v = ban_lanes(v, bits >> (c * W));
      best[row].add(col + PANEL <= vocab ? v : ids < int32_t(vocab) ? v : splat(-INFINITY), ids);
    }
  }
};

// The residual stream is fp32. With a bf16 residual stream the error against an fp32 model is five times as large.
struct AddToResidual {
  float* out;
  i64 stride;
  const float* bias;
  float scale;
  OCTAVO_INLINE void expect(i64 row, i64 col) const { expect_lines(out + row * stride + col, PANEL * sizeof(float)); }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    float* at = out + row * stride + col;
    for (int c = 0; c < PANEL_VECS; c++) {
      Vec v = load(sums + c * W);
      if (bias) v += load(bias + col + c * W);
      store(at + c * W, fma(splat(scale), v, load(at + c * W)));
    }
  }
};

// Each panel holds PANEL/2 rows of gate, then the same rows of up. The bias has the same order.
template <class Act>
struct Gated {
  Act* out;
  i64 stride;
  const float* bias;
  bool gelu;
  OCTAVO_INLINE void expect(i64 row, i64 col) const {
    expect_lines(out + row * stride + col / 2, PANEL / 2 * sizeof(Act));
  }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    constexpr int HALF = PANEL_VECS / 2;
    for (int c = 0; c < HALF; c++) {
      Vec gate = load(sums + c * W), up = load(sums + (c + HALF) * W);
      if (bias) gate += load(bias + col + c * W), up += load(bias + col + (c + HALF) * W);
      store(out + row * stride + col / 2 + c * W, (gelu ? gelu_tanh(gate) : silu(gate)) * up);
    }
  }
};

// Not inlined: inside with_rows GCC spills accumulators, and the tile loses up to a third of its speed. The sums go to
// a buffer in the L1 cache, so that the tile is compiled once for all epilogues. That costs nothing measurable.
template <class Kernel, int R>
static __attribute__((noinline)) void gemm_tile(const typename Kernel::Input* a, i64 cols, const uint8_t* panel,
                                                float* sums, Prefetch prefetch) {
  Vec acc[R][PANEL_VECS] = {};
  Kernel::template tile<R>(a, cols, panel, acc, prefetch);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < PANEL_VECS; c++) store(sums + r * PANEL + c * W, acc[r][c]);
}

// Size of a block of activation rows, which stays in the L2 cache while panels are read. Processors with tiles have 2 MB.
#if defined(OCTAVO_TILES)
constexpr i64 ACTIVATION_BLOCK_BYTES = 768 * 1024;
#else
constexpr i64 ACTIVATION_BLOCK_BYTES = 256 * 1024;
#endif

// Kernels of tile_kernel.h.
template <class Kernel>
constexpr bool BY_TILES = requires { typename Kernel::Panel; };

// Splits a product into pieces: a panel times one block of rows.
template <class Kernel, class Epilogue>
struct Gemm {
  using Input = typename Kernel::Input;
  const Matrix& matrix;
  const Input* a;
  i64 rows;
  Epilogue epilogue;
  i64 row_length, panels, panel_bytes, blocks;

  Gemm(const Matrix& matrix, const void* a, i64 rows, const Epilogue& epilogue)
      : matrix(matrix), a(static_cast<const Input*>(a)), rows(rows), epilogue(epilogue),
        row_length(Kernel::row_length(matrix.cols)), panels(matrix.rows / PANEL),
        panel_bytes(Kernel::steps(matrix.cols) * Kernel::STEP_BYTES) {
    const i64 fitting =
        std::max<i64>(8 * Kernel::MAX_TILE, ACTIVATION_BLOCK_BYTES / (row_length * i64(sizeof(Input))));
    blocks = (rows + fitting - 1) / fitting;
  }

  i64 pieces() const { return panels * blocks; }

  void piece(i64 index) const {
    const i64 block = index / panels, panel = index % panels;
    const i64 start = rows * block / blocks, count = rows * (block + 1) / blocks - start;
    const uint8_t* weights = static_cast<const uint8_t*>(matrix.data) + panel * panel_bytes;
    const i64 tiles = (count + Kernel::MAX_TILE - 1) / Kernel::MAX_TILE;
    // Several tiles prefetch a part of the next panel each. A single one reads weights as fast as memory gives them.
    // The processor prefetches such a stream itself, and prefetch instructions cost up to a quarter of its speed.
    const i64 stride = tiles == 1 ? 0 : Kernel::STEP_BYTES / tiles;
    const auto first_row = [&](i64 tile) { return start + count * tile / tiles; };
    const auto prefetch = [&](i64 tile) {
      const uint8_t* ahead = tiles == 1 ? weights : weights + panel_bytes + tile * stride * Kernel::steps(matrix.cols);
      return Prefetch{reinterpret_cast<const char*>(ahead), stride};
    };
    if constexpr (BY_TILES<Kernel>) {
      // The epilogue of a tile runs beside the products of the next one.
      Kernel::start(count / tiles);
      const typename Kernel::Panel columns(weights, matrix.cols, tiles);
      const i64 at_once = 1 + Kernel::MAX_TILE / (matrix.cols / 32 + 1);
      alignas(64) float sums[2][Kernel::MAX_TILE * PANEL];
      i64 row = start;  // the next row for the epilogue
      const auto finish = [&](i64 tile, i64 to) {
        for (; row < to; row++) epilogue(row, panel * PANEL, sums[tile & 1] + (row - first_row(tile)) * PANEL);
      };
      for (i64 tile = 0; tile < tiles; tile++) {
        const i64 first = first_row(tile), last = first_row(tile + 1);
        i64 expected = first;
        Kernel::multiply(a + first * row_length, int(last - first), matrix.cols, columns, sums[tile & 1], prefetch(tile),
                         [&] {
                           finish(tile - 1, std::min(row + at_once, first));
                           for (const i64 to = std::min(expected + at_once, last); expected < to; expected++)
                             epilogue.expect(expected, panel * PANEL);
                         });
        finish(tile - 1, first);
      }
      finish(tiles - 1, start + count);
    } else {
      alignas(64) float sums[Kernel::MAX_TILE * PANEL];
      for (i64 tile = 0; tile < tiles; tile++) {
        const i64 first = first_row(tile), last = first_row(tile + 1);
        with_rows<Kernel::MAX_TILE>(int(last - first), [&]<int R>() {
          gemm_tile<Kernel, R>(a + first * row_length, matrix.cols, weights, sums, prefetch(tile));
        });
        for (i64 row = first; row < last; row++) epilogue(row, panel * PANEL, sums + (row - first) * PANEL);
      }
    }
  }
};

// Calls f.template operator()<Kernel>() with the kernel for the matrix's format; FloatKernel<P> is the one for floats.
template <class P, class F>
static void with_kernel(const Matrix& matrix, F&& f) {
#if defined(OCTAVO_TILES)
  switch (matrix.format) {
    case FORMAT_INT4:
      return f.template operator()<QuantizedTileKernel<Int4>>();
    case FORMAT_INT6:
      return f.template operator()<QuantizedTileKernel<Int6>>();
    case FORMAT_INT8:
      return f.template operator()<QuantizedTileKernel<Int8>>();
    case FORMAT_BF16:
      return f.template operator()<FloatTileKernel>();
    default:
      return f.template operator()<FloatKernel<F32>>();
  }
#else
  switch (matrix.format) {
    case FORMAT_INT4:
      return f.template operator()<Int8Kernel<Int4>>();
    case FORMAT_INT6:
      return f.template operator()<Int8Kernel<Int6>>();
    case FORMAT_INT8:
      return f.template operator()<Int8Kernel<Int8>>();
    default:
      return f.template operator()<FloatKernel<P>>();
  }
#endif
}

// True if the kernels of quantized weights read activations in 8 bits. Tiles read them in bf16.
#if defined(OCTAVO_TILES)
constexpr bool ROUNDS_ACTIVATIONS = false;
#else
constexpr bool ROUNDS_ACTIVATIONS = true;
#endif
inline bool rounds_activations(const Matrix& matrix) { return ROUNDS_ACTIVATIONS && matrix.format >= FORMAT_INT4; }

// Called by every thread of the team. `a` holds rows of the kernel's input type.
template <class P, class Epilogue>
static void gemm(const Matrix& matrix, const void* a, i64 rows, const Epilogue& epilogue, Worker& worker) {
  with_kernel<P>(matrix, [&]<class Kernel>() {
    const Gemm<Kernel, Epilogue> work(matrix, a, rows, epilogue);
    worker.share(work.pieces(), [&](i64 i) { work.piece(i); });
  });
}

}  // namespace octavo
