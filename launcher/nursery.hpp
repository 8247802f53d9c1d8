#pragma once

// Where workers are born, watched and buried. One thread owns all of it: it spawns the workers (they are killed when it
// ends), waits for their deaths and their output, and reaps them. The workers are passive.
//
//   not started --spawn--> running --exit, signal--> dead (a zombie: its group is killed) --waitid--> reaped
//
// A second sign of death comes earlier, from one small thread per worker that waits for the worker's robust mutex
// (common/life.hpp). Both raise `lost` in the control block and ring every bell.

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/control_block.hpp"
#include "common/file_descriptor.hpp"
#include "common/segment.hpp"
#include "common/supervisor_link.hpp"
#include "launcher/settings.hpp"
#include "launcher/spawn.hpp"
#include "launcher/worker_output.hpp"

namespace syncrun::detail {

class Nursery {
 public:
  /// Refers to all of them as long as it lives.
  Nursery(const Settings& settings, const Segment& segment, ControlBlock control, const SupervisorLink& supervisor);
  /// Kills what is left and reaps it.
  ~Nursery();
  Nursery(const Nursery&) = delete;
  Nursery& operator=(const Nursery&) = delete;

  /// Starts all workers. Throws Error (system) if one cannot be started.
  void spawn_all();
  /// Watches for deaths by the workers' signs of life, from when all of them hold theirs.
  void watch_lives();
  /// From now on a worker that ends is not a loss.
  void expect_ends() noexcept { expects_ends_.store(true); }

  /// How a worker ended, once it was reaped; waits for at most `limit`.
  std::optional<int> await_end(int rank, Milliseconds limit);
  bool await_all_ends(Milliseconds limit);
  /// SIGKILL for the process groups of all workers that are left.
  void kill_all() noexcept;

  int pid(int rank) const noexcept { return workers_[static_cast<std::size_t>(rank)].pid; }
  /// The signal that a worker stands still by, or 0.
  int stop_signal(int rank) const;
  /// The last lines of its standard error.
  std::vector<std::string> last_stderr(int rank);

 private:
  struct Worker {
    int pid = -1;
    FileDescriptor pidfd;
    FileDescriptor socket;  // its other end sees end of file when this process dies
    FileDescriptor log;
    std::unique_ptr<WorkerOutput> output;
    std::unique_ptr<WorkerOutput> error;
    std::optional<int> wait_status;
  };

  void run() noexcept;
  void spawn_worker(int rank);
  SpawnRequest request_for(int rank, int socket, int output, int error) const;
  void watch(int fd, std::uint64_t tag);
  void loop();
  void on_event(std::uint64_t tag);
  void bury(int rank);
  void raise_loss(int rank) noexcept;

  const Settings& settings_;
  const Segment& segment_;
  ControlBlock control_;
  const SupervisorLink& supervisor_;

  mutable std::mutex mutex_;  // guards wait_status, tails and the fields below
  std::condition_variable changed_;
  bool spawned_ = false;
  bool stops_ = false;
  std::exception_ptr spawn_error_;

  std::atomic<bool> expects_ends_{false};
  std::vector<Worker> workers_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::thread thread_;
  std::vector<std::thread> life_watchers_;
};

}  // namespace syncrun::detail
