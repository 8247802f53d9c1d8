#pragma once

// What the fault tests share: waiting without sleeping fixed times, looking at processes, a board that master and workers
// write on while a call runs, and what a failure must look like.

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

#include "tests/launcher/command_run.hpp"

namespace syncrun::test {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// How long a failure may keep the master, from the death to its release, on a machine that others use too.
inline constexpr auto kReleaseLimit = 250ms;
/// How long until the exception is there, its cause and the end of all workers included.
inline constexpr auto kErrorLimit = 2000ms;

bool is_alive(pid_t pid);
/// Sends SIGSTOP and waits until the process stands still.
void stop(pid_t pid);
/// Processes, apart from this one, that were started with this text in their environment.
std::vector<pid_t> processes_with(const std::string& environment_text);
/// Waits until a process of the session sleeps: it has nothing to do.
bool falls_asleep(pid_t pid);

/// fork(), once the other threads of this process wait for something: unlike the C library's, the address sanitizer's
/// allocator does not survive in the child if one of them was in it.
pid_t fork_when_quiet();

/// CPU workers in the number wanted, with short deadlines.
SessionOptions workers(int world_size);

/// Fields in shared memory that both sides see at once. (A call reads its inputs only, so this goes behind the library's
/// back, which is what makes it fit to look at a call while it runs.)
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
  /// Where whoever is about to die writes the time.
  static constexpr int kTimeOfDeath = kFields - 1;

 private:
  std::atomic_ref<std::int64_t> at(int index) const { return std::atomic_ref(fields_[index]); }
  Data<std::int64_t, 1> data_;
  std::int64_t* fields_;  // readable after the session's end too
};

std::int64_t now_ns();

/// Runs it and returns what it threw; fails the test if that was nothing, or no Error.
Error error_of(const std::function<void()>& action);

/// What the error must say about a worker that was lost. Empty: is not looked at.
struct Loss {
  int rank;
  std::string phase;
  std::string cause;
  std::string call;
};
/// Holds the error against it: kind, rank, pid, device, call, phase and cause, also in the message; and that it came in
/// time after the death.
void expect_loss(const Error& error, const Loss& loss, const std::vector<int>& pids, Clock::time_point death);

/// Every use of the session is a usage error that says what ended it; what it made is over too.
void expect_over(Session& session, const Error& cause);
/// A call with outputs, a collective and shared data gives the right results.
void expect_usable(Session& session);
/// Fails unless it is Error (usage) and says all of these.
void expect_usage(const std::function<void()>& action, const std::vector<std::string>& words);

}  // namespace syncrun::test
