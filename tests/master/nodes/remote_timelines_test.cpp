// The timelines of ranks on another node, from an agent's control block to the master's profile and trace. The clock of
// the other node differs from the master's.

#include "master/nodes/remote_timelines.hpp"

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>

#include "master/profile/profiler.hpp"
#include "tests/master/pool/fake_pool.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using std::chrono::nanoseconds;

/// Ranks 0 and 1 are on the master's node, ranks 2 and 3 on the other one.
class TimelinesOfAnotherNode : public testing::Test {
 protected:
  static constexpr protocol::NodePlace kHere{0, 2, 0, 2};
  static constexpr protocol::NodePlace kThere{1, 2, 2, 2};
  static constexpr std::int64_t kMs = 1'000'000;

  TimelinesOfAnotherNode() {
    settings.devices.resize(4);
    settings.nodes = {kHere, kThere};
    settings.node_names = {"a", "b"};
    settings.trace = folder.at("trace");
    pool.control().header().place = kHere;
    other.control().header().place = kThere;
    for (const ControlBlock& control : {pool.control(), other.control()})
      control.header().timelines_offset = control.header().heap_offset;
  }
  void begin() {
    profiler.emplace(settings, pool.segment().at<const protocol::Timeline>(pool.control().header().timelines_offset));
    sender.emplace(other.control(), other.segment());
    receiver.emplace(pool.control(), pool.segment());
  }
  protocol::Timeline& there(int rank) {
    return other.segment().at<protocol::Timeline>(other.control().header().timelines_offset)[rank];
  }
  /// The master sends a command to a rank.
  void send(std::uint64_t id, int rank, const std::string& name = "f") {
    command.id = id;
    command.ranks = protocol::RankSet::only(rank);
    profiler->begin(id, name);
    receiver->note_sent(command);
  }
  /// On the clock of the other node, rank runs the command from `at` on: first its inputs, and then its function.
  void run(std::uint64_t id, int rank, std::int64_t at_ns, std::int64_t inputs_ns, std::int64_t function_ns) {
    there(rank).add(protocol::progress_word(id, protocol::Phase::inputs), at_ns);
    there(rank).add(protocol::progress_word(id, protocol::Phase::function), at_ns + inputs_ns);
    there(rank).add(protocol::progress_word(id, protocol::Phase::idle), at_ns + inputs_ns + function_ns);
  }
  void report(int rank) {
    MessageWriter writer(MessageKind::done);
    sender->put(writer, rank);
    const auto bytes = writer.take();
    MessageReader reader(bytes, "node 1");
    receiver->take(reader, rank);
    EXPECT_TRUE(reader.is_at_end());
  }
  struct Span {
    std::string name;
    double begin_ms;
    double end_ms;
  };
  /// The spans of a row of the trace, in the order in which they were written.
  std::vector<Span> spans_of(int row) {
    profiler->close();
    std::vector<Span> spans;
    std::istringstream lines(::text_of(settings.trace));
    for (std::string line; std::getline(lines, line);) {
      int found = 0;
      double begin = 0;
      double length = 0;
      std::array<char, 100> name{};
      constexpr const char* kForm = R"({"ph": "X", "pid": 1, "tid": %d, "ts": %lf, "dur": %lf, "name": "%99[^"])";
      if (std::sscanf(line.c_str(), kForm, &found, &begin, &length, name.data()) != 4 || found != row) continue;
      spans.push_back({name.data(), begin / 1000, (begin + length) / 1000});
    }
    return spans;
  }

  TemporaryFolder folder;
  master::settings::Settings settings;
  FakePool pool{4};
  FakePool other{4};
  protocol::Command& command = pool.control().command_in(0);
  std::optional<master::profile::Profiler> profiler;
  std::optional<TimelineSender> sender;
  std::optional<TimelineReceiver> receiver;
};

TEST_F(TimelinesOfAnotherNode, NeverEndAfterTheReceiptAlthoughTheClockThereIsFast) {
  const auto before = std::chrono::steady_clock::now();
  begin();
  send(1, 2);
  run(1, 2, 0, 0, 3'600'000 * kMs);  // an hour, it says
  report(2);
  profiler->end(1);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - before;
  const auto spans = spans_of(3);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_LE(spans.back().end_ms - spans.back().begin_ms, took.count());
}

TEST_F(TimelinesOfAnotherNode, ComeWithTheTotalsOfTheRank) {
  constexpr std::uint64_t kAlignment = alignof(protocol::RankTotals);
  const std::uint64_t end = pool.control().header().timelines_offset + 4 * sizeof(protocol::Timeline);
  const std::uint64_t offset = (end + kAlignment - 1) / kAlignment * kAlignment;
  for (const ControlBlock& control : {pool.control(), other.control()}) control.header().totals_offset = offset;
  begin();
  protocol::RankTotals& totals = other.segment().at<protocol::RankTotals>(offset)[2];
  totals.enter(protocol::Phase::idle, 100);
  totals.enter(protocol::Phase::function, 150);
  totals.note_call(5, false);
  totals.add(protocol::Count::input_bytes, 64);
  totals.enter(protocol::Phase::idle, 180);
  report(2);
  const protocol::TotalsNow here = pool.segment().at<protocol::RankTotals>(offset)[2].read(0);
  EXPECT_EQ(here.of(protocol::Phase::function), 30);
  EXPECT_EQ(here.of(protocol::Count::calls), 1);
  EXPECT_EQ(here.of(protocol::Count::call_rows), 5);
  EXPECT_EQ(here.of(protocol::Count::input_bytes), 64);
}

TEST_F(TimelinesOfAnotherNode, CountEventsThatCameTooFast) {
  settings.profile = folder.at("table");
  begin();
  send(1, 2);
  for (std::uint64_t i = 0; i < protocol::Timeline::kEvents + 100; ++i)
    there(2).add(protocol::progress_word(1, i % 2 == 0 ? protocol::Phase::inputs : protocol::Phase::function),
                 static_cast<std::int64_t>(i));
  there(2).add(protocol::progress_word(1, protocol::Phase::idle), 1 << 20);
  report(2);
  profiler->end(1);
  profiler->close();
  EXPECT_THAT(::text_of(settings.profile), testing::HasSubstr("357 events came too fast to be read, and are missing"));
}

}  // namespace
}  // namespace syncrun::test
