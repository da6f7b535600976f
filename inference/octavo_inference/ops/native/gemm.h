// Linear layers: activations [rows, inner] times a packed matrix, shared among the team by runs of panels.
#pragma once

#include <algorithm>

#include "abi.h"
#include "operands.h"
#include "threads.h"

namespace octavo {

// What happens to a finished tile row of PANEL columns starting at column `col`.
struct StoreFloats {
  float* out;
  i64 stride;
  const float* bias;
  OCTAVO_INLINE void operator()(i64 row, i64 col, const Vec (&acc)[PANEL_VECS]) const {
    for (int c = 0; c < PANEL_VECS; c++) {
      Vec v = bias ? acc[c] + load(bias + col + c * W) : acc[c];
      store(out + row * stride + col + c * W, v);
    }
  }
};

// The residual stream stays in fp32: five times closer to an fp32 model than a bf16 residual.
struct AddToResidual {
  float* out;
  i64 stride;
  const float* bias;
  float scale;
  OCTAVO_INLINE void operator()(i64 row, i64 col, const Vec (&acc)[PANEL_VECS]) const {
    float* at = out + row * stride + col;
    for (int c = 0; c < PANEL_VECS; c++) {
      Vec v = bias ? acc[c] + load(bias + col + c * W) : acc[c];
      store(at + c * W, load(at + c * W) + scale * v);
    }
  }
};

// Each panel holds PANEL/2 rows of gate, then the same rows of up; so does the bias.
template <class Act>
struct Gated {
  Act* out;
  i64 stride;
  const float* bias;
  bool gelu;
  OCTAVO_INLINE void operator()(i64 row, i64 col, const Vec (&acc)[PANEL_VECS]) const {
    constexpr int HALF = PANEL_VECS / 2;
    for (int c = 0; c < HALF; c++) {
      Vec gate = acc[c], up = acc[c + HALF];
      if (bias) gate += load(bias + col + c * W), up += load(bias + col + (c + HALF) * W);
      store(out + row * stride + col / 2 + c * W, (gelu ? gelu_tanh(gate) : silu(gate)) * up);
    }
  }
};

template <class P, int R, class Epilogue>
static void gemm_tile(const typename P::Act* a, i64 inner, const typename P::Elem* panel, i64 row, i64 col,
                      const Epilogue& epilogue, Prefetch prefetch) {
  Vec acc[R][PANEL_VECS] = {};
  dot_tile<P, R, PANEL_VECS>(a, inner, panel, PANEL * P::GROUP, inner / P::GROUP, acc, prefetch);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) epilogue(row + r, col, acc[r]);
}

// Rows of activations that stay in the L2 cache while the panels pass by.
constexpr i64 ACTIVATION_BLOCK_BYTES = 256 * 1024;

// Cuts a product into pieces: a run of panels for one block of rows.
template <class P, class Epilogue>
struct Gemm {
  const Matrix& matrix;
  const typename P::Act* a;
  i64 rows;
  Epilogue epilogue;
  i64 panels, run, runs, blocks;

  Gemm(const Matrix& matrix, const typename P::Act* a, i64 rows, const Epilogue& epilogue, int team_size)
      : matrix(matrix), a(a), rows(rows), epilogue(epilogue), panels(matrix.rows / PANEL) {
    const i64 fitting = std::max<i64>(8 * MAX_ROWS, ACTIVATION_BLOCK_BYTES / (matrix.cols * i64(sizeof(*a))));
    blocks = (rows + fitting - 1) / fitting;
    run = std::max<i64>(1, panels / (team_size * 6));
    runs = (panels + run - 1) / run;
  }

  i64 pieces() const { return runs * blocks; }

  void piece(i64 index) const {
    const i64 block = index / runs, first = index % runs * run, last = std::min(first + run, panels);
    const i64 start = rows * block / blocks, end = rows * (block + 1) / blocks;
    for (i64 p = first; p < last; p++) panel(p, start, end - start);
  }

 private:
  void panel(i64 index, i64 start, i64 count) const {
    using Elem = typename P::Elem;
    const i64 inner = matrix.cols;
    const Elem* weights = static_cast<const Elem*>(matrix.data) + index * PANEL * inner;
    const i64 tiles = (count + MAX_ROWS - 1) / MAX_ROWS;
    // One tile streams its own panel ahead; several share the next panel among them.
    const i64 line = PANEL * i64(sizeof(Elem)) * P::GROUP, stride = tiles == 1 ? line : line / tiles;
    for (i64 tile = 0; tile < tiles; tile++) {
      const i64 first = start + count * tile / tiles, last = start + count * (tile + 1) / tiles;
      const char* ahead =
          tiles == 1 ? reinterpret_cast<const char*>(weights) + 4096
                     : reinterpret_cast<const char*>(weights + PANEL * inner) + tile * stride * (inner / P::GROUP);
      with_rows(int(last - first), [&]<int R>() {
        gemm_tile<P, R>(a + first * inner, inner, weights, first, index * PANEL, epilogue, Prefetch{ahead, stride});
      });
    }
  }
};

// Called by every thread of the team with the same arguments.
template <class P, class Epilogue>
static void gemm(const Matrix& matrix, const typename P::Act* a, i64 rows, const Epilogue& epilogue, Part& part,
                 int team_size) {
  const Gemm<P, Epilogue> work(matrix, a, rows, epilogue, team_size);
  part.share(work.pieces(), [&](i64 i) { work.piece(i); });
}

}  // namespace octavo
