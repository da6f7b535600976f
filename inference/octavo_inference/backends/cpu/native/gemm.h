// Linear layers: GEMM of activations [rows, inner] and a packed matrix, split among threads by runs of panels.
#pragma once

#include <algorithm>

#include "abi.h"
#include "activations.h"
#include "adapters.h"
#include "best.h"
#include "kernel.h"
#include "tile_kernel.h"
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
  const float* bias;
  float scale, cap;
  OCTAVO_INLINE void expect(i64 row, i64 col) const { expect_lines(out + row * stride + col, PANEL * sizeof(float)); }
  OCTAVO_INLINE Vec finish(Vec v, i64 col) const {
    return shape(bias ? v + load(bias + col) : v);
  }
  OCTAVO_INLINE Vec shape(Vec v) const {
    if (scale != 1) v *= scale;
    return cap > 0 ? softcap(v, cap) : v;
  }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    for (i64 end = col + PANEL; col < end; col += W, sums += W) store(out + row * stride + col, finish(load(sums), col));
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
      Vec v = logits.finish(load(sums + c * W), col + c * W);
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
template <class Act, class Activation>
struct Gated {
  Act* out;
  i64 stride;
  const float* bias;
  Activation activation;
  OCTAVO_INLINE void expect(i64 row, i64 col) const {
    expect_lines(out + row * stride + col / 2, PANEL / 2 * sizeof(Act));
  }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    constexpr int HALF = PANEL_VECS / 2;
    for (int c = 0; c < HALF; c++) {
      Vec gate = load(sums + c * W), up = load(sums + (c + HALF) * W);
      if (bias) gate += load(bias + col + c * W), up += load(bias + col + (c + HALF) * W);
      store(out + row * stride + col / 2 + c * W, activation(gate) * up);
    }
  }
};

// An MLP without a gate. The matrix may have rows of padding, which `out` does not.
template <class Act, class Activation>
struct Activated {
  Act* out;
  i64 stride;
  const float* bias;
  Activation activation;
  OCTAVO_INLINE void expect(i64 row, i64 col) const { expect_lines(out + row * stride + col, PANEL * sizeof(Act)); }
  OCTAVO_INLINE void operator()(i64 row, i64 col, const float* sums) const {
    for (i64 end = std::min(col + PANEL, stride); col < end; col += W, sums += W) {
      Vec v = load(sums);
      if (bias) v += load(bias + col);
      store(out + row * stride + col, activation(v));
    }
  }
};

// Size of a block of activation rows, which stays in the L2 cache while panels are read. Processors with tiles have 2 MB.
#if defined(OCTAVO_TILES)
constexpr i64 ACTIVATION_BLOCK_BYTES = 768 * 1024;
#else
constexpr i64 ACTIVATION_BLOCK_BYTES = 256 * 1024;
#endif

// Splits a product into pieces: a panel times one block of rows. A piece of a part begins at its first column.
template <class Kernel, class Epilogue>
struct Gemm {
  const Kernel kernel;
  const Matrix& matrix;
  const char* a;
  i64 rows;
  const Epilogue& epilogue;
  const RowChanges* changes;  // null: none
  i64 panels, blocks;

  Gemm(const Kernel& kernel, const Matrix& matrix, const void* a, i64 rows, const Epilogue& epilogue,
       const RowChanges* changes = nullptr)
      : kernel(kernel), matrix(matrix), a(static_cast<const char*>(a)), rows(rows), epilogue(epilogue),
        changes(changes), panels(matrix.rows / PANEL) {
    const i64 fitting = std::max<i64>(8 * kernel.max_tile, ACTIVATION_BLOCK_BYTES / kernel.row_bytes);
    blocks = (rows + fitting - 1) / fitting;
  }

  i64 pieces() const { return panels * blocks; }

  // The epilogue of rows, after the factors of columns and the changes of adapters. The sums go to a buffer in the L1
  // cache, so that a tile is compiled once for all epilogues. That costs nothing measurable.
  OCTAVO_INLINE void finish_rows(i64 first, i64 last, i64 panel, float* sums) const {
    const i64 col = matrix.first_row + panel * PANEL;
    if (changes) {
      for (i64 row = first; row < last; row++) scale_row(panel, sums + (row - first) * PANEL);
      changes->add(first, last, col / PANEL, sums);
      for (i64 row = first; row < last; row++, sums += PANEL) epilogue(row, col, sums);
    } else {
      for (i64 row = first; row < last; row++, sums += PANEL) {
        scale_row(panel, sums);
        epilogue(row, col, sums);
      }
    }
  }

  OCTAVO_INLINE void scale_row(i64 panel, float* sums) const {
    if (matrix.factor)
      for (int c = 0; c < PANEL_VECS; c++)
        store(sums + c * W, load(sums + c * W) * load(matrix.factor + panel * PANEL + c * W));
  }

  void piece(i64 index) const {
    const i64 block = index / panels, panel = index % panels;
    const i64 start = rows * block / blocks, count = rows * (block + 1) / blocks - start;
    const uint8_t* weights = static_cast<const uint8_t*>(matrix.data) + panel * kernel.panel_bytes;
    const i64 tiles = (count + kernel.max_tile - 1) / kernel.max_tile;
    // Several tiles prefetch a part of the next panel each. A single one reads weights as fast as memory gives them.
    // The processor prefetches such a stream itself, and prefetch instructions cost up to a quarter of its speed.
    const i64 stride = tiles == 1 ? 0 : kernel.panel_bytes / kernel.steps / tiles;
    const auto first_row = [&](i64 tile) { return start + count * tile / tiles; };
    const auto prefetch = [&](i64 tile) {
      const uint8_t* ahead = tiles == 1 ? weights : weights + kernel.panel_bytes + tile * stride * kernel.steps;
      return Prefetch{reinterpret_cast<const char*>(ahead), stride};
    };
    if constexpr (requires { typename Kernel::Panel; }) {
      // The epilogue of a tile runs beside the products of the next one.
      Kernel::start(count / tiles);
      const typename Kernel::Panel columns(kernel, matrix, weights, tiles);
      const i64 at_once = 1 + kernel.max_tile / (matrix.cols / 32 + 1);
      alignas(64) float sums[2][Kernel::MOST_ROWS * PANEL];
      i64 row = start;  // the next row for the epilogue
      const auto finish = [&](i64 tile, i64 to) {
        if (row >= to) return;
        finish_rows(row, to, panel, sums[tile & 1] + (row - first_row(tile)) * PANEL);
        row = to;
      };
      for (i64 tile = 0; tile < tiles; tile++) {
        const i64 first = first_row(tile), last = first_row(tile + 1);
        i64 expected = first;
        const auto* rows_at = reinterpret_cast<const bf16*>(a + first * kernel.row_bytes);
        kernel.multiply(rows_at, int(last - first), matrix.cols, columns, sums[tile & 1], prefetch(tile), [&] {
          finish(tile - 1, std::min(row + at_once, first));
          for (const i64 to = std::min(expected + at_once, last); expected < to; expected++)
            epilogue.expect(expected, matrix.first_row + panel * PANEL);
        });
        finish(tile - 1, first);
      }
      finish(tiles - 1, start + count);
    } else {
      alignas(64) float sums[Kernel::MOST_ROWS * PANEL];
      const uint8_t* columns = weights;
      if (kernel.unpack) {
        uint8_t* floats = panel_memory(matrix.cols * PANEL * i64(sizeof(float)));
        kernel.unpack(matrix, weights, reinterpret_cast<float*>(floats));
        columns = floats;
      }
      for (i64 tile = 0; tile < tiles; tile++) {
        const i64 first = first_row(tile), last = first_row(tile + 1);
        kernel.tiles[last - first - 1](matrix, a + first * kernel.row_bytes, columns, sums, prefetch(tile));
        finish_rows(first, last, panel, sums);
      }
    }
  }
};

// Calls f(kernel) with the kernel for the matrix's format and a number of rows; FloatKernel<P> is the one for floats. An
// unknown format ends the process.
template <class P, class F>
static void with_kernel(const Matrix& matrix, [[maybe_unused]] i64 rows, F&& f) {
#if defined(OCTAVO_TILES)
  const auto quantized = [&]<class Q>() { f(QuantizedTileKernel::of<Q>(matrix)); };
  if (matrix.format == FORMAT_F32) return f(VectorKernel::of<FloatKernel<F32>>(matrix));
  if (matrix.format == FORMAT_BF16) return f(FloatTileKernel(matrix));
  if (matrix.format == FORMAT_FP8) return quantized.template operator()<Fp8>();
  with_layout(matrix.format, quantized);
#else
  if (matrix.format == FORMAT_F32 || matrix.format == FORMAT_BF16) return f(VectorKernel::of<FloatKernel<P>>(matrix));
  if (matrix.format == FORMAT_FP8) return f(VectorKernel::fp8<Bf16>(matrix, rows));
  with_layout(matrix.format, [&]<class Q>() { f(VectorKernel::of<Int8Kernel<Q>>(matrix)); });
#endif
}

// True if the kernels of quantized weights read activations in 8 bits. Tiles read them in bf16.
#if defined(OCTAVO_TILES)
constexpr bool ROUNDS_ACTIVATIONS = false;
#else
constexpr bool ROUNDS_ACTIVATIONS = true;
#endif
inline bool is_of_integers(int32_t format) { return format >= FORMAT_INT4 && format != FORMAT_FP8; }

// True if the kernel of the matrix, or of any of its parts, reads activations in 8 bits.
inline bool rounds_activations(const Matrix& matrix) {
  if (!ROUNDS_ACTIVATIONS) return false;
  if (!matrix.parts) return is_of_integers(matrix.format);
  return std::any_of(matrix.parts, matrix.parts + matrix.part_count, rounds_activations);
}

// Rows of activations: as floats, and rounded to 8 bits where a kernel reads them so.
struct Input {
  const void* floats;
  const Int8Block* rounded;
  const void* of(const Matrix& matrix) const { return rounds_activations(matrix) ? rounded : floats; }
};

// A linear in pieces, of which any thread may run any.
template <class P, class Epilogue>
class Product {
 public:
  Product(const Matrix& matrix, const Input& input, i64 rows, const Epilogue& epilogue,
          const RowChanges* changes = nullptr)
      : parts_(matrix.parts ? matrix.parts : &matrix), count_(matrix.parts ? matrix.part_count : 1), input_(input),
        rows_(rows), epilogue_(epilogue), changes_(changes) {}

  i64 pieces() const {
    i64 total = 0;
    for (int i = 0; i < count_; i++) total += pieces_of(parts_[i]);
    return total;
  }

  void piece(i64 index) const {
    const Matrix* part = parts_;
    if (count_ > 1)
      for (i64 pieces; index >= (pieces = pieces_of(*part)); part++) index -= pieces;
    with_kernel<P>(*part, rows_, [&](const auto& kernel) {
      const Gemm<std::decay_t<decltype(kernel)>, Epilogue> gemm(kernel, *part, input_.of(*part), rows_, epilogue_,
                                                                changes_);
      gemm.piece(index);
    });
  }

 private:
  i64 pieces_of(const Matrix& part) const {
    i64 pieces = 0;
    with_kernel<P>(part, rows_, [&](const auto& kernel) {
      pieces = Gemm<std::decay_t<decltype(kernel)>, Epilogue>(kernel, part, nullptr, rows_, epilogue_).pieces();
    });
    return pieces;
  }
  const Matrix* parts_;
  int count_;
  Input input_;
  i64 rows_;
  const Epilogue& epilogue_;
  const RowChanges* changes_;
};

// Called by every thread of the team.
template <class P, class Epilogue>
static void gemm(const Matrix& matrix, const Input& input, i64 rows, const Epilogue& epilogue, Worker& worker,
                 const RowChanges* changes = nullptr) {
  const Product<P, Epilogue> product(matrix, input, rows, epilogue, changes);
  worker.share(product.pieces(), [&](i64 i) { product.piece(i); });
}

}  // namespace octavo
