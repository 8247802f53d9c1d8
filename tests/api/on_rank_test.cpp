// Calls on one rank.

#include <array>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

class OnRank : public OnWorkers {};
INSTANTIATE_ON_WORKERS(OnRank, 1, 2, 4);

struct Where {
  sr::Gather<int, 1> ranks;
  sr::Sum<std::int64_t> rows;
};

Where where(sr::CpuWorker& worker, sr::Scattered<const float, 1> x) {
  return {.ranks = {std::vector<int>{worker.rank()}, {1}}, .rows = x.rows()};
}

TEST_P(OnRank, ComputesAllRowsThere) {
  const auto x = session().data(counting<float>(10));
  const auto f = session().function(where);
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto result = f.on_rank(rank)(x);
    EXPECT_EQ(result.ranks.to_vector(), std::vector<int>{rank});
    EXPECT_EQ(result.rows, 10);
  }
}

TEST_P(OnRank, GivesACommunicatorOfOne) {
  const auto f = session().function([](sr::Comm& comm) -> sr::Sum<int> {
    comm.barrier();
    return comm.world_size() + comm.all_reduce(10, sr::Reduction::sum);
  });
  EXPECT_EQ(f.on_rank(world_size() - 1)(), 11);
}

using Path = std::array<char, 200>;  // a std::array is a value

Path as_value(const std::filesystem::path& path) {
  Path value{};
  path.string().copy(value.data(), value.size() - 1);
  return value;
}

/// Waits about 20 s for the file. Returns 1 when it exists, and 0 if it does not appear.
sr::Sum<int> await_file(Path path) {
  for (int lap = 0; lap < 20'000; ++lap) {
    if (std::filesystem::exists(path.data())) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
}

void make_file(Path path) { write_text(path.data(), "here"); }

TEST_P(OnRank, CallsOnDifferentRanksOverlap) {
  if (world_size() == 1) return;
  const TemporaryFolder folder;
  const Path path = as_value(folder / "made");
  auto waits = session().function(await_file).on_rank(0).async(path);
  auto makes = session().function(make_file).on_rank(1).async(path);  // starts later, but ends first
  EXPECT_EQ(waits.get(), 1);
  makes.get();
}

TEST_P(OnRank, ACallInFlightDoesNotShareTheFailureOfOneOnAnotherRank) {
  const auto fails = session().function(+[] { throw std::runtime_error("no such row"); });
  const auto one = session().function(+[]() -> sr::Sum<int> { return 1; });
  const int last = world_size() - 1;
  auto before = one.on_rank(last).async();
  auto failed = fails.on_rank(0).async();
  auto after = one.on_rank(last).async();
  EXPECT_EQ(after.get(), 1);
  EXPECT_EQ(before.get(), 1);
  EXPECT_ERROR(failed.get(), sr::ErrorKind::function, "no such row");
  EXPECT_EQ(one.on_rank(last)(), 1);
}

TEST_P(OnRank, RefusesARankThatIsNotThere) {
  const auto f = session().function(where);
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(static_cast<void>(f.on_rank(-1)), sr::ErrorKind::usage, "-1");
  EXPECT_ERROR(f.on_rank(world_size())(x), sr::ErrorKind::usage, "rank from 0 to");
}

}  // namespace
