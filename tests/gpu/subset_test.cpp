// Calls on GPUs that request some of a function's outputs, stacks, and inputs that are already the batch.

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

class GpuSubset : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuSubset);

/// Requests each output by itself, and two of them in another order. Does so several times, so that a replayable body
/// is replayed.
template <class F>
void check_choices(sr::Session& session, const F& f) {
  const auto x = session.data(counting<float>(100));
  const auto y = session.data(counting<float>(100, 500));
  const auto world_size = static_cast<float>(session.world_size());
  for (int round = 0; round < 4; ++round) {
    for (const std::int64_t slices : {1, 3}) {
      const sr::CallOptions options{.slices = slices};
      const auto per_rank = static_cast<float>(slices);
      const auto large = f.template only<&Chosen::large>()(x, y, options);
      ASSERT_EQ(large.size(), kLargeElements);
      EXPECT_EQ(large[kLargeElements - 1], world_size * per_rank);
      EXPECT_EQ(f.template only<&Chosen::wanted>()(x, y, options), 8);
      const auto [pairs, own] = f.template only<&Chosen::pairs, &Chosen::own>()(x, y, options);
      ASSERT_EQ(pairs.rows(), 100);
      EXPECT_EQ(pairs[99], 99'000 + 599);
      ASSERT_EQ(own.shape(), (sr::Shape<2>{session.world_size() * slices, 2}));
      for (std::int64_t i = 0; i < own.rows(); ++i) EXPECT_EQ(own(i, 0), static_cast<std::int32_t>(i / slices));
      const Chosen all = f(x, y, options);
      EXPECT_EQ(all.wanted, 15);
      EXPECT_EQ(all.large[0], world_size * per_rank);
      EXPECT_EQ(all.pairs[7], 7507);
    }
  }
}

TEST_P(GpuSubset, GivesWhatIsAskedFor) { check_choices(session(), session().function(chosen)); }

TEST_P(GpuSubset, GivesWhatIsAskedForInReplay) {
  check_choices(session(), session().function(sr::replayable(chosen_in_replay)));
}

TEST_P(GpuSubset, TakesMinibatchesFromTheirStart) {
  const auto f = session().function(chosen).only<&Chosen::pairs>();
  const auto x = session().data(counting<float>(100));
  const auto noise = session().data(counting<float>(40, 500));
  std::vector<int> batch(40);
  for (int i = 0; i < 40; ++i) batch[static_cast<std::size_t>(i)] = (i * 37) % 100;
  for (const std::int64_t slices : {1, 3}) {
    std::vector<sr::Future<sr::Gather<float, 1>>> futures;  // a call's inputs are sent while the call before runs
    for (int i = 0; i < 3; ++i) futures.push_back(f.async(x, sr::minibatch(noise), {.batch = batch, .slices = slices}));
    for (auto& future : futures) {
      const auto pairs = future.get();
      for (int i = 0; i < 40; ++i) ASSERT_EQ(pairs[i], static_cast<float>(1000 * ((i * 37) % 100) + 500 + i));
    }
  }
}

}  // namespace
}  // namespace gpu_test
