// What happens to a queue when a producer throws, dies, hangs or does not end when asked, and what happens to producers
// when their master dies.

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"
#include "tests/master/helper_processes/queue_scene.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

using Numbers = Data<std::int64_t, 1>;
const BatchShapes<Numbers> kNumberShapes{{4}};

void push_number(Producer<Numbers>& out, std::int64_t number) {
  auto draft = out.next();
  if (!draft) return;
  for (auto& value : draft.array()) value = number;
  draft.push();
}

std::int64_t take_number(BatchQueue<Numbers>& queue) { return queue.next().value().view()[3]; }

/// Runs before main. If HELPER_AT_START is set, the process exits or hangs before it reaches its function.
const int kAtStart = [] {
  const char* action = std::getenv("HELPER_AT_START");
  if (action == nullptr) return 0;
  std::fprintf(stderr, "this start is in vain\n");
  if (std::string(action) == "hang") std::this_thread::sleep_for(1h);
  ::_exit(9);
}();

enum class End : int { throws, throws_error, throws_number, throws_speechless, kill, segfault, exit, quick_exit };

/// Producer 1 ends in this way after some batches. The others push until the queue ends them.
void end_so(Producer<Numbers>& out, End end, int batches) {
  for (int batch = 0; out.index() != 1 || batch < batches; ++batch) {
    auto draft = out.next();
    if (!draft) return;
    draft.array()[3] = out.index() * 100 + batch;
    draft.push();
  }
  const auto half = out.next();  // ends with a batch that it has not pushed
  std::fprintf(stderr, "these are my last words\n");
  switch (end) {
    case End::throws: throw std::runtime_error("no such file");
    case End::throws_error: throw Error(ErrorKind::system, "the disk is full", ENOSPC);
    case End::throws_number: throw 17;
    case End::throws_speechless: throw Speechless();
    case End::kill: ::raise(SIGKILL); break;
    case End::segfault: ::raise(SIGSEGV); break;
    case End::exit: std::exit(0);
    case End::quick_exit: std::_Exit(3);
  }
}

class ProducerEnd : public testing::TestWithParam<std::tuple<End, int, int>> {};
INSTANTIATE_TEST_SUITE_P(By, ProducerEnd,
                         testing::Combine(testing::Values(End::throws, End::throws_error, End::throws_number,
                                                          End::throws_speechless, End::kill, End::segfault, End::exit,
                                                          End::quick_exit),
                                          testing::Values(2, 4), testing::Values(0, 1, 5)));

TEST_P(ProducerEnd, ComesInItsTurnAndNamesIt) {
  const auto [end, producers, batches] = GetParam();
  Session session(workers(2));
  auto queue =
      session.producers(producers, end_so, kNumberShapes, {.capacity = 3 * producers, .name = "reader"}, end, batches);
  const auto pids = queue.producer_pids();
  const bool throws = end <= End::throws_speechless;
  const auto take_all = [&] {
    for (int batch = 0;; ++batch) {
      for (int producer = 0; producer < producers; ++producer) EXPECT_EQ(take_number(queue), producer * 100 + batch);
      if (batch > batches) ADD_FAILURE() << "more than it has pushed";
    }
  };
  const Error error = error_of(take_all);
  const std::string who = "producer 1 (pid " + std::to_string(pids[1]) + ") of 'reader'";
  EXPECT_EQ(error.failure().producer, 1);
  EXPECT_EQ(error.failure().pid, pids[1]);
  EXPECT_EQ(error.failure().call, "reader");
  EXPECT_EQ(error.rank(), -1);
  EXPECT_THAT(error.what(), HasSubstr(who + (throws ? " failed: " : " was lost while")));
  switch (end) {
    case End::throws:
      EXPECT_EQ(error.kind(), ErrorKind::function);
      EXPECT_EQ(std::string(error.what()), who + " failed: no such file");
      break;
    case End::throws_error:
      EXPECT_EQ(error.kind(), ErrorKind::system);
      EXPECT_EQ(error.native_code(), ENOSPC);
      break;
    case End::throws_number: EXPECT_THAT(error.what(), HasSubstr("not a std::exception")); break;
    case End::throws_speechless: EXPECT_THAT(error.what(), HasSubstr("test::Speechless without a text")); break;
    case End::kill: EXPECT_EQ(error.failure().cause, "killed by SIGKILL (Killed)"); break;
    case End::segfault: EXPECT_EQ(error.failure().cause, "killed by SIGSEGV (Segmentation fault)"); break;
    case End::exit: EXPECT_EQ(error.failure().cause, "exited with code 0"); break;
    case End::quick_exit: EXPECT_EQ(error.failure().cause, "exited with code 3"); break;
  }
  if (!throws) {
    EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
    EXPECT_THAT(error.what(), HasSubstr("[producer 1] these are my last words"));
  }
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid)) << "the queue is over";
  expect_usage([&] { queue.next(); }, {"the queue of 'reader' is over", error.what()});
  EXPECT_NO_THROW(queue.close());
  expect_usable(session);
  session.close();
}

TEST(Producer, ThatIsKilledReleasesTheProgramAtOnce) {
  Session session(workers(2));
  auto queue = session.producers(
      3,
      +[](Producer<Numbers>& out) {
        push_number(out, 1);
        std::this_thread::sleep_for(1h);
      },
      kNumberShapes);
  for (int i = 0; i < 3; ++i) take_number(queue);
  const int victim = queue.producer_pids()[2];  // the queue waits for the first producer meanwhile
  Clock::time_point killed;
  std::thread killer([&] {
    std::this_thread::sleep_for(100ms);
    killed = Clock::now();
    ::kill(victim, SIGKILL);
  });
  const Error error = error_of([&] { queue.next(); });
  killer.join();
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.failure().producer, 2);
  EXPECT_LT(error.failure().master_released - killed, kErrorLimit);
  EXPECT_LT(Clock::now() - killed, kErrorLimit);
  expect_usable(session);
  session.close();
}

TEST(Producer, ThatDoesNotStartIsSaidAtOnceOrAtTheDeadline) {
  ASSERT_EQ(kAtStart, 0);
  constexpr auto kLimit = kSlowdown * 3000ms;
  Session session({.processes = "1", .start_timeout = kLimit});
  const auto start_in_vain = [&](const std::string& action) {
    return error_of([&] {
      session.producers(2, +[](Producer<Numbers>&) {}, kNumberShapes,
                        {.name = "vain", .environment = {{"HELPER_AT_START", action}}});
    });
  };
  const Error death = start_in_vain("die");
  EXPECT_EQ(death.kind(), ErrorKind::worker_lost);
  EXPECT_THAT(death.what(), HasSubstr("of 'vain' was lost while starting: exited with code 9"));
  EXPECT_THAT(death.what(), HasSubstr("this start is in vain"));
  const Error late = start_in_vain("hang");
  EXPECT_EQ(late.kind(), ErrorKind::timeout);
  EXPECT_THAT(late.what(), HasSubstr("of 'vain' did not start within " + std::to_string(kLimit.count()) + " ms"));
  expect_usable(session);
  session.close();
}

TEST(Task, ThatDiesWhileStartingIsSaidToWhoWaits) {
  auto task = syncrun::task([] {}, {.name = "vain", .environment = {{"HELPER_AT_START", "die"}}});
  const Error error = error_of([&] { task.get(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_THAT(error.what(), HasSubstr("was lost before it had returned: exited with code 9"));
  EXPECT_THAT(error.what(), HasSubstr("[vain] this start is in vain"));
}

TEST(Producer, ThatHasEndedIsNotMissed) {
  Session session(workers(1));
  auto queue = session.producers(2,
                                 +[](Producer<Numbers>& out) {
                                   for (int i = 0; i < (out.index() == 0 ? 1 : 50); ++i) push_number(out, i);
                                 },
                                 kNumberShapes, {.capacity = 2});
  int count = 0;
  for ([[maybe_unused]] const auto& batch : queue) {
    std::this_thread::sleep_for(2ms);  // so the process of the first producer ends long before that of the second
    ++count;
  }
  EXPECT_EQ(count, 51);
  session.close();
}

TEST(Producer, ThatDoesNotPushIsAnErrorAtTheDeadlineAndCanBeAskedAgain) {
  Session session(workers(1));
  Board board(session);
  auto queue = session.producers(
      2,
      +[](Producer<Numbers>& out, std::int64_t go_place) {
        push_number(out, 5);
        while (out.index() == 1 && number_at(go_place).load() == 0) ::usleep(1000);
        push_number(out, 6);
      },
      kNumberShapes, {.name = "slow", .timeout = 150ms}, place_in_segment(board.data().view().data()));
  const auto ask_again = [&] {
    std::optional<Numbers> batch;
    EXPECT_TRUE(eventually([&] {
      try {
        batch = queue.next();
      } catch (const Error&) {
      }
      return batch.has_value();
    }));
    return batch.value().view()[0];
  };
  for (const int number : {5, 5, 6}) EXPECT_EQ(ask_again(), number);
  const Error error = error_of([&] { queue.next(); });
  EXPECT_EQ(error.kind(), ErrorKind::timeout);
  EXPECT_EQ(error.failure().producer, 1);
  EXPECT_THAT(error.what(), HasSubstr("no batch of 'slow' came within 150 ms: producer 1 (pid "));
  EXPECT_THAT(error.what(), HasSubstr("has pushed 1 and is in its function"));
  stop(queue.producer_pids()[1]);
  EXPECT_THAT(error_of([&] { queue.next(); }).what(), HasSubstr("stopped by SIGSTOP"));
  ::kill(queue.producer_pids()[1], SIGCONT);
  board.set(0, 1);
  EXPECT_EQ(ask_again(), 6);
  session.close();
}

// ---- early ends -----------------------------------------------------------------------------------------------

class EarlyEnd : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, EarlyEnd, testing::Values(1, 4), testing::PrintToStringParamName());

void push_for_ever(Producer<Numbers>& out) {
  while (auto draft = out.next()) draft.push();
}

bool all_wait(const std::vector<int>& pids) {
  return std::all_of(pids.begin(), pids.end(), [](int pid) { return falls_asleep(pid); });
}

TEST_P(EarlyEnd, FindsProducersThatWaitForPlace) {
  Session session(workers(1));
  for (const bool is_dropped : {false, true}) {
    std::optional queue =
        session.producers(GetParam(), push_for_ever, kNumberShapes, {.capacity = GetParam(), .grace = 60s});
    const auto pids = queue->producer_pids();
    static_cast<void>(take_number(*queue));
    ASSERT_TRUE(all_wait(pids));
    const auto start = Clock::now();
    if (is_dropped) queue.reset();
    else queue->close();
    EXPECT_LT(Clock::now() - start, 15s) << "nobody waits for the end of the grace";
    for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
    expect_usable(session);
  }
  session.close();
}

TEST_P(EarlyEnd, OfTheSessionFindsThemToo) {
  Session session(workers(1));
  auto queue = session.producers(GetParam(), push_for_ever, kNumberShapes);
  const auto batch = queue.next();
  const auto pids = queue.producer_pids();
  session.close();
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  expect_usage([&] { queue.next(); }, {"the session was closed"});
  expect_usage([&] { batch->view(); }, {"the session was closed"});
}

TEST_P(EarlyEnd, OfProducersThatDoNotWantToIsSaid) {
  Session session(workers(1));
  auto queue = session.producers(GetParam(),
                                 +[](Producer<Numbers>& out) {
                                   push_number(out, 1);
                                   std::this_thread::sleep_for(1h);
                                 },
                                 kNumberShapes, {.name = "deaf", .grace = 100ms});
  const auto pids = queue.producer_pids();
  static_cast<void>(take_number(queue));
  const Error error = error_of([&] { queue.close(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_THAT(error.what(), HasSubstr("producer 0 (pid " + std::to_string(pids[0]) +
                                      ") of 'deaf' was lost while closing: "
                                      "did not end within 100 ms and was killed"));
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  expect_usable(session);
  session.close();
}

/// Both end the producers. The thread sanitizer sees whether they do so one after the other.
TEST(EarlyEnd, OfTheSessionMayComeWhileAnotherThreadDropsTheHandle) {
  for (int round = 0; round < 5; ++round) {
    Session session(workers(1));
    std::optional queue = session.producers(3, push_for_ever, kNumberShapes);
    const auto pids = queue->producer_pids();
    std::thread dropper([&] { queue.reset(); });
    session.close();
    dropper.join();
    for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  }
}

TEST(EarlyEnd, OfAWorkerEndsTheProducersWithTheSession) {
  Session session(workers(2));
  auto queue = session.producers(2, push_for_ever, kNumberShapes);
  const auto pids = queue.producer_pids();
  const auto f = session.function([](CpuWorker& worker) {
    if (worker.rank() == 1) ::raise(SIGKILL);
  });
  EXPECT_EQ(error_of([&] { f(); }).kind(), ErrorKind::worker_lost);
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  EXPECT_EQ(error_of([&] { queue.next(); }).kind(), ErrorKind::usage);
}

/// A worker dies while the program waits for a batch. The wait ends with the error of the loss.
TEST(Queue, SeesALostWorkerWhileItWaits) {
  Session session(workers(2));
  auto queue = session.producers(1,
                                 +[](Producer<Numbers>& out) {
                                   push_number(out, 1);
                                   std::this_thread::sleep_for(1h);
                                 },
                                 kNumberShapes, {.capacity = 1});
  const auto f = session.function([](CpuWorker& worker, Scattered<const std::int64_t, 1>) {
    std::this_thread::sleep_for(50ms);
    if (worker.rank() == 0) ::raise(SIGKILL);
  });
  auto future = f.async(*queue.next());
  const Error error = error_of([&] { queue.next(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_EQ(error_of([&] { future.get(); }).kind(), ErrorKind::worker_lost);
}

// ---- the job's end --------------------------------------------------------------------------------------------

class HelpersEnd : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(In, HelpersEnd, testing::Values("helpers-busy", "helpers-waiting"));

/// 1 master, 2 workers, 3 producers and 2 tasks, and one child for each of the producers and tasks.
constexpr std::size_t kProcesses = 1 + 2 + 2 * (3 + 2);

std::vector<pid_t> helpers_of(const CommandRun& run) {
  if (!run.prints("ready") || !run.prints("\n")) throw std::runtime_error("not ready: " + run.errors());
  std::istringstream line(run.output().substr(run.output().find("ready") + 5));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; line >> pid;) pids.push_back(pid);
  return pids;
}

TEST_P(HelpersEnd, WithTheMastersDeath) {
  for (const bool is_one_stopped : {false, true}) {
    CommandRun run({"--program", GetParam()}, {}, own_binary());
    const auto pids = helpers_of(run);
    ASSERT_EQ(pids.size(), 7U);
    ASSERT_TRUE(eventually([&] { return run.processes().size() == kProcesses; })) << run.processes().size();
    if (is_one_stopped) {
      stop(pids[2]);
      stop(pids.back());
    }
    const auto killed = Clock::now();
    run.send(SIGKILL);
    EXPECT_TRUE(run.nothing_remains());
    EXPECT_LT(Clock::now() - killed, 4500ms);
  }
}

TEST_P(HelpersEnd, WithSyncruns) {
  CommandRun run({"-n", "2", own_binary(), "--program", GetParam()});
  ASSERT_EQ(helpers_of(run).size(), 7U);
  const auto killed = Clock::now();
  run.send(SIGKILL);
  EXPECT_TRUE(run.nothing_remains());
  EXPECT_LT(Clock::now() - killed, 4500ms);
}

TEST_P(HelpersEnd, WithASignalToTheJob) {
  CommandRun run({"-n", "2", own_binary(), "--program", GetParam()});
  ASSERT_EQ(helpers_of(run).size(), 7U);
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
  EXPECT_TRUE(run.nothing_remains());
}

}  // namespace
}  // namespace syncrun::test
