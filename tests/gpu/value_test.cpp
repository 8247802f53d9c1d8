// Values on GPUs: results that stay on their device, and moves between devices.

#include <cuda_runtime_api.h>

#include <vector>

#include "tests/gpu/on_gpus.hpp"
#include "tests/gpu/value_bodies.hpp"

namespace gpu_test {
namespace {

using sr::Shape;

class GpuValues : public OnGpus {
 protected:
  sr::Device first() { return session().device(0); }
  sr::Device last() { return session().device(world_size() - 1); }
};
INSTANTIATE_ON_GPUS(GpuValues);

TEST_P(GpuValues, MoveToTheDeviceThatReadsThem) {
  const auto twice = session().function(kept_twice);
  const auto sum = session().function(kept_sum);
  for (const std::int64_t count : {1, 1000, 5'000'000}) {
    const auto x = session().value(std::vector<float>(static_cast<std::size_t>(count), 1.5F), Shape{count}, first());
    const auto y = twice.on(first())(x);
    const auto z = sum.on(last())(y, x);
    const auto values = z.get();
    ASSERT_EQ(values.rows(), count);
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(values[i], 4.5F) << i;
    EXPECT_EQ(y.where().size(), world_size() == 1 ? 1U : 2U);
  }
}

TEST_P(GpuValues, ChangeInPlaceOnAllDevicesInTurn) {
  const auto add = session().function(add_to);
  const auto x = session().value(std::vector<float>(1000, 0.0F), Shape{1000}, first());
  for (int i = 0; i < 300; ++i) add.on(session().device(i % world_size()))(x, 1.0F);
  EXPECT_EQ(x.get()[999], 300.0F);
}

TEST_P(GpuValues, AreReadByAllDevicesInOneCall) {
  const auto x = session().value(std::vector<float>(10, 2.0F), Shape{10}, last());
  const auto all = session().function(elements_of)(x);
  ASSERT_EQ(all.rows(), 10 * world_size());
  for (const float value : all) EXPECT_EQ(value, 2.0F);
}

TEST_P(GpuValues, ChainOverDevices) {
  const auto twice = session().function(kept_twice);
  auto x = session().value(std::vector<float>(3, 1.0F), Shape{3}, first());
  for (int i = 0; i < 100; ++i) x = twice.on(session().device(i % world_size()))(x);
  EXPECT_EQ(x.get()[2], std::ldexp(1.0F, 100));
}

TEST_P(GpuValues, ComeFromTheHostAndGoThere) {
  const auto x = session().value(std::vector<float>(7, 2.0F), Shape{7});
  EXPECT_TRUE(x.is_on_host());
  session().function(add_to).on(last())(x, 1.0F);
  EXPECT_FALSE(x.is_on_host());
  x.to_host();
  EXPECT_EQ(x.get()[6], 3.0F);
}

TEST_P(GpuValues, AreWrittenInPlaceByAReplayedBody) {
  const auto object = session().replicate<HostRuns>();
  const auto step = session().function(sr::replayable(&HostRuns::step), object);
  const auto runs = session().function(&HostRuns::count, object);
  const auto x = session().value(std::vector<float>(100, 0.0F), Shape{100}, last());
  const auto y = session().value(std::vector<float>(100, 0.0F), Shape{100}, last());
  for (int i = 0; i < 1000; ++i) step.on(last())(x, y);
  EXPECT_EQ(x.get()[99], 1000.0F);
  EXPECT_LE(runs.on(last())(), 4) << "one run and one capture for each recording, and at most two recordings";
}

TEST_P(GpuValues, ThatAreValidElsewhereMakeRoom) {
  if (world_size() == 1) GTEST_SKIP() << "a copy is valid elsewhere only if there are two GPUs";
  const auto fill = session().function(kept_filled);
  const auto add = session().function(add_to);
  std::size_t available = 0;
  {
    const auto memory = session().memory(last());
    available = memory.free_bytes;
  }
  // Ten values live on the first GPU, and have copies on the last one, which fill three quarters of it.
  const auto count = static_cast<std::int64_t>(available / 40 * 3 / sizeof(float));
  std::vector<sr::Value<float, 1>> values;
  for (int i = 0; i < 10; ++i) {
    values.push_back(fill.on(first())(count, static_cast<float>(i)));
    values.back().to(last());
  }
  session().wait();
  const auto large = fill.on(last())(5 * count, 0.5F);
  session().wait();
  std::size_t copies = 0;
  for (const auto& value : values) copies += value.where().size() == 2 ? 1 : 0;
  EXPECT_LT(copies, 10U) << "copies had to be dropped";
  add.on(first())(values[3], 1.0F);
  EXPECT_EQ(session().function(elements_of).on(first())(values[3])[count - 1], 4.0F);
  static_cast<void>(large);
}

}  // namespace
}  // namespace gpu_test
