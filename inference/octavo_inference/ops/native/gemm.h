// Linear layers: activations [rows, inner] times a packed matrix, by panels handed out to the team.
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
  OCTAVO_INLINE void operator()(i64 row, i64 col, const Vec (&acc)[PANEL_VECS]) const {
    float* at = out + row * stride + col;
    for (int c = 0; c < PANEL_VECS; c++) store(at + c * W, load(at + c * W) + acc[c]);
  }
};

// Each panel holds PANEL/2 rows of gate, then the same rows of up.
template <class Act>
struct GatedSilu {
  Act* out;
  i64 stride;
  OCTAVO_INLINE void operator()(i64 row, i64 col, const Vec (&acc)[PANEL_VECS]) const {
    constexpr int HALF = PANEL_VECS / 2;
    for (int c = 0; c < HALF; c++) store(out + row * stride + col / 2 + c * W, silu(acc[c]) * acc[c + HALF]);
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

// Called by every thread of the team with the same arguments. A ticket is a run of panels for one block of rows.
template <class P, class Epilogue>
static void gemm(const Matrix& matrix, const typename P::Act* a, i64 rows, const Epilogue& epilogue, Tickets& tickets,
                 int team_size) {
  using Elem = typename P::Elem;
  if (rows == 0) return;
  const i64 inner = matrix.cols, panels = matrix.rows / PANEL, panel_size = PANEL * inner;
  const i64 fitting = std::max<i64>(8 * MAX_ROWS, ACTIVATION_BLOCK_BYTES / (inner * i64(sizeof(*a))));
  const i64 blocks = (rows + fitting - 1) / fitting;
  const i64 run = std::max<i64>(1, panels / (team_size * 6));
  const i64 runs = (panels + run - 1) / run;
  for (i64 ticket = tickets.take(); ticket < runs * blocks; ticket = tickets.take()) {
    const i64 block = ticket / runs, first = ticket % runs * run, last = std::min(first + run, panels);
    const i64 block_start = rows * block / blocks, block_rows = rows * (block + 1) / blocks - block_start;
    const i64 tiles = (block_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (i64 p = first; p < last; p++) {
      const Elem* panel = static_cast<const Elem*>(matrix.data) + p * panel_size;
      const i64 panel_bytes = panel_size * i64(sizeof(Elem));
      for (i64 tile = 0; tile < tiles; tile++) {
        const i64 start = block_rows * tile / tiles, count = block_rows * (tile + 1) / tiles - start;
        // One tile streams its own panel ahead; several share the next panel among them.
        const i64 line = PANEL * i64(sizeof(Elem)) * P::GROUP;
        const i64 stride = tiles == 1 ? line : line / tiles;
        const char* ahead = reinterpret_cast<const char*>(panel) +
                            (tiles == 1 ? 4096 : panel_bytes + tile * stride * (inner / P::GROUP));
        with_rows(int(count), [&]<int R>() {
          gemm_tile<P, R>(a + (block_start + start) * inner, inner, panel, block_start + start, p * PANEL, epilogue,
                          Prefetch{ahead, stride});
        });
      }
    }
  }
}

}  // namespace octavo
