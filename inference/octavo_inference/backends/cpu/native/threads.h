// A team of persistent threads that share the parts of a job. They sleep on a futex between jobs.
//
// Each thread has a range of a part's pieces and takes them in order, so it reads memory front to back. A thread whose
// range is empty steals from the ends of other ranges. A part ends when all its pieces are done, not when every thread
// has reached it. A thread may lose its core to another process, or to a container's CPU limit. Then it delays the
// others only if it has taken a piece.
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

// What a thread still has to take of its range in the current part, and how many pieces of all parts it has done. Alone
// on its cache line: only its thread writes there, until others steal.
struct alignas(64) Lane {
  static constexpr int BITS = 24;
  static constexpr uint64_t MOST = (uint64_t(1) << BITS) - 1;  // pieces of a range; a job has up to 65,535 parts

  std::atomic<uint64_t> range{0};  // number of the part, pieces taken from the front, pieces taken from the back
  std::atomic<i64> done{0};

  // Takes a piece of a range of `size`, from its front or its back; -1 if none is left.
  OCTAVO_INLINE i64 take(uint64_t part, i64 size, bool front) {
    uint64_t seen = range.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t number = seen >> (2 * BITS);
      if (number > part) return -1;
      const uint64_t current = number == part ? seen : part << (2 * BITS);
      const i64 taken = i64(current >> BITS & MOST), stolen = i64(current & MOST);
      if (taken + stolen >= size) return -1;
      if (range.compare_exchange_weak(seen, current + (front ? uint64_t(1) << BITS : 1), std::memory_order_relaxed))
        return front ? taken : size - 1 - stolen;
    }
  }
};

// A thread's way through the parts of a job. All threads share the same parts, with the same counts, in the same order.
class Worker {
 public:
  Worker(std::vector<Lane>& lanes, int rank) : lanes_(lanes), rank_(rank) {}

  int rank() const { return rank_; }
  int team_size() const { return int(lanes_.size()); }

  // Index of the first piece of a thread's range, of `count` pieces in order.
  i64 range_start(i64 count, int rank) const { return (count * rank + team_size() - 1) / team_size(); }

  // The next part: runs piece(i) for each i below `count`, and returns when the threads together have run them all.
  // Each thread runs its range in order.
  template <class F>
  OCTAVO_INLINE void share(i64 count, F&& piece) {
    run(
        count, [&](int owner) { return range_start(count, owner + 1) - range_start(count, owner); },
        [&](int owner, i64 i) { piece(range_start(count, owner) + i); });
  }

  // The same with pieces dealt in turn, for pieces that are sorted by their size.
  template <class F>
  OCTAVO_INLINE void deal(i64 count, F&& piece) {
    const i64 threads = team_size();
    run(
        count, [&](int owner) { return (count - owner + threads - 1) / threads; },
        [&](int owner, i64 i) { piece(i * threads + owner); });
  }

 private:
  template <class Size, class Piece>
  OCTAVO_INLINE void run(i64 count, Size&& size, Piece&& piece) {
    part_++;
    total_ += count;
    for (int i = 0; i < team_size(); i++) {
      const int owner = (rank_ + i) % team_size();
      Lane& lane = lanes_[size_t(owner)];
      const i64 pieces = size(owner);
      for (i64 p = lane.take(part_, pieces, i == 0); p >= 0; p = lane.take(part_, pieces, i == 0)) {
        piece(owner, p);
        lanes_[size_t(rank_)].done.store(++done_, std::memory_order_release);
      }
    }
    spin_until([&] {
      i64 done = 0;
      for (const Lane& lane : lanes_) done += lane.done.load(std::memory_order_acquire);
      return done >= total_;
    });
  }

  std::vector<Lane>& lanes_;
  const int rank_;
  uint64_t part_ = 0;
  i64 total_ = 0, done_ = 0;  // pieces of all parts so far, and of these the ones that this thread has done
};

// Work for a team. A thread may start late, even after the caller has returned. It then finds no piece left. So outside
// of pieces, run() accesses only the job itself.
struct Job {
  explicit Job(int threads) : lanes(size_t(threads)) {}
  virtual ~Job() = default;
  virtual void run(Worker& worker) = 0;
  void run_as(int rank) {
    Worker worker(lanes, rank);
    run(worker);
  }

 private:
  std::vector<Lane> lanes;
};

template <class F>
struct JobOf final : Job {
  JobOf(int threads, F f) : Job(threads), f_(std::move(f)) {}
  void run(Worker& worker) override { f_(worker); }
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
    job->run_as(0);
  }

  // Runs a job of a single part: piece(i, rank) for each i below `count`.
  template <class F>
  void share(i64 count, F piece) {
    auto body = [count, piece](Worker& worker) { worker.share(count, [&](i64 i) { piece(i, worker.rank()); }); };
    run(std::make_shared<JobOf<decltype(body)>>(size_, body));
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
      job->run_as(rank);
    }
  }

  const int size_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::shared_ptr<Job> job_;
  alignas(64) std::atomic<uint32_t> epoch_{0};
};

}  // namespace octavo
