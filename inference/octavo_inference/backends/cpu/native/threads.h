// A team of persistent threads that share the parts of a job. They sleep on a futex between jobs.
//
// A part ends when all its pieces are done, not when every thread has reached it. A thread may lose its core to another
// process, or to a container's CPU limit. Then it delays the others only if it has claimed a piece.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "simd.h"

namespace octavo {

OCTAVO_INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins, then yields the core between checks, possibly to the thread it waits for.
template <class Condition>
OCTAVO_INLINE void spin_until(Condition done) {
  for (int i = 0; !done(); i++) {
    if (i < 2048)
      relax();
    else
      sched_yield();
  }
}

// A part of a job. Threads claim its pieces by number.
class alignas(64) Part {
 public:
  // Called by any thread of the team: runs pieces until none is left, then waits for those of other threads.
  template <class F>
  OCTAVO_INLINE void share(i64 count, F&& piece) {
    for (i64 i = next_.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next_.fetch_add(1, std::memory_order_relaxed)) {
      piece(i);
      done_.fetch_add(1, std::memory_order_release);
    }
    spin_until([&] { return done_.load(std::memory_order_acquire) >= count; });
  }

 private:
  std::atomic<i64> next_{0}, done_{0};
};

// Work for a team. A thread may start late, even after the caller has returned. So outside of pieces, run() accesses
// only the job itself.
struct Job {
  virtual ~Job() = default;
  virtual void run(int rank) = 0;
};

template <class F>
struct JobOf final : Job {
  explicit JobOf(F f) : f_(std::move(f)) {}
  void run(int rank) override { f_(rank); }
  F f_;
};

class Team {
 public:
  explicit Team(int threads) : size_(threads) {
    for (int rank = 1; rank < threads; rank++) workers_.emplace_back([this, rank] { serve(rank); });
  }
  ~Team() {
    publish(nullptr);
    for (auto& worker : workers_) worker.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs the job on the calling thread, as rank 0, and on the workers.
  void run(std::shared_ptr<Job> job) {
    if (size_ > 1) publish(job);
    job->run(0);
  }

  // Runs a job of a single part: piece(i, rank) for each i below `count`.
  template <class F>
  void share(i64 count, F piece) {
    auto part = std::make_shared<Part>();
    auto body = [part, count, piece](int rank) { part->share(count, [&](i64 i) { piece(i, rank); }); };
    run(std::make_shared<JobOf<decltype(body)>>(body));
  }

 private:
  void publish(std::shared_ptr<Job> job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = std::move(job);
    }
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void serve(int rank) {
    uint32_t seen = 0;
    for (;;) {
      // Spin first: the next step usually follows in less than a millisecond, and a futex wake-up costs ~50 µs.
      for (int i = 0; i < 4096 && epoch_.load(std::memory_order_acquire) == seen; i++) relax();
      epoch_.wait(seen, std::memory_order_acquire);
      std::shared_ptr<Job> job;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        seen = epoch_.load(std::memory_order_acquire);
        job = job_;
      }
      if (!job) return;
      job->run(rank);
    }
  }

  const int size_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::shared_ptr<Job> job_;
  alignas(64) std::atomic<uint32_t> epoch_{0};
};

}  // namespace octavo
