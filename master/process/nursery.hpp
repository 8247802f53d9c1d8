#pragma once

// Starts, watches and reaps child processes: the workers of a session, the producers of a queue, or a task. One thread
// does all of this. It spawns the children, which the kernel kills when this thread ends. It waits for their deaths and
// their output, and it reaps them. The children are passive. The watcher knows what they are for
// (master/process/child_watcher.hpp). The thread does not wait for a slow reader of the output
// (master/process/nonblocking_writer.hpp), or for a debugger that holds a zombie. It writes log files with blocking
// writes, so a slow disk can delay it.
//
//   not started --spawn--> running --exit, signal--> dead (a zombie: its group is killed) --waitid--> reaped
//
// A child that crashes says so over its socket before it dies, and waits until its stack was taken
// (master/process/crash_stacks.hpp).
//
// A second sign of death comes earlier. For each child, one small thread waits for the child's robust mutex
// (common/os/sign_of_life.hpp). Both signs are reported to the watcher. They come late if the kernel first writes a core file,
// so the thread also looks for children whose core file is being written.
//
// The program may close the descriptors that the nursery needs. The thread checks for this a few times a second. If it
// has happened, the thread kills the children, reaps them by their pids, and no longer uses any of these descriptors.

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/mutex.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/log.hpp"
#include "master/process/child_output.hpp"
#include "master/process/child_watcher.hpp"
#include "master/process/crash_stacks.hpp"
#include "master/process/nonblocking_writer.hpp"
#include "master/process/spawn.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::process {

class Nursery {
 public:
  /// Refers to `watcher` and `supervisor` as long as it lives. `grace`: how long the destructor may wait for the
  /// children to end, at least.
  Nursery(ChildWatcher& watcher, os::Milliseconds grace, const protocol::SupervisorLink& supervisor);
  /// Kills the children that are left and reaps them. Passes on their last output if it is being read. Takes a limited
  /// time, except if a fork or exec does not return.
  ~Nursery();
  Nursery(const Nursery&) = delete;
  Nursery& operator=(const Nursery&) = delete;

  /// Starts all children. Throws Error (system) if one cannot be started, or if the program has closed our descriptors.
  /// Throws Error (timeout) if it takes longer than `limit`. `limit_name` is the option that sets the limit.
  void spawn_all(os::Milliseconds limit, std::string_view limit_name);
  /// From now on, a child's sign of life shows its death. Called when all children hold theirs.
  void watch_lives();
  /// Stops watching the sign of life of a child that has ended, and waits until this has taken effect. The sign of life
  /// can then be initialised again.
  void unwatch_life(int child);
  /// Starts a new child in the place of one that has ended and whose sign of life is no longer watched. Throws the same
  /// errors as spawn_all().
  void replace(int child, os::Milliseconds limit, std::string_view limit_name);
  void watch_life(int child);
  /// From now on, a child that ends does not count as a loss.
  void expect_ends() noexcept { expects_ends_.store(true); }

  /// The least time that the destructor gives the children to end.
  os::Milliseconds grace() const noexcept { return grace_; }
  /// Returns the wait status of a child that has been reaped. Waits for at most `limit`, which may be zero. Time in
  /// which this process is stopped does not count.
  std::optional<int> await_end(int child, os::Milliseconds limit);
  bool await_all_ends(os::Milliseconds limit);
  /// Sends SIGKILL to the process groups of all children that are left, or of one child.
  void kill_all() noexcept;
  void kill(int child) noexcept;
  /// Sets the oom_score_adj of all children that are left (see oom_score_after). A refusal is ignored.
  void set_oom_score(const std::string& score);

  /// How long this process has not been stopped since the thread of the nursery began (see AwakeTime).
  os::Clock::duration awake_time(os::Clock::time_point now) noexcept { return awake_.until(now); }

  int size() const noexcept { return static_cast<int>(notes_.size()); }
  int pid(int child) const noexcept;
  /// The signal that has stopped the child, or 0.
  int stop_signal(int child) const;
  /// The last lines of the child's standard error.
  std::vector<std::string> last_stderr(int child);
  /// See CrashStacks::of.
  NativeStack crash_stack(int child) const { return crashes_.of(pid(child)); }
  /// True if the program has closed descriptors of the nursery. The nursery then kills the children and knows nothing
  /// more about them. Their deaths are a consequence of this.
  bool has_lost_descriptors() const;
  /// The error to throw in this case.
  Error lost_descriptors() const;

 private:
  /// The things to poll for each child. Their entries in polled_ begin at kFirstChild and are in this order.
  enum class Source : std::uint8_t { crash, death, output, error };
  static constexpr std::size_t kSources = 4;
  static constexpr std::size_t kOutputEntry = 0;
  static constexpr std::size_t kErrorEntry = 1;
  static constexpr std::size_t kWakeEntry = 2;
  static constexpr std::size_t kFirstChild = 3;
  struct Child {
    int pid = -1;
    os::KeptDescriptor pidfd;   // without one, the thread asks again and again whether the child has ended
    os::KeptDescriptor socket;  // its other end reads end of file when this process dies, and reports a crash
    std::unique_ptr<ChildLog> log = std::make_unique<ChildLog>();
    std::unique_ptr<ChildOutput> output;
    std::unique_ptr<ChildOutput> error;
    std::optional<int> wait_status;
  };
  /// What only the nursery's thread needs to know of a child.
  struct Notes {
    bool pauses_output = false;  // it is not polled, because its writer is full
    bool pauses_error = false;
    bool cannot_report = false;  // its end of the socket is closed
    bool is_zombie = false;      // it is dead, but cannot be reaped yet
    bool writes_core = false;
    bool lacks_log_lines = false;
    bool is_successor = false;
  };

  // All of these run in the nursery's thread.
  void run() noexcept;
  /// Needs no lock: only this thread changes the children. It holds the lock while it does, because others read them.
  const std::vector<Child>& own_children() const noexcept SYNCRUN_NO_THREAD_SAFETY_ANALYSIS { return children_; }
  const Child& own_child(int index) const noexcept { return own_children()[static_cast<std::size_t>(index)]; }
  Notes& notes_of(int index) noexcept { return notes_[static_cast<std::size_t>(index)]; }
  void start_children();
  void restart_children();
  void clear_place(int index);
  void await_spawned(os::Milliseconds limit, std::string_view limit_name);
  void spawn_child(int index);
  void loop();
  os::Milliseconds longest_sleep() noexcept;
  void choose_polled() noexcept;
  int number_to_poll(const ChildOutput* reader, bool& is_paused) const noexcept;
  bool await_events(os::Milliseconds limit, std::size_t entries);
  int poll_one_by_one(std::size_t entries) noexcept;
  void on_event(int index, Source source);
  void read_some(ChildOutput& reader);
  void read_report(int index);
  /// Adds a line of Syncrun's own to standard error.
  void say(LogLevel level, const std::string& text);
  bool has_all_descriptors() const;
  void give_descriptors_up();
  void finish(int index);
  static void read_last_output(ChildOutput& reader);
  void reap(int index);
  static bool has_pidfd(const Child& child) noexcept { return child.pidfd.is_open() || child.pid < 0; }
  static bool has_ended_unseen(const Child& child) noexcept;
  void look_for_core_dumps();
  void report_lost_log_lines();
  void flush_the_rest();

  void ring() noexcept;
  void raise_loss(int child) noexcept;
  void kill_group(const Child& child) noexcept SYNCRUN_REQUIRES(mutex_);
  bool have_all_ended() const SYNCRUN_REQUIRES(mutex_);
  bool await_change(os::UniqueLock& lock, os::Patience& patience) SYNCRUN_REQUIRES(mutex_);

  ChildWatcher& watcher_;
  os::Milliseconds grace_;
  const protocol::SupervisorLink& supervisor_;

  // Held only for as long as it takes to read or set a value.
  mutable os::Mutex mutex_;
  std::condition_variable changed_;
  std::vector<Child> children_ SYNCRUN_GUARDED_BY(mutex_);
  bool spawned_ SYNCRUN_GUARDED_BY(mutex_) = false;
  std::exception_ptr spawn_error_ SYNCRUN_GUARDED_BY(mutex_);
  std::optional<int> wanted_ SYNCRUN_GUARDED_BY(mutex_);  // the child to start again
  std::atomic<bool> has_lost_descriptors_{false};         // set under mutex_, together with wanted_ and spawned_

  std::atomic<bool> expects_ends_{false};
  std::atomic<bool> closes_{false};  // no child is started any more
  std::atomic<bool> stops_{false};   // all threads must end
  os::AwakeTime awake_;
  NonblockingWriter output_;
  NonblockingWriter error_;
  NoTarget nowhere_;                      // for children that are not shown
  JsonLogTarget error_with_log_{error_};  // if the children's log lines are JSON
  CrashStacks crashes_;
  std::vector<Notes> notes_;  // in the order of children_
  std::vector<pollfd> polled_;
  os::Clock::time_point next_check_{};  // when the descriptors are checked next
  // A socket, because the inode of a socket shows whether the descriptor is still ours. All eventfds share one inode.
  os::KeptDescriptor wake_;
  os::KeptDescriptor wake_other_end_;
  std::thread thread_;
  struct LifeWatcher {
    std::thread thread;
    std::atomic<bool> stops{false};
  };
  std::vector<LifeWatcher> life_watchers_;
};

}  // namespace syncrun::detail::master::process
