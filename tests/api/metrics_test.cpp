// Metrics: the totals of a real session, and what exists if they are off.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/least_squares.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

class Metrics : public testing::TestWithParam<int> {
 protected:
  void open(const std::string& metrics) {
    sr::SessionOptions options = options_of_computing(GetParam());
    options.metrics = metrics;
    session_ = std::make_unique<sr::Session>(options);
  }
  sr::Session& session() { return *session_; }
  void end_session() { session_.reset(); }

 private:
  std::unique_ptr<sr::Session> session_;
};
INSTANTIATE_ON_WORKERS(Metrics, 1, 2);

sr::Sum<double> with_collectives(sr::Comm& comm, sr::Scattered<const double, 1> x, sr::Broadcast<const float, 1> y) {
  comm.barrier();
  std::vector<float> values(y.span().begin(), y.span().end());
  comm.all_reduce(std::span(values), sr::Reduction::sum);
  return static_cast<double>(x.rows());
}

TEST_P(Metrics, CountCallsAndBytesExactly) {
  open("/dev/null");
  const auto f = session().function(with_collectives, "f");
  const auto x = session().data(std::vector<double>(10));
  const auto y = session().data(std::vector<float>(6));
  for (int i = 0; i < 5; ++i) f(x, y);
  f(x, y, {.batch = std::vector<int>{1, 2, 3, 3}, .slices = 2});
  auto w = session().shared<float, 1>("w");
  w.broadcast(std::vector<float>(8));
  w.all_reduce(sr::Reduction::sum);
  const auto ranks = session().metrics();
  ASSERT_EQ(ranks.size(), static_cast<std::size_t>(GetParam()));
  for (const sr::RankMetrics& rank : ranks) {
    SCOPED_TRACE(rank.rank);
    const std::int64_t all = GetParam();
    EXPECT_EQ(rank.device, "cpu" + std::to_string(rank.rank));
    EXPECT_EQ(rank.calls, 6);
    EXPECT_EQ(rank.call_rows, (5 * 10 + 4) / all);
    // The rows; the whole of y once per slice; and the copy of w.
    EXPECT_EQ(rank.input_bytes, (5 * 10 + 4) / all * 8 + (5 + 2) * 6 * 4 + 8 * 4);
    // One rank alone has no collectives.
    EXPECT_EQ(rank.collectives, all == 1 ? 0 : (5 + 2) * 2 + 1);
    EXPECT_EQ(rank.collective_bytes, all == 1 ? 0 : (5 + 2) * 6 * 4 + 8 * 4);
    EXPECT_EQ(rank.train_steps, 0);
    EXPECT_GT(rank.call_time.count(), 0);
    EXPECT_GT(rank.idle.count(), 0);
    EXPECT_GE(rank.inputs + rank.function + rank.collective + rank.waiting + rank.reduction, rank.call_time);
  }
}

TEST_P(Metrics, CountTrainSteps) {
  open("/dev/null");
  const auto serial = least_squares::problem(20, 3, 1);
  const auto x = session().data(serial.x, sr::Shape{20, 3});
  const auto y = session().data(serial.y);
  auto w = session().shared<double, 1>("w");
  w.broadcast(serial.params);
  auto step = sr::train_step<sr::Adam>(session(), least_squares::loss_and_gradient<double>, w);
  for (int i = 0; i < 3; ++i) static_cast<void>(step(x, y, sr::Adam{}, {.slices = 2}));
  session().function([](int) {}, "nothing")(1);
  for (const sr::RankMetrics& rank : session().metrics()) {
    EXPECT_EQ(rank.train_steps, 3);
    EXPECT_EQ(rank.train_step_rows, 3 * 20 / GetParam());
    EXPECT_EQ(rank.calls, 4);
    EXPECT_GT(rank.train_step_time.count(), 0);
    EXPECT_GT(rank.call_time, rank.train_step_time);
  }
}

TEST_P(Metrics, AreInTheFileWhenTheSessionHasEnded) {
  const TemporaryFolder folder;
  open(folder.at("m.prom"));
  const auto f = session().function([](int) {}, "nothing");
  for (int i = 0; i < 7; ++i) f(i);
  session().close();
  const std::string text = text_of(folder.at("m.prom"));
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_NE(text.find("\nsyncrun_calls_total{rank=\"" + std::to_string(rank) + "\",device=\"cpu" +
                        std::to_string(rank) + "\",node=\""),
              std::string::npos)
        << text;
  EXPECT_NE(text.find("\"} 7\n"), std::string::npos) << text;
}

std::vector<std::string> threads_of_this_process() {
  std::vector<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    names.push_back(text_of(task.path() / "comm"));
  return names;
}

TEST_P(Metrics, AddAThreadOnlyIfTheyAreOn) {
  const TemporaryFolder folder;
  open("");
  EXPECT_THAT(threads_of_this_process(), testing::Not(testing::Contains("syncrun-metrics\n")));
  EXPECT_ERROR(static_cast<void>(session().metrics()), sr::ErrorKind::usage, "--metrics");
  end_session();
  open("unix:" + folder.at("socket"));
  // The thread gives itself its name.
  while (std::ranges::count(threads_of_this_process(), "syncrun-metrics\n") == 0) std::this_thread::yield();
}

TEST(MetricsErrors, ComeBeforeWorkersStart) {
  const TemporaryFolder folder;
  const auto start = [](const std::string& metrics) {
    sr::SessionOptions options = options_of_computing(1);
    options.metrics = metrics;
    sr::Session session(options);
  };
  EXPECT_ERROR(start("70000"), sr::ErrorKind::usage, "SessionOptions::metrics: expected a file");
  EXPECT_ERROR(start(folder.at("no/file")), sr::ErrorKind::system, "--metrics");
  EXPECT_ERROR(start("unix:" + folder.at("no/socket")), sr::ErrorKind::system, "--metrics");
  // A worker writes into its log from its start on.
  sr::SessionOptions options = options_of_computing(1);
  options.log_dir = folder.at("logs");
  options.metrics = folder.at("no/file");
  EXPECT_ERROR(sr::Session{options}, sr::ErrorKind::system, "--metrics");
  EXPECT_TRUE(std::filesystem::is_empty(folder.at("logs")));
}

}  // namespace
