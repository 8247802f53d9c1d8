#pragma once

// Where child processes are born, watched and buried: the workers of a session, the producers of a queue, a task. One
// thread owns all of it: it spawns the children (they are killed when it ends), waits for their deaths and their output,
// and reaps them. The children are passive, and who they are is the brood's to say (launcher/brood.hpp). Nothing that
// this thread does waits for anybody else: not for who reads the output (launcher/outlet.hpp), not for a debugger that
// holds a zombie.
//
//   not started --spawn--> running --exit, signal--> dead (a zombie: its group is killed) --waitid--> reaped
//
// A second sign of death comes earlier, from one small thread per child that waits for the child's robust mutex
// (common/life.hpp). Both tell the brood.
//
// The program may close the descriptors that all this rests on. The thread looks for that a few times a second: then it
// kills the children, reaps them by their pids, and uses none of the numbers any more.

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/file_descriptor.hpp"
#include "common/supervisor_link.hpp"
#include "common/wait.hpp"
#include "launcher/brood.hpp"
#include "launcher/child_output.hpp"
#include "launcher/outlet.hpp"
#include "launcher/spawn.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

class Nursery {
 public:
  /// Refers to both as long as it lives. `grace`: how long its end may wait for the children's, at least.
  Nursery(Brood& brood, Milliseconds grace, const SupervisorLink& supervisor);
  /// Kills what is left and reaps it, and passes their last output on if somebody reads it. Bounded, but for a fork or
  /// exec that does not return.
  ~Nursery();
  Nursery(const Nursery&) = delete;
  Nursery& operator=(const Nursery&) = delete;

  /// Starts all children. Throws Error (system) if one cannot be started, or the program has closed our descriptors; Error
  /// (timeout) if that takes longer than
  /// `limit`, which `limit_name` sets.
  void spawn_all(Milliseconds limit, std::string_view limit_name);
  /// Watches for deaths by the children's signs of life, from when all of them hold theirs.
  void watch_lives();
  /// Waits until nobody watches the sign of life of a child that has ended any more, so that it can be made anew.
  void unwatch_life(int child);
  /// Starts a child anew in the place of one that has ended and whose life nobody watches. Throws as spawn_all does.
  void replace(int child, Milliseconds limit, std::string_view limit_name);
  void watch_life(int child);
  /// From now on a child that ends is not a loss.
  void expect_ends() noexcept { expects_ends_.store(true); }

  /// How a child ended, once it was reaped; waits for at most `limit` (zero: only looks), time in which this process
  /// was stopped not counted.
  std::optional<int> await_end(int child, Milliseconds limit);
  bool await_all_ends(Milliseconds limit);
  /// SIGKILL for the process groups of all children that are left, or of one.
  void kill_all() noexcept;
  void kill(int child) noexcept;

  /// For how long this process has not been stopped since the nursery's thread began (see AwakeTime).
  Clock::duration awake_time(Clock::time_point now) noexcept { return awake_.until(now); }

  int size() const noexcept { return static_cast<int>(children_.size()); }
  int pid(int child) const noexcept { return children_[static_cast<std::size_t>(child)].pid; }
  /// The signal that a child stands still by, or 0.
  int stop_signal(int child) const;
  /// The last lines of its standard error.
  std::vector<std::string> last_stderr(int child);
  /// Whether the program has closed descriptors of ours: nothing is known of the children any more, and they are killed.
  /// What they have died of is then a consequence.
  bool has_lost_descriptors() const;
  /// The error that says so.
  Error lost_descriptors() const;

 private:
  /// What there is to poll of a child; entries of polled_ from kFirstChild on, in this order.
  enum class Source : std::uint8_t { death, output, error };
  static constexpr std::size_t kSources = 3;
  static constexpr std::size_t kOutputEntry = 0;
  static constexpr std::size_t kErrorEntry = 1;
  static constexpr std::size_t kWakeEntry = 2;
  static constexpr std::size_t kFirstChild = 3;
  struct Stream {
    std::unique_ptr<ChildOutput> reader;
    bool is_paused = false;  // not polled, since its outlet is full
  };
  struct Child {
    int pid = -1;
    KeptDescriptor pidfd;
    KeptDescriptor socket;  // its other end sees end of file when this process dies
    KeptDescriptor log;
    Stream output;
    Stream error;
    bool is_zombie = false;  // dead, and not yet ours to reap
    bool is_successor = false;
    std::optional<int> wait_status;
  };

  // All of these run in the nursery's thread.
  void run() noexcept;
  void give_birth();
  void give_births_again();
  void clear_place(Child& child);
  void await_spawned(Milliseconds limit, std::string_view limit_name);
  void spawn_child(int index);
  void loop();
  Milliseconds longest_sleep() const;
  void choose_polled() noexcept;
  int number_to_poll(Stream& stream) const noexcept;
  bool await_events(Milliseconds limit, std::size_t entries);
  int poll_one_by_one(std::size_t entries) noexcept;
  void on_event(int index, Source source);
  void read_some(Stream& stream);
  bool has_all_descriptors() const;
  void give_descriptors_up();
  void bury(int index);
  void read_last_words(Stream& stream);
  void reap(int index);
  void flush_the_rest();

  void ring() noexcept;
  void raise_loss(int child) noexcept;
  static void kill_group(const Child& child) noexcept;
  template <class Holds>
  bool await_change(std::unique_lock<std::mutex>& lock, Patience patience, Holds holds);

  Brood& brood_;
  Milliseconds grace_;
  const SupervisorLink& supervisor_;

  // Guards what other threads see of children_ (all but is_zombie) where it changes, and the four below;
  // held only for as long as it takes to look or to set.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool spawned_ = false;
  std::exception_ptr spawn_error_;
  std::optional<int> wanted_;  // a child to start anew
  bool has_lost_descriptors_ = false;

  std::atomic<bool> expects_ends_{false};
  std::atomic<bool> closes_{false};  // no more births
  std::atomic<bool> stops_{false};   // all threads are to end
  AwakeTime awake_;
  Outlet output_;
  Outlet error_;
  std::vector<Child> children_;
  std::vector<pollfd> polled_;
  Clock::time_point next_check_{};  // of the descriptors
  KeptDescriptor wake_;             // a socket, since two of those can be told apart; two eventfds cannot
  KeptDescriptor wake_other_end_;
  std::thread thread_;
  struct LifeWatcher {
    std::thread thread;
    std::atomic<bool> stops{false};
  };
  std::vector<LifeWatcher> life_watchers_;
};

}  // namespace syncrun::detail
