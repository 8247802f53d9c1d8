// Requests for more memory than is available. The master refuses them before it starts anything, and says how much was
// asked for and how much is available.

#include <sys/resource.h>

#include <limits>
#include <stdexcept>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

using testing::MatchesRegex;

constexpr auto kHuge = std::numeric_limits<std::int64_t>::max();

/// Sets the size of the shared memory of sessions, in bytes, for as long as the object lives.
class Reserve {
 public:
  explicit Reserve(const std::string& bytes) { ::setenv("SYNCRUN_RESERVE_BYTES", bytes.c_str(), 1); }
  ~Reserve() { ::unsetenv("SYNCRUN_RESERVE_BYTES"); }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
};

void expect_no_memory(const std::function<void()>& action, const std::string& pattern) {
  const Error error = expect_error(action, ErrorKind::system);
  EXPECT_EQ(error.native_code(), ENOMEM);
  EXPECT_THAT(error.what(), MatchesRegex(pattern));
}

class TooLarge : public WithWorkers {};
INSTANTIATE_WITH_WORKERS(TooLarge);

TEST_P(TooLarge, ShapesThatOverflowAreRefused) {
  expect_usage([&] { session.data<double, 1>({kHuge}); }, {"the size of shape [9223372036854775807]", "overflows"});
  expect_usage([&] { session.data<float, 3>({1LL << 30, 1LL << 30, 1LL << 30}); }, {"overflows"});
  expect_usage([&] { session.data<float, 2>({-1, 4}); }, {"at least 0, got [-1, 4]"});
  auto data = session.data<float, 2>({2, 2});
  expect_usage([&] { data.resize({kHuge, kHuge}); }, {"overflows"});
  expect_usage([&] { data.resize({2, -2}); }, {"at least 0, got [2, -2]"});
  EXPECT_EQ(data.shape(), (Shape<2>{2, 2}));
  EXPECT_EQ((session.data<float, 2>({0, kHuge}).rows()), 0) << "nothing, however wide";
  expect_usable(session);
}

TEST_P(TooLarge, DataSayHowMuchWasWantedAndThereIs) {
  auto data = session.data<float, 1>({10});
  expect_no_memory(
      [&] {
        session.data<float, 2>({1 << 20, 1 << 20});
      },
      ".*\\[1048576, 1048576\\] requires 4398046511104 bytes of shared memory; the segment has [0-9]+.*");
  // 400 GiB: fits into the addresses of the segment, but not into the memory of the machine.
  const std::string machine = ".* requires 429496729600 bytes of shared memory; [0-9]+ bytes are available.*";
  expect_no_memory([&] { session.data<float, 1>({100LL << 30}); }, machine);
  expect_no_memory([&] { data.resize({100LL << 30}); }, machine);
  EXPECT_EQ(data.rows(), 10);
  expect_usable(session);
}

/// A session with 64 MiB of shared memory.
class LittleMemory : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { expect_usable(session); }

 private:
  Reserve reserve_{"67108864"};

 protected:
  Session session{workers(GetParam())};
};
INSTANTIATE_WITH_WORKERS(LittleMemory);

TEST_P(LittleMemory, ForDataIsSaidToBeInUseAndIsFreeAgainAfterwards) {
  for (int round = 0; round < 20; ++round) {
    const auto first = session.data<std::int8_t, 1>({20 << 20});
    expect_no_memory([&] { session.data<std::int8_t, 1>({20 << 20}); },
                     ".* requires 20971520 bytes of shared memory; of the segment's [0-9]+ bytes, [0-9]+ are in use");
  }
}

TEST_P(LittleMemory, ForSharedVariablesIsSaidToBeTooLittleAndIsFreeAgainAfterwards) {
  auto variable = session.shared<std::int8_t, 1>("weights");
  variable.broadcast(std::vector<std::int8_t>(1000, 7));
  const std::vector<std::int8_t> large(33 << 20, 1);
  for (int round = 0; round < 20; ++round) {
    expect_error([&] { variable.broadcast(large); }, ErrorKind::system, {"requires"});
    auto other = session.shared<std::int8_t, 1>("other");
    other.broadcast(std::vector<std::int8_t>(4 << 20));
  }
  EXPECT_EQ(variable.get(0)[999], 7) << "the copies are as they were";
}

TEST_P(LittleMemory, ForResultsAndScratchIsSaidToBeTooLittle) {
  const auto f =
      session.function([](CpuWorker& worker, std::int64_t bytes) { return Sum<std::int8_t, 1>(worker, {bytes}); });
  expect_error([&] { f(64 << 20); }, ErrorKind::system,
               {"requires 67108864 bytes", "; no copy of a Value can be dropped (session.memory(device) lists"});
  EXPECT_EQ(f(1000).rows(), 1000);
  const auto g = session.function([](CpuWorker& worker, std::int64_t bytes) {
    return Sum<std::int64_t>(static_cast<std::int64_t>(worker.scratch<std::int8_t>(bytes).size()));
  });
  expect_error([&] { g(64 << 20); }, ErrorKind::system);
  EXPECT_EQ(g(1000), 1000 * GetParam());
}

Sum<float, 1> large_or_throw(CpuWorker& worker, Scattered<const float, 1> rows, int rank) {
  Sum<float, 1> result(worker, {1 << 18});
  if (worker.rank() == rank && rows.rows() != 0) throw std::runtime_error("nothing to show");
  return result;
}

TEST_P(LittleMemory, IsNotLeakedByCallsThatFail) {
  // Every call has 1 MiB of results and 1 MiB of indices.
  const auto data = session.data<float, 1>({100});
  const std::vector<int> batch(1 << 17, 5);
  const auto f = session.function(large_or_throw, "large_or_throw");
  for (int call = 0; call < 60; ++call)
    expect_error([&] { f(data, GetParam() - 1, {.batch = batch}); }, ErrorKind::function, {"nothing to show"});
  EXPECT_EQ(f(data, -1, {.batch = batch}).rows(), 1 << 18);
}

TEST(Reserve, OfSillySizeIsRefused) {
  for (const char* text : {"many", "-1", "1", "4096", "1000000", "12 apples", "99999999999999999999999999"}) {
    const Reserve reserve(text);
    expect_usage([] { Session session(workers(2)); }, {"SYNCRUN_RESERVE_BYTES", text});
  }
}

TEST(Reserve, IsMadeSmallerWhereAddressSpaceIsLimited) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the address sanitizer's own mappings are larger than the limit";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight{std::size_t{20} << 30U, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  {
    Session session(workers(2));
    expect_usable(session);
    session.close();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace syncrun::test
