// Checks of threads.h; prints what failed. A wait without end is a failure too: the caller sets a limit.
#include "threads.h"

#include <cstdio>
#include <random>

using namespace octavo;

namespace {

struct Case {
  int threads;
  std::vector<i64> counts;  // pieces of each part
};

template <class F>
void run(Team& team, F body) {
  team.run(std::make_shared<JobOf<F>>(team.size(), body));
}

// Pieces that were not run exactly once, or before the end of the part before them.
int wrong_pieces(const Case& c) {
  std::vector<std::vector<std::atomic<int>>> runs;
  for (i64 count : c.counts) runs.emplace_back(size_t(count));
  std::atomic<int> wrong{0};
  Team team(c.threads);  // the last: a late thread reads `runs` until the team is joined
  run(team, [&runs, &wrong](Worker& worker) {
    for (size_t part = 0; part < runs.size(); part++) {
      const auto piece = [&](i64 i) {
        runs[part][size_t(i)]++;
        if (part)
          for (auto& before : runs[part - 1]) wrong += before != 1;
      };
      const i64 count = i64(runs[part].size());
      part % 2 ? worker.deal(count, piece) : worker.share(count, piece);
    }
  });
  for (auto& part : runs)
    for (auto& piece : part) wrong += piece != 1;
  return wrong;
}

// A thread that does not arrive delays nobody: the job ends before rank 1 has seen it.
bool ends_without_a_thread() {
  static std::atomic<bool> may_arrive{false};
  static std::atomic<int> pieces{0};
  Team team(3);
  run(team, [](Worker& worker) {
    if (worker.rank() == 1) spin_until([] { return may_arrive.load(); });
    for (int part = 0; part < 5; part++) worker.share(10, [](i64) { pieces++; });
  });
  const bool complete = pieces == 50;
  may_arrive = true;
  return complete;
}

// A thread that stops in its first piece loses the others of its range: it continues when all of them are done.
bool all_but_one_piece_are_stolen() {
  Team team(3);
  std::atomic<int> done{0}, first{0};
  run(team, [&](Worker& worker) {
    worker.share(30, [&](i64) {
      if (worker.rank() == 0 && first++ == 0) spin_until([&] { return done == 29; });
      done++;
    });
  });
  return done == 30;
}

// Without a wait for others, a thread runs its range first to last, and its range is consecutive.
bool ranges_are_in_order() {
  std::vector<i64> order;
  Team team(1);
  run(team, [&](Worker& worker) { worker.share(100, [&](i64 i) { order.push_back(i); }); });
  for (i64 i = 0; i < 100; i++)
    if (order[size_t(i)] != i) return false;
  std::vector<Lane> lanes(3);
  const Worker worker(lanes, 0);
  for (i64 count : {0, 1, 2, 3, 7, 100})
    if (worker.range_start(count, 0) != 0 || worker.range_start(count, 3) != count) return false;
  return true;
}

// A product of many rows and a wide matrix has millions of pieces, for a single thread too.
bool millions_of_pieces_are_run() {
  i64 sum = 0;
  Team team(1);
  run(team, [&](Worker& worker) {
    worker.share(3'000'000, [&](i64 i) { sum += i; });
    worker.deal(3'000'000, [&](i64 i) { sum -= i - 1; });
  });
  return sum == 3'000'000;
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (int i = 0; i < 60; i++) {
    Case c{int(1 + random() % 5), {}};
    for (int part = 0; part < 20; part++) c.counts.push_back(random() % 3 ? random() % 40 : random() % 3);
    if (const int wrong = wrong_pieces(c)) return std::printf("%d wrong pieces with %d threads\n", wrong, c.threads), 1;
  }
  if (!ends_without_a_thread()) return std::puts("a job ended before all its pieces were done"), 1;
  if (!all_but_one_piece_are_stolen()) return std::puts("pieces are missing"), 1;
  if (!millions_of_pieces_are_run()) return std::puts("pieces of a large part are missing"), 1;
  if (!ranges_are_in_order()) return std::puts("ranges are not in order"), 1;
}
