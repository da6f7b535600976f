// A team of persistent threads: one job at a time, spin barriers inside a job, asleep on a futex between jobs.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace octavo {

OCTAVO_INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins, then gives the core away between looks: with fewer free cores than threads a pure spin would wait for a
// preempted peer for a whole time slice.
template <class Condition>
OCTAVO_INLINE void spin_until(Condition done) {
  for (int i = 0; !done(); i++) {
    if (i < 2048)
      relax();
    else
      sched_yield();
  }
}

class Team {
 public:
  explicit Team(int threads) : size_(threads) {
    for (int rank = 1; rank < threads; rank++) workers_.emplace_back([this, rank] { serve(rank); });
  }
  ~Team() {
    stop_ = true;
    start();
    for (auto& worker : workers_) worker.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs job(rank) on every thread, the caller being rank 0; returns when all are done.
  void run(const std::function<void(int)>& job) {
    job_ = &job;
    running_.store(size_ - 1, std::memory_order_relaxed);
    start();
    job(0);
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
  }

  // Inside a job: returns when every thread of the team has arrived.
  void barrier() {
    uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == uint32_t(size_ - 1)) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
    } else {
      spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
    }
  }

 private:
  void start() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void serve(int rank) {
    uint32_t seen = 0;
    for (;;) {
      // The next step usually follows within a fraction of a millisecond; a wake-up through the kernel costs ~50 µs.
      for (int i = 0; i < 4096 && epoch_.load(std::memory_order_acquire) == seen; i++) relax();
      epoch_.wait(seen, std::memory_order_acquire);
      seen = epoch_.load(std::memory_order_acquire);
      if (stop_) return;
      (*job_)(rank);
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

// Hands out work by tickets, so that a thread that lost its core for a while does not hold up the others.
struct alignas(64) Tickets {
  std::atomic<i64> next{0};
  i64 take(i64 count = 1) { return next.fetch_add(count, std::memory_order_relaxed); }
};

}  // namespace octavo
