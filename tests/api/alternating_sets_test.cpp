// Collectives of sets that overlap, one after the other.

#include <algorithm>
#include <chrono>

#include "tests/support/on_workers.hpp"

namespace {

class AlternatingSets : public OnWorkers {};
INSTANTIATE_ON_WORKERS(AlternatingSets, 4);

/// A rank waits for its peers of the last set before it writes for the next one. If nobody woke it, each such wait would
/// last up to 100 ms.
TEST_P(AlternatingSets, DoNotWaitForALap) {
  using Clock = std::chrono::steady_clock;
  const auto f = session().function(
      [](sr::Comm& comm) -> sr::Sum<int> { return comm.all_reduce(comm.rank() + 1, sr::Reduction::sum); });
  const sr::Device first = session().device(0);
  const auto left = f.on({first, session().device(1)});
  const auto right = f.on({first, session().device(2)});
  constexpr int kRounds = 2000;
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    auto one = left.async();
    auto other = right.async();
    EXPECT_EQ(other.get(), 6);
    EXPECT_EQ(one.get(), 6);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20)) << "a lap in every tenth round";
}

}  // namespace
