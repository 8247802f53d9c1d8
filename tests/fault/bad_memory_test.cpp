// Requests for more memory than is available. The master refuses them before it starts anything, and says how much was
// asked for and how much is available.

#include <sys/resource.h>

#include <limits>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
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
  const Error error = error_of(action);
  EXPECT_EQ(error.kind(), ErrorKind::system) << error.what();
  EXPECT_EQ(error.native_code(), ENOMEM);
  EXPECT_THAT(error.what(), MatchesRegex(pattern));
}

class TooLarge : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, TooLarge, testing::Values(1, 3), testing::PrintToStringParamName());

TEST_P(TooLarge, ShapesThatOverflowAreRefused) {
  Session session(workers(GetParam()));
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

TEST_P(TooLarge, DataForTheSegmentSaysHowMuchWasWantedAndThereIs) {
  Session session(workers(GetParam()));
  expect_no_memory(
      [&] {
        session.data<float, 2>({1 << 20, 1 << 20});
      },
      ".*\\[1048576, 1048576\\] requires 4398046511104 bytes of shared memory; the segment has [0-9]+.*");
  expect_usable(session);
}

TEST_P(TooLarge, DataForTheMachineSaysHowMuchWasWantedAndThereIs) {
  Session session(workers(GetParam()));
  auto data = session.data<float, 1>({10});
  // 400 GiB: fits into the addresses of the segment, but not into the memory of the machine.
  expect_no_memory([&] { session.data<float, 1>({100LL << 30}); },
                   ".* requires 429496729600 bytes of shared memory; [0-9]+ bytes are available.*");
  expect_no_memory([&] { data.resize({100LL << 30}); },
                   ".* requires 429496729600 bytes of shared memory; [0-9]+ bytes are available.*");
  EXPECT_EQ(data.rows(), 10);
  expect_usable(session);
}

TEST_P(TooLarge, DataForWhatIsLeftSaysHowMuchIsInUse) {
  const Reserve reserve("67108864");
  Session session(workers(GetParam()));
  const auto first = session.data<std::int8_t, 1>({20 << 20});
  expect_no_memory([&] { session.data<std::int8_t, 1>({20 << 20}); },
                   ".* requires 20971520 bytes of shared memory; of the segment's [0-9]+ bytes, [0-9]+ are in use");
  expect_usable(session);
}

TEST_P(TooLarge, SharedVariablesSayHowMuchWasWantedAndThereIs) {
  const Reserve reserve("67108864");
  Session session(workers(GetParam()));
  auto variable = session.shared<std::int8_t, 1>("weights");
  variable.broadcast(std::vector<std::int8_t>(1000, 7));
  const std::vector<std::int8_t> large(33 << 20, 1);
  const Error error = error_of([&] { variable.broadcast(large); });
  EXPECT_EQ(error.kind(), ErrorKind::system) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("requires"));
  EXPECT_EQ(variable.get(0)[999], 7) << "the copies are as they were";
  expect_usable(session);
}

TEST_P(TooLarge, ResultsOfAFunctionSayHowMuchWasWantedAndThereIs) {
  const Reserve reserve("67108864");
  Session session(workers(GetParam()));
  const auto f = session.function(
      +[](CpuWorker& worker, std::int64_t bytes) { return Sum<std::int8_t, 1>(worker, {bytes}); }, "f");
  const Error error = error_of([&] { f(64 << 20); });
  EXPECT_EQ(error.kind(), ErrorKind::system) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("requires 67108864 bytes"));
  EXPECT_THAT(error.what(), HasSubstr("; no copy of a Value can be dropped (session.memory(device) lists"));
  EXPECT_EQ(f(1000).rows(), 1000);
  expect_usable(session);
}

TEST_P(TooLarge, ValuesSayWhatWasDroppedForThem) {
  const Reserve reserve("67108864");
  Session session(workers(GetParam()));
  const auto first = session.device(0);
  const auto last = session.device(GetParam() - 1);
  const auto small = session.value(std::vector<double>(1000, 2.0), Shape{1000}, first);
  small.to(last);
  const auto f = session.function(
      +[](CpuWorker& worker, std::int64_t count) { return Keep<double, 1>(worker, {count}); }, "f");
  const auto large = f.on(last)(8 << 20);
  const Error error = error_of([&] { static_cast<void>(large.shape()); });
  EXPECT_EQ(error.kind(), ErrorKind::system) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("requires 67108864 bytes"));
  const char* const dropped = "; 8000 bytes of copies of Values were dropped, and no other copy can be";
  EXPECT_THAT(error.what(), HasSubstr(GetParam() == 1 ? "; no copy of a Value can be dropped" : dropped));
  EXPECT_EQ(small.get()[999], 2);
  EXPECT_THROW(static_cast<void>(large.get()), Error) << "it was never made";
  EXPECT_EQ(f.on(last)(10).shape()[0], 10);
  expect_usable(session);
}

TEST_P(TooLarge, ScratchSaysHowMuchWasWantedAndThereIs) {
  const Reserve reserve("67108864");
  Session session(workers(GetParam()));
  const auto f = session.function(
      +[](CpuWorker& worker, std::int64_t bytes) {
        return Sum<std::int64_t>(static_cast<std::int64_t>(worker.scratch<std::int8_t>(bytes).size()));
      },
      "f");
  EXPECT_EQ(error_of([&] { f(64 << 20); }).kind(), ErrorKind::system);
  EXPECT_EQ(f(1000), 1000 * GetParam());
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
