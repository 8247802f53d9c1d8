// Profiles and traces, which show where the time of calls went.

#include <algorithm>
#include <map>
#include <thread>

#include "tests/support/gate.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/slowdown.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using syncrun::test::Gate;
using syncrun::test::kSlowdown;
using syncrun::test::pass;

using namespace std::chrono_literals;

class Profile : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { open({.trace = path_}); }
  void open(sr::SessionOptions options) {
    options.processes = std::to_string(GetParam());
    options.timeout = std::chrono::seconds(SYNCRUN_COMPUTING_CALL_TIMEOUT_S);
    session_ = std::make_unique<sr::Session>(options);
  }
  sr::Session& session() { return *session_; }
  void end_session() { session_.reset(); }
  std::string written() const { return text_of(path_); }
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_ = folder_.at("trace");
  std::unique_ptr<sr::Session> session_;
};
INSTANTIATE_ON_WORKERS(Profile, 1, 3);

/// Rank 0 sleeps in its body, and the others wait for it in a collective.
sr::Sum<double> uneven(sr::CpuWorker& worker, sr::Comm& comm, sr::Scattered<const double, 1> x) {
  if (worker.rank() == 0) std::this_thread::sleep_for(50ms);
  comm.barrier();
  return static_cast<double>(x.rows());
}

const sr::CallProfile& line_of(const std::vector<sr::CallProfile>& profile, const std::string& name, int rank) {
  const auto found = std::find_if(profile.begin(), profile.end(),
                                  [&](const auto& line) { return line.name == name && line.rank == rank; });
  if (found == profile.end()) throw std::runtime_error("no line for " + name + " on rank " + std::to_string(rank));
  return *found;
}

TEST_P(Profile, TellsWhereTheTimeWent) {
  const auto f = session().function(uneven, "uneven");
  const auto x = session().data(counting<double>(30));
  for (int i = 0; i < 5; ++i) f(x);
  for (int i = 0; i < 2; ++i) f(x, {.slices = 2});  // sleeps once per slice
  const auto profile = session().profile();
  ASSERT_EQ(profile.size(), static_cast<std::size_t>(GetParam()) + 1);
  for (int rank = -1; rank < GetParam(); ++rank) {
    const auto& line = line_of(profile, "uneven", rank);
    EXPECT_EQ(line.calls, 7);
    // On a busy machine, the other ranks may start late. Then they wait only for a part of the sleep.
    const auto sleep = rank <= 0 ? 50ms : 10ms;
    EXPECT_GE(line.whole.median, sleep * 0.97) << "rank " << rank;
    EXPECT_GE(line.whole.max, 2 * sleep) << "rank " << rank;
    EXPECT_GE(line.whole.total, 9 * sleep) << "rank " << rank;
    if (rank < 0) continue;
    const auto phases =
        line.inputs.total + line.function.total + line.collective.total + line.waiting.total + line.reduction.total;
    EXPECT_EQ(phases, line.whole.total) << "rank " << rank;
    const auto& sleeping = rank == 0 ? line.function : line.collective;
    EXPECT_GE(sleeping.median, sleep * 0.97) << "rank " << rank;
    EXPECT_LE(sleeping.median, sleeping.max) << "rank " << rank;
    EXPECT_LE(sleeping.max, line.whole.max) << "rank " << rank;
  }
}

TEST_P(Profile, CountsEveryCallOfEveryRank) {
  const auto f = session().function([](int) {}, "nothing");
  for (int i = 0; i < 500; ++i) f(i);
  for (int i = 0; i < 3; ++i) f.on_rank(0)(i);
  std::vector<sr::Future<void>> futures;
  for (int i = 0; i < 100; ++i) futures.push_back(f.async(i));
  auto w = session().shared<float, 1>("weights");
  w.broadcast(std::vector<float>(10));
  w.all_reduce(sr::Reduction::sum);
  const auto profile = session().profile();
  EXPECT_EQ(line_of(profile, "nothing", -1).calls, 603);
  EXPECT_EQ(line_of(profile, "nothing", 0).calls, 603);
  if (GetParam() > 1) {
    EXPECT_EQ(line_of(profile, "nothing", 1).calls, 600);
  }
  EXPECT_GE(line_of(profile, "all_reduce of weights", 0).collective.total.count(), 1);
  EXPECT_NE(sr::to_string(profile).find("nothing\n  master"), std::string::npos) << sr::to_string(profile);
}

TEST_P(Profile, IsJsonIfTheNameOfTheFileSaysSo) {
  const TemporaryFolder folder;
  end_session();
  open({.profile = folder.at("profile.json")});
  const auto f = session().function([](int) {}, "nothing");
  for (int i = 0; i < 3; ++i) f(i);
  end_session();
  const std::string json = text_of(folder.at("profile.json"));
  EXPECT_EQ(json.find("{\"syncrun_profile\": 1, "), 0U);
  EXPECT_EQ(json.find("\"elapsed_ns\": 0,"), std::string::npos) << "there were calls";
  EXPECT_EQ(json.find("\"busy_ns\": 0,"), std::string::npos);
  for (int rank = -1; rank < GetParam(); ++rank)
    EXPECT_NE(json.find("{\"rank\": " + std::to_string(rank) + ", \"calls\": 3, "), std::string::npos) << json;
}

/// A span of a trace: its name, and its begin and end in microseconds.
struct Span {
  std::string name;
  double begin;
  double end;
};
std::map<int, std::vector<Span>> spans_of(const std::string& trace) {
  std::map<int, std::vector<Span>> rows;
  std::istringstream lines(trace);
  for (std::string line; std::getline(lines, line);) {
    int row = 0;
    double begin = 0;
    double length = 0;
    std::array<char, 100> name{};
    const int read =
        std::sscanf(line.c_str(), R"({"ph": "X", "pid": 1, "tid": %d, "ts": %lf, "dur": %lf, "name": "%99[^"])", &row,
                    &begin, &length, name.data());
    if (read == 4) rows[row].push_back({name.data(), begin, begin + length});
  }
  return rows;
}

TEST_P(Profile, WritesATraceOfAllRanks) {
  const auto f = session().function(uneven, "un\"even\\");
  const auto x = session().data(counting<double>(30));
  for (int i = 0; i < 3; ++i) f(x);
  session().close();
  const std::string trace = written();
  EXPECT_EQ(trace.substr(0, 2), "[\n");
  EXPECT_EQ(trace.substr(trace.size() - 4), "}\n]\n");
  EXPECT_NE(trace.find(R"("name": "un\"even\\")"), std::string::npos);
  EXPECT_NE(trace.find(R"x("name": "rank 0 (cpu0)")x"), std::string::npos);
  const auto rows = spans_of(trace);
  ASSERT_EQ(rows.size(), static_cast<std::size_t>(GetParam()) + 1);
  EXPECT_EQ(rows.at(0).size(), 3U) << "the master's calls";
  for (int rank = 0; rank < GetParam(); ++rank) {
    const auto& spans = rows.at(rank + 1);
    const auto count = [&](const std::string& name) {
      return std::count_if(spans.begin(), spans.end(), [&](const Span& span) { return span.name == name; });
    };
    EXPECT_EQ(count("un\\"), 3);  // spans_of() reads a name up to its first quote
    EXPECT_GE(count("function"), 3);
    EXPECT_GE(count("inputs"), 3);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const bool are_apart = spans[i].begin >= spans[j].end - 0.01 || spans[j].begin >= spans[i].end - 0.01;
        const bool is_within = spans[j].begin >= spans[i].begin - 0.01 && spans[j].end <= spans[i].end + 0.01;
        const bool is_around = spans[i].begin >= spans[j].begin - 0.01 && spans[i].end <= spans[j].end + 0.01;
        EXPECT_TRUE(are_apart || is_within || is_around) << spans[i].name << " and " << spans[j].name;
      }
    }
  }
}

void sleep_for(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST_P(Profile, TellsTheTimeOfEachOfSeveralCallsSideBySide) {
  if (GetParam() == 1) GTEST_SKIP() << "calls on one rank do not overlap";
  const auto slow = session().function(pass, "slow");
  const auto quick = session().function(sleep_for, "quick");
  for (const bool slow_is_first : {true, false}) {
    Gate gate;
    auto one = slow.on_rank(0).async(gate.key());
    auto other = quick.on_rank(1).async(100);
    while (!other.is_ready()) std::this_thread::yield();
    std::this_thread::sleep_for(100ms);
    gate.open();
    if (slow_is_first) one.get();
    other.get();
    if (!slow_is_first) one.get();
  }
  const auto profile = session().profile();
  const auto slow_times = line_of(profile, "slow", -1).whole;
  const auto quick_times = line_of(profile, "quick", -1).whole;
  EXPECT_GE(quick_times.total, 200ms);
  EXPECT_GE(slow_times.total, quick_times.total + 200ms) << "each in its own time, whichever result came first";
}

TEST_P(Profile, TellsTheTimeOfEachOfSeveralCallsInARow) {
  const auto f = session().function(sleep_for, "sleep");
  std::vector<sr::Future<void>> futures;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) futures.push_back(f.async(kSlowdown * 50));
  while (!futures.back().is_ready()) std::this_thread::yield();
  const auto all = std::chrono::steady_clock::now() - begin;
  std::this_thread::sleep_for(kSlowdown * 100ms);
  for (auto& future : futures) future.get();
  const auto times = line_of(session().profile(), "sleep", -1).whole;
  EXPECT_GE(times.median, kSlowdown * 50ms * 0.97);
  EXPECT_LE(times.total, all) << "neither the calls before nor the master's own work count";
}

TEST_P(Profile, WritesCallsSideBySideToRowsOfTheirOwn) {
  if (GetParam() == 1) GTEST_SKIP() << "calls on one rank do not overlap";
  const auto f = session().function(sleep_for, "f");
  Gate gate;
  auto slow = session().function(pass, "slow").on_rank(0).async(gate.key());
  auto quick = f.on_rank(1).async(100);
  while (!quick.is_ready()) std::this_thread::yield();
  gate.open();
  slow.get();
  quick.get();
  f(0);
  session().close();
  const auto rows = spans_of(written());
  ASSERT_EQ(rows.at(0).size(), 2U) << "the first call, and the last one, which comes after both others";
  ASSERT_EQ(rows.at(GetParam() + 1).size(), 1U);
  const Span& second = rows.at(GetParam() + 1).front();
  EXPECT_LT(second.begin, rows.at(0).front().end) << "they overlap";
  EXPECT_GE(second.end - second.begin, 97'000);
  EXPECT_NE(written().find(R"x("args": {"name": "master (2)"})x"), std::string::npos);
}

sr::Keep<double, 1> slow_copy(sr::CpuWorker& worker, sr::Local<const double, 1> x, Gate::Key key) {
  pass(key);
  return {worker, x.shape()};
}

TEST_P(Profile, ShowsInTheTraceWhatMovesAndWhatItWaitsFor) {
  const auto f = session().function(slow_copy, "slow_copy");
  const auto x = session().value(counting<double>(100), sr::Shape{100}, session().device(0), "x");
  Gate gate;
  const auto y = f.on(session().device(0))(x, gate.key());
  const auto z = f.on(session().device(GetParam() - 1))(y, gate.key());
  std::this_thread::sleep_for(kSlowdown * 300ms);
  gate.open();
  session().wait();
  y.to_host();
  const auto profile = session().profile();
  session().close();
  const std::string trace = written();
  EXPECT_NE(trace.find(R"("name": "move of x", "args": {"bytes": 800}})"), std::string::npos) << "from the host";
  EXPECT_NE(trace.find("\"name\": \"to_host of " + y.name() + R"(", "args": {"bytes": 800}})"), std::string::npos)
      << trace;
  if (GetParam() == 1) return;
  EXPECT_NE(trace.find(R"x("args": {"after": ["slow_copy on rank 0"], "bytes": 800}})x"), std::string::npos) << trace;
  const auto move = std::find_if(profile.begin(), profile.end(), [&](const sr::CallProfile& line) {
    return line.rank == GetParam() - 1 && line.name == "move of " + y.name();
  });
  ASSERT_NE(move, profile.end());
  EXPECT_GE(move->waiting.median, 15ms) << "for the call that makes the value";
}

TEST_P(Profile, ShowsInTheTraceWhatWasUnfinished) {
  const auto f = session().function(
      [](sr::CpuWorker& worker) {
        if (worker.rank() == 0) std::this_thread::sleep_for(10s);
      },
      "hangs");
  EXPECT_ERROR(f({.timeout = 3s}), sr::ErrorKind::timeout, "hangs");
  end_session();
  const auto rows = spans_of(written());
  const auto& spans = rows.at(1);
  EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [](const Span& span) {
    return span.name == "hangs" && span.end - span.begin >= 50'000;
  })) << written();
}

TEST_P(Profile, WritesATableWhenTheSessionEnds) {
  end_session();
  open({.profile = path()});
  session().function([](int) {}, "nothing")(1);
  session().close();
  const std::string table = written();
  EXPECT_EQ(table.find("median / max in us    calls"), 0U) << table;
  EXPECT_NE(table.find("nothing\n  master                  1 "), std::string::npos) << table;
  EXPECT_NE(table.find("\n  rank 0                  1 "), std::string::npos) << table;
}

TEST_P(Profile, IsRefusedWhereItCannotBeWrittenAndKeptOnlyWhereItIsWanted) {
  end_session();
  EXPECT_ERROR(open({.trace = "/no/such/folder/trace"}), sr::ErrorKind::system, "/no/such/folder/trace");
  EXPECT_ERROR(open({.profile = "/no/such/folder/table"}), sr::ErrorKind::system, "/no/such/folder/table");
  open({.trace = "/dev/full"});
  const auto f = session().function([](int) {});
  for (int i = 0; i < 1000; ++i) f(i);
  EXPECT_ERROR(session().close(), sr::ErrorKind::system, "cannot write the trace /dev/full");
  open({});
  EXPECT_ERROR(static_cast<void>(session().profile()), sr::ErrorKind::usage, "no profile is kept");
  session().close();
}

}  // namespace
