// The float microkernel with AMX: a product of 16 rows and a panel in tile registers, for every number of rows.
//
// A tile register has 16 rows of 64 bytes. A panel of bf16 pairs [groups][32][2] is what the instruction expects on the
// right: 16 groups of 16 columns are one register, and rows of activations are one on the left. Per element, a step sums
// the even and the odd products of 16 groups apart, each product fused, then adds both to the element. So a row's result
// does not depend on the rows beside it. Subnormal numbers count as zero.
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

// Registers 0 and 1 hold sums of the panel's halves, 2 rows, 3 and 4 the panel's halves; 5, 6 and 7 the same where only
// `rest` elements of the inner dimension are left. Set for each product: another library in the process, such as oneDNN,
// may have used the registers on this thread.
inline void shape_tiles(int rows, int rest) {
  TileShapes wanted;
  for (int half = 0; half < 2; half++) {
    wanted.set(half, rows, 64);
    wanted.set(3 + half, TILE_ROWS, 64);
    if (rest) wanted.set(6 + half, rest / 2, 64);
  }
  wanted.set(2, rows, 2 * STEP_COLS);
  if (rest) wanted.set(5, rows, 2 * rest);
  configure_tiles(wanted);
}

template <class P>
struct FloatKernel;

// The interface of kernel.h. The sum starts from zero: `acc` is written only.
template <>
struct FloatKernel<Bf16Dot> {
  using Input = bf16;
  static constexpr int MAX_TILE = TILE_ROWS;
  static constexpr int STEP_BYTES = PANEL * 2 * sizeof(bf16);
  static i64 row_length(i64 cols) { return cols; }
  static i64 steps(i64 cols) { return cols / 2; }

  template <int R>
  static void tile(const Input* a, i64 cols, const uint8_t* panel, Vec (&acc)[R][PANEL_VECS], Prefetch prefetch) {
    static_assert(PANEL == 2 * TILE_ROWS);
    const i64 lda = cols * i64(sizeof(Input)), whole = cols / STEP_COLS;
    shape_tiles(R, int(cols % STEP_COLS));
    tile_zero<0>();
    tile_zero<1>();
    for (i64 step = 0; step < whole; step++, a += STEP_COLS, panel += TILE_ROWS * STEP_BYTES) {
      for (i64 line = 0; line < TILE_ROWS * prefetch.stride; line += 64) __builtin_prefetch(prefetch.next + line);
      prefetch.next += TILE_ROWS * prefetch.stride;
      tile_load<2>(a, lda);
      tile_load<3>(panel, STEP_BYTES);
      tile_multiply<0, 2, 3>();
      tile_load<4>(panel + STEP_BYTES / 2, STEP_BYTES);
      tile_multiply<1, 2, 4>();
    }
    if (cols % STEP_COLS) {
      tile_load<5>(a, lda);
      tile_load<6>(panel, STEP_BYTES);
      tile_multiply<0, 5, 6>();
      tile_load<7>(panel + STEP_BYTES / 2, STEP_BYTES);
      tile_multiply<1, 5, 7>();
    }
    alignas(64) float sums[R][PANEL];
    tile_store<0>(sums[0], sizeof sums[0]);
    tile_store<1>(sums[0] + TILE_ROWS, sizeof sums[0]);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < PANEL_VECS; c++) acc[r][c] = load(sums[r] + c * W);
  }
};

}  // namespace octavo

#endif
