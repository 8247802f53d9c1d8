// Wrong use of sessions. It is refused with an error that says what to do instead, and does no harm.

#include <thread>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

Sum<int> count_rows(Scattered<const int, 1> x) { return static_cast<int>(x.rows()); }

class BadUse : public testing::TestWithParam<int> {};
INSTANTIATE_WITH_WORKERS(BadUse);

TEST_P(BadUse, OfDataThatIsOpenForWriting) {
  Session session(workers(GetParam()));
  auto x = session.data(std::vector<int>(10, 1));
  const auto f = session.function(count_rows, "rows_of");
  {
    const auto guard = x.write();
    expect_usage([&] { f(x); }, {"argument 0 (Scattered) of 'rows_of' is open for writing"});
    expect_usage([&] { static_cast<void>(f.async(x)); }, {"open for writing"});
    expect_usage([&] { static_cast<void>(x.write()); }, {"open for writing"});
    expect_usage([&] { x.set(std::vector<int>{1}); }, {"open for writing"});
    expect_usage([&] { x.resize({3}); }, {"open for writing"});
    expect_usage([&] { x.free(); }, {"open for writing"});
    auto variable = session.shared<int, 1>("v");
    expect_usage([&] { variable.scatter(x); }, {"open for writing"});
    guard[0] = 5;
  }
  EXPECT_EQ(f(x), 10);
  EXPECT_EQ(x.view()[0], 5);
  expect_usable(session);
}

TEST_P(BadUse, OfASecondSession) {
  Session session(workers(GetParam()));
  expect_usage([&] { Session second(workers(GetParam())); }, {"there is a live session in this process already"});
  expect_usable(session);
  session.close();
  Session second(workers(GetParam()));
  expect_usable(second);
}

TEST_P(BadUse, OfWhatAnotherSessionMade) {
  auto first = std::make_unique<Session>(workers(GetParam()));
  auto x = first->data(std::vector<int>(10, 1));
  auto variable = first->shared<int, 1>("v");
  const auto f = first->function(count_rows, "rows_of");
  first->close();
  Session second(workers(GetParam()));
  const auto g = second.function(count_rows, "rows_of");
  expect_usage([&] { g(x); }, {"argument 0 (Scattered) of 'rows_of' is of another session"});
  expect_usage([&] { f(second.data(std::vector<int>(10, 1))); }, {"the session was closed"});
  auto own = second.shared<int, 1>("w");
  expect_usage([&] { own.scatter(x); }, {"another session"});
  expect_usable(second);
}

TEST_P(BadUse, FromTwoThreads) {
  Session session(workers(GetParam()));
  Board board(session);
  const auto f = session.function([](BoardView board) {
    field(board, 0).fetch_add(1);
    while (field(board, 1).load() == 0) ::sched_yield();
  });
  auto before = session.function(count_rows).async(session.data(std::vector<int>(10, 1)));
  std::thread other([&] { f(board.data()); });
  ASSERT_TRUE(board.reaches(0, GetParam()));
  const std::vector<std::string> words{"used from one thread at a time"};
  expect_usage([&] { f(board.data()); }, words);
  expect_usage([&] { before.get(); }, words);
  expect_usage([&] { session.data<int, 1>({4}); }, words);
  expect_usage([&] { session.wait(); }, words);
  expect_usage([&] { session.close(); }, words);
  board.set(1, 1);
  other.join();
  EXPECT_EQ(before.get(), 10) << "the refused get() has left it its result";
  expect_usable(session);
}

struct Nothing {
  void none() {}
};

TEST_P(BadUse, IsNotToDestroyHandlesOnAnotherThread) {
  Session session(workers(GetParam()));
  const auto f = session.function([]() -> Sum<int> { return 1; });
  std::vector<Data<int, 1>> arrays;
  std::vector<Function<Sum<int>>> functions;
  std::vector<Shared<int, 1>> variables;
  std::vector<Value<int, 1>> values;
  std::vector<Future<Sum<int>>> futures;
  for (int i = 0; i < 500; ++i) {
    arrays.push_back(session.data(std::vector<int>(100, 1)));
    functions.push_back(session.function([]() -> Sum<int> { return 1; }));
    variables.push_back(session.shared<int, 1>());
    values.push_back(session.value(std::vector<int>(100, 1), Shape{100}));
    futures.push_back(f.async());
  }
  auto object = std::make_unique<Replicated<Nothing>>(session.replicate<Nothing>());
  auto queue = std::make_unique<BatchQueue<Data<std::int64_t, 1>>>(session.producers(
      1, +[](Producer<Data<std::int64_t, 1>>&) {}, BatchShapes<Data<std::int64_t, 1>>{{4}}));
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    while (!arrays.empty()) {
      arrays.pop_back();
      functions.pop_back();
      variables.pop_back();
      values.pop_back();
      futures.pop_back();
    }
    object.reset();
    queue.reset();
    is_over = true;
  });
  EXPECT_NO_THROW({
    while (!is_over) f();
  });
  other.join();
  expect_usable(session);
}

TEST_P(BadUse, OfAVariableThatIsUpdatedTwiceInACall) {
  Session session(workers(GetParam()));
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{1});
  const auto f = session.function([](Update<op::sum, float, 1>, Local<float, 1>) {}, "f");
  expect_usage([&] { f(variable, variable); },
               {"argument 1 (Local 'v') of 'f'", "argument 0", "stands once in a call"});
  expect_usable(session);
}

TEST(BadOptions, AreRefusedBeforeAnythingStarts) {
  const auto start = [](const SessionOptions& options) { return [options] { Session session(options); }; };
  expect_usage(start({.processes = "0"}), {"expected a number from 1", "'0'"});
  expect_usage(start({.processes = "-2"}), {"'-2'"});
  expect_usage(start({.processes = "5000"}), {"'5000'"});
  expect_usage(start({.processes = "some"}), {"'some'"});
  expect_usage(start({.devices = "cpu0,disk1"}), {"disk1"});
  expect_usage(start({.devices = "cpu0,cpu0"}), {"cpu0"});
  expect_usage(start({.processes = "2", .timeout = -1ms}), {"SessionOptions::timeout is at least 0, got -1 ms"});
  expect_usage(start({.processes = "2", .start_timeout = -1ms}), {"SessionOptions::start_timeout"});
  expect_usage(start({.processes = "2", .grace = -1ms}), {"SessionOptions::grace"});
  Session session(workers(2));
  expect_usable(session);
}

}  // namespace
}  // namespace syncrun::test
