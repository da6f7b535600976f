// The tile registers of AMX, and the instructions on them.
//
// A register has 16 rows of 64 bytes. A product has rows of bf16 on the left, 32 elements of the inner dimension each,
// and pairs [16][16 columns][2] on the right. Per element it sums the even and the odd products of the 16 pairs apart,
// each product fused, then adds both to the element. So a row's result does not depend on the rows beside it. Subnormal
// numbers count as zero.
#pragma once

#include "operands.h"

#if defined(__AMX_BF16__) || defined(OCTAVO_EMULATE_TILES)
#define OCTAVO_TILES

namespace octavo {

constexpr int TILE_ROWS = 16;             // rows of a register, and columns of four bytes
constexpr int STEP_COLS = 2 * TILE_ROWS;  // elements of the inner dimension in one step

// As the processor reads it: rows of each register, and bytes in a row of it.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  void set(int tile, int row_count, int bytes) {
    rows[tile] = uint8_t(row_count);
    row_bytes[tile] = uint16_t(bytes);
  }
};

#if defined(OCTAVO_EMULATE_TILES)
inline thread_local TileShapes shapes;
inline thread_local uint8_t tiles[8][TILE_ROWS][64];

inline void configure_tiles(const TileShapes& wanted) {
  shapes = wanted;
  std::memset(tiles, 0, sizeof tiles);
}
template <int T>
inline void tile_zero() {
  std::memset(tiles[T], 0, sizeof tiles[T]);
}
template <int T>
inline void tile_load(const void* from, i64 stride) {
  tile_zero<T>();
  for (int r = 0; r < shapes.rows[T]; r++)
    std::memcpy(tiles[T][r], static_cast<const char*>(from) + r * stride, shapes.row_bytes[T]);
}
template <int T>
inline void tile_store(void* to, i64 stride) {
  for (int r = 0; r < shapes.rows[T]; r++)
    std::memcpy(static_cast<char*>(to) + r * stride, tiles[T][r], shapes.row_bytes[T]);
}
template <int TO, int ROWS, int COLUMNS>
inline void tile_multiply() {
  const auto element = [](int tile, int row, int i) {
    bf16 x;
    std::memcpy(&x, tiles[tile][row] + 2 * i, sizeof x);
    return to_float(x);
  };
  for (int r = 0; r < shapes.rows[TO]; r++)
    for (int c = 0; c < shapes.row_bytes[TO] / 4; c++) {
      float sums[2] = {}, out;
      for (int g = 0; g < shapes.row_bytes[ROWS] / 4; g++)
        for (int i = 0; i < 2; i++)
          sums[i] = std::fma(element(ROWS, r, 2 * g + i), element(COLUMNS, g, 2 * c + i), sums[i]);
      std::memcpy(&out, tiles[TO][r] + 4 * c, sizeof out);
      out += sums[0] + sums[1];
      std::memcpy(tiles[TO][r] + 4 * c, &out, sizeof out);
    }
}
#else
// Not the intrinsics: those of GCC take no template's parameter, and do not tell it which memory they read.
inline void configure_tiles(const TileShapes& wanted) { asm volatile("ldtilecfg %0" ::"m"(wanted)); }
template <int T>
OCTAVO_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
OCTAVO_INLINE void tile_load(const void* from, i64 stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
OCTAVO_INLINE void tile_store(void* to, i64 stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int TO, int ROWS, int COLUMNS>
OCTAVO_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(TO), "i"(ROWS), "i"(COLUMNS));
}
#endif

// Registers: 0 to 3 hold sums, 4 and 5 rows on the left, 6 and 7 columns on the right. `rows` of sums and of the left
// side. Set for each piece of work: another library in the process, such as oneDNN, may
// have used the registers on this thread.
inline void shape_tiles(int rows) {
  TileShapes wanted;
  for (int tile = 0; tile < 4; tile++) wanted.set(tile, rows, 64);
  for (int tile = 4; tile < 6; tile++) wanted.set(tile, rows, 4 * TILE_ROWS);
  for (int tile = 6; tile < 8; tile++) wanted.set(tile, TILE_ROWS, 64);
  configure_tiles(wanted);
}

}  // namespace octavo

#endif
