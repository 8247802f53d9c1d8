#pragma once

// Functions that the fault tests share: waiting without fixed sleeps, looking at processes, a board that the master and
// the workers write to while a call runs, and checks of failures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "tests/support/command_run.hpp"
#include "tests/support/slowdown.hpp"

namespace syncrun::test {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// The longest time from a death, or from the end of a limit, until the exception arrives, even if other programs use the
/// machine. bench_kill measures how long it takes.
inline constexpr auto kErrorLimit = kSlowdown * 5000ms;

bool is_alive(pid_t pid);
/// Sends SIGSTOP and waits until the process has stopped.
void stop(pid_t pid);
/// All processes except this one that were started with this text as an entry of their environment.
std::vector<pid_t> processes_with(const std::string& environment_text);
/// Waits until the process sleeps, that is, has nothing to do. Returns false if it does not within 20 s.
bool falls_asleep(pid_t pid);

/// Calls fork() when no other thread of this process runs. With the address sanitizer, the child could not use the
/// allocator if another thread was inside it at the fork. The allocator of the C library has no such limit.
pid_t fork_when_quiet();

/// Options for this number of CPU workers, with limits of 20 s for calls and for the start.
SessionOptions workers(int world_size, OnWorkerLost on_lost = OnWorkerLost::end);

/// A test that opens a session with as many workers as its parameter says.
class WithWorkers : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }
  Session session{workers(GetParam())};
};
#define INSTANTIATE_WITH_WORKERS(suite) \
  INSTANTIATE_TEST_SUITE_P(Workers, suite, testing::Values(1, 3), testing::PrintToStringParamName())

/// Fields in shared memory that the master and the workers read and write at the same time. For the library, the board
/// is an input, which a call only reads. The tests write to it behind the library's back, so they can observe a call
/// while it runs.
using BoardView = Broadcast<const std::int64_t, 1>;
std::atomic_ref<std::int64_t> field(const BoardView& board, int index);

class Board {
 public:
  explicit Board(Session& session)
      : data_(session.data<std::int64_t, 1>({kFields})), fields_(const_cast<std::int64_t*>(data_.view().data())) {}
  const Data<std::int64_t, 1>& data() const { return data_; }
  void set(int index, std::int64_t value) { at(index).store(value); }
  std::int64_t get(int index) const { return at(index).load(); }
  Clock::time_point time_of_death() const { return Clock::time_point(Clock::duration(get(kTimeOfDeath))); }
  bool reaches(int index, std::int64_t value) const {
    return eventually([&] { return get(index) >= value; });
  }

  static constexpr int kFields = 64;
  /// The field to which a process writes the time before it dies.
  static constexpr int kTimeOfDeath = kFields - 1;

 private:
  std::atomic_ref<std::int64_t> at(int index) const { return std::atomic_ref(fields_[index]); }
  Data<std::int64_t, 1> data_;
  std::int64_t* fields_;  // also readable after the end of the session
};

std::int64_t now_ns();

/// Runs the action and returns the Error that it throws. Fails the test if it throws nothing or another exception.
Error error_of(const std::function<void()>& action);

/// What the error must say about a lost worker. The failure must have exactly these texts, also if they are empty.
struct Loss {
  int rank;
  std::string phase;
  std::string cause;
  std::string call;
};
/// Checks that the error has the rank, pid, device, call, phase and cause of the loss, also in its message. Also checks
/// that it came within the limits after the death, and that no worker is left.
void expect_loss(const Error& error, const Loss& loss, const std::vector<int>& pids, Clock::time_point death);

/// Checks that every use of the session throws a usage error, and that this error says what ended the session.
void expect_over(Session& session, const Error& cause);
/// Checks that a call with outputs, a collective and shared variables give the right results.
void expect_usable(Session& session);
/// Fails the test unless the action throws an Error of this kind with all of these words in its message. Returns it.
Error expect_error(const std::function<void()>& action, ErrorKind kind, const std::vector<std::string>& words = {});
void expect_usage(const std::function<void()>& action, const std::vector<std::string>& words);

}  // namespace syncrun::test
