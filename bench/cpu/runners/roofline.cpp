// Roofline of this machine: peak memory read bandwidth, and peak throughput of fp32 multiply-adds from registers.
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

// Keeps the compiler from removing or merging the computation of `value`.
template <class T>
void use(T& value) { asm volatile("" : "+m"(value)); }

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

double fp32_gflops(int threads) {
  constexpr long kRounds = 20'000'000;
  const double seconds = fastest(threads, [](int) {
    Floats chains[kChains], a, b;
    for (int i = 0; i < kBytes / 4; i++) a[i] = 0.999f, b[i] = 0.001f;
    use(a), use(b);
    for (auto& c : chains) c = b;
    const Floats x = a, y = b;
    for (long r = 0; r < kRounds; r++)
#pragma GCC unroll 12
      for (int j = 0; j < kChains; j++) chains[j] = chains[j] * x + y;
    for (auto& c : chains) use(c);
  });
  return 2.0 * kRounds * kChains * (kBytes / 4) * threads / seconds / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  std::printf("{\"read_gb_per_s\": %.1f, \"fp32_gflops\": %.1f}\n", read_gb_per_second(threads), fp32_gflops(threads));
}
