// Roofline of this machine: peak memory read bandwidth, and peak throughput of multiply-adds from registers: of fp32,
// and of bf16 pairs and bytes where there are instructions for them, in tiles where the processor has AMX and Linux
// grants it. A multiply-add counts as two operations.
// Usage: roofline THREADS. Prints one JSON object on standard output.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef uint64_t Words __attribute__((vector_size(kBytes)));
// Enough independent chains to hide the latency of a multiply-add on two ports, few enough for 16 registers.
constexpr int kChains = 12;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of the fastest of five runs of `work(thread)` on all threads.
template <class F>
double fastest(int threads, F work) {
  double best = 1e9;
  for (int run = 0; run < 5; run++) {
    const double begin = now();
    std::vector<std::thread> team;
    for (int t = 1; t < threads; t++) team.emplace_back(work, t);
    work(0);
    for (auto& thread : team) thread.join();
    best = std::min(best, now() - begin);
  }
  return best;
}

// Keeps the compiler from removing or merging the computation of `value`, which stays in a register.
template <class T>
void use(T& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+w"(value));
#endif
}

double read_gb_per_second(int threads) {
  constexpr size_t kPerThread = size_t(256) << 20, kCount = kPerThread / kBytes;
  std::vector<Words*> parts;
  for (int t = 0; t < threads; t++) {
    auto* part = static_cast<Words*>(std::aligned_alloc(2 << 20, kPerThread));
    std::fill_n(reinterpret_cast<char*>(part), kPerThread, char(t + 1));
    parts.push_back(part);
  }
  const double seconds = fastest(threads, [&](int t) {
    Words sum[8] = {};
    for (size_t i = 0; i < kCount; i += 8)
      for (int j = 0; j < 8; j++) sum[j] += parts[t][i + j];
    for (auto& s : sum) use(s);
  });
  for (auto* part : parts) std::free(part);
  return double(kPerThread) * threads / seconds / 1e9;
}

// 1e9 operations per second of `step`, which makes `count` multiply-adds with each of kChains accumulators.
template <class T, class F>
double giga_operations(int threads, int count, F step) {
  constexpr long kRounds = 20'000'000;
  const double seconds = fastest(threads, [&](int) {
    T chains[kChains] = {};
    for (auto& c : chains) use(c);
    for (long r = 0; r < kRounds; r++)
#pragma GCC unroll 12
      for (int j = 0; j < kChains; j++) chains[j] = step(chains[j]);
    for (auto& c : chains) use(c);
  });
  return 2.0 * kRounds * kChains * count * threads / seconds / 1e9;
}

double fp32_gflops(int threads) {
  Floats a = {}, b = {};
  for (int i = 0; i < kBytes / 4; i++) a[i] = 0.999f, b[i] = 0.001f;
  use(a), use(b);
  return giga_operations<Floats>(threads, kBytes / 4, [=](Floats c) { return c * a + b; });
}

#if defined(__AVX512BF16__)
double bf16_gflops(int threads) {
  __m512bh a = {}, b = {};
  use(a), use(b);
  return giga_operations<__m512>(threads, 32, [=](__m512 c) { return _mm512_dpbf16_ps(c, a, b); });
}
#endif

#if defined(__AVX512VNNI__)
double int8_gops(int threads) {
  __m512i a = {}, b = {};
  use(a), use(b);
  return giga_operations<__m512i>(threads, 64, [=](__m512i c) { return _mm512_dpbusd_epi32(c, a, b); });
}
#elif defined(__AVX2__)
double int8_gops(int threads) {
  __m256i a = {}, b = {}, ones = _mm256_set1_epi16(1);
  use(a), use(b), use(ones);
  return giga_operations<__m256i>(threads, 32, [=](__m256i c) {
    __m256i left = a;
    asm volatile("" : "+x"(left));  // else the product with b would be computed once
    return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(left, b), ones));
  });
}
#endif

#if defined(TILES)
bool tiles_granted() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// `step` makes four products of full tiles, each with sums of its own.
template <class F>
double tile_giga_operations(int threads, int count, F step) {
  constexpr long kRounds = 5'000'000;
  const double seconds = fastest(threads, [&](int) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shapes;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    for (long r = 0; r < kRounds; r++) step();
    asm volatile("tilerelease");
  });
  return 2.0 * kRounds * 4 * 16 * 16 * count * threads / seconds / 1e9;
}

double tile_bf16_gflops(int threads) {
  return tile_giga_operations(threads, 32, [] {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
  });
}

double tile_int8_gops(int threads) {
  return tile_giga_operations(threads, 64, [] {
    asm volatile(
        "tdpbssd %tmm6, %tmm4, %tmm0\n tdpbssd %tmm7, %tmm4, %tmm1\n"
        "tdpbssd %tmm6, %tmm5, %tmm2\n tdpbssd %tmm7, %tmm5, %tmm3");
  });
}
#else
bool tiles_granted() { return false; }
double tile_bf16_gflops(int) { return 0; }
double tile_int8_gops(int) { return 0; }
#endif

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  [[maybe_unused]] const bool tiles = tiles_granted();
  std::printf("{\"read_gb_per_s\": %.1f, \"fp32_gflops\": %.1f", read_gb_per_second(threads), fp32_gflops(threads));
#if defined(__AVX512BF16__)
  std::printf(", \"bf16_gflops\": %.1f", tiles ? tile_bf16_gflops(threads) : bf16_gflops(threads));
#endif
#if defined(__AVX512VNNI__) || defined(__AVX2__)
  std::printf(", \"int8_gops\": %.1f", tiles ? tile_int8_gops(threads) : int8_gops(threads));
#endif
  std::printf("}\n");
}
