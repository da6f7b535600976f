// Both products of attention by AMX tiles, for one KV head and a chunk of two tiles of the KV pool.
//
// Keys of a tile [dim/2][TILE][2], and values [TILE/2][dim][2], are what the tile registers read on the right. As for
// linears, every number of rows takes this path, so that a row's result does not depend on its batch.
#pragma once

#include "amx.h"

#if defined(OCTAVO_TILES)

namespace octavo {

// Registers: 0 to 3 hold sums. 4 and 6 have steps of 32 elements of the inner dimension; 5 and 7 have 16: the keys of a
// tile, or what is left of the head dimension.
inline void shape_attention_tiles(int rows) {
  TileShapes wanted;
  for (int tile = 0; tile < 4; tile++) wanted.set(tile, rows, 64);
  wanted.set(4, rows, 64);
  wanted.set(5, rows, 32);
  wanted.set(6, TILE_ROWS, 64);
  wanted.set(7, TILE_ROWS / 2, 64);
  configure_tiles(wanted);
}

// scores[row][column] = q[row] · keys[column], for rows of `stride` floats and the columns of both tiles.
inline void score_by_tiles(const bf16* q, int dim, const bf16* const (&keys)[2], float* scores, i64 stride) {
  constexpr int ROW = 2 * TILE_ROWS;  // elements of a pair of head dimensions, for all keys of a tile
  const i64 row_bytes = dim * i64(sizeof(bf16));
  tile_zero<0>();
  tile_zero<1>();
  int at = 0;
  for (; at + STEP_COLS <= dim; at += STEP_COLS) {
    tile_load<4>(q + at, row_bytes);
    tile_load<6>(keys[0] + at / 2 * ROW, 64);
    tile_multiply<0, 4, 6>();
    tile_load<6>(keys[1] + at / 2 * ROW, 64);
    tile_multiply<1, 4, 6>();
  }
  if (at < dim) {
    tile_load<5>(q + at, row_bytes);
    tile_load<7>(keys[0] + at / 2 * ROW, 64);
    tile_multiply<0, 5, 7>();
    tile_load<7>(keys[1] + at / 2 * ROW, 64);
    tile_multiply<1, 5, 7>();
  }
  tile_store<0>(scores, stride * i64(sizeof(float)));
  tile_store<1>(scores + TILE_ROWS, stride * i64(sizeof(float)));
}

template <int FIRST, int COUNT>
OCTAVO_INLINE void multiply_values(const bf16* values, i64 row_bytes) {
  tile_load<7>(values, row_bytes);
  tile_multiply<FIRST, 5, 7>();
  if constexpr (COUNT > 1) multiply_values<FIRST + 1, COUNT - 1>(values + 2 * TILE_ROWS, row_bytes);
}

template <int FIRST, int COUNT>
OCTAVO_INLINE void store_sums(float* out, i64 row_bytes) {
  tile_store<FIRST>(out, row_bytes);
  if constexpr (COUNT > 1) store_sums<FIRST + 1, COUNT - 1>(out + TILE_ROWS, row_bytes);
}

template <int FIRST, int COUNT>
OCTAVO_INLINE void zero_sums() {
  tile_zero<FIRST>();
  if constexpr (COUNT > 1) zero_sums<FIRST + 1, COUNT - 1>();
}

// sums[row][column] = rescale[row] * sums[row][column] + p[row] · values[column], for COUNT registers of columns.
template <int ROWS, int COUNT>
OCTAVO_INLINE void add_value_columns(const bf16* p, const bf16* const (&values)[2], int dim, int column,
                                     const float* rescale, float* sums, i64 stride) {
  constexpr i64 P_BYTES = 2 * TILE_ROWS * sizeof(bf16);
  alignas(64) float products[ROWS][COUNT * TILE_ROWS];
  const i64 row_bytes = 2 * dim * i64(sizeof(bf16));
  zero_sums<0, COUNT>();
  for (int tile = 0; tile < 2; tile++) {
    tile_load<5>(p + tile * TILE_ROWS, P_BYTES);
    multiply_values<0, COUNT>(values[tile] + 2 * column, row_bytes);
  }
  store_sums<0, COUNT>(products[0], sizeof products[0]);
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COUNT; c++) {
      float* at = sums + r * stride + column + c * W;
      store(at, fma(load(at), splat(rescale[r]), load(products[r] + c * W)));
    }
}

// The same for all columns of the head dimension.
template <int ROWS>
static void add_values_by_tiles(const bf16* p, const bf16* const (&values)[2], int dim, const float* rescale,
                                float* sums, i64 stride) {
  int column = 0;
  for (; column + 4 * TILE_ROWS <= dim; column += 4 * TILE_ROWS)
    add_value_columns<ROWS, 4>(p, values, dim, column, rescale, sums, stride);
  for (; column < dim; column += TILE_ROWS)
    add_value_columns<ROWS, 1>(p, values, dim, column, rescale, sums, stride);
}

}  // namespace octavo

#endif
