#pragma once

// The control block of a running session, as another process sees it. The job writes it at the same time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/protocol/control_block.hpp"
#include "master/inspect/running_job.hpp"

namespace syncrun::detail::master::inspect {

/// What a rank is doing.
struct RankView {
  int rank = 0;
  int node = 0;
  bool is_here = false;  ///< On this node. Other nodes report every 0.25 s while they are busy.
  int pid = 0;           ///< 0 if it has not begun.
  std::string device;
  std::string phase;
  std::string call;  ///< The name of its call, or what else it does. Empty if it is idle.
  std::uint64_t calls = 0;
  std::uint64_t rows = 0;
  std::uint64_t memory_bytes = 0;  ///< Resident, with the shared memory that it has touched.
};

class SessionView {
 public:
  /// Throws Error (system) if the memory cannot be read, and Error (usage) if it is not laid out as this program expects.
  explicit SessionView(const RunningJob& job);
  ~SessionView();
  SessionView(const SessionView&) = delete;
  SessionView& operator=(const SessionView&) = delete;

  const protocol::NodePlace& place() const noexcept { return control_.place(); }
  int world_size() const noexcept { return control_.world_size(); }
  /// Only `syncrun stacks` writes, and only StacksRequest.
  protocol::StacksRequest& stacks_request() const noexcept { return control_.header().stacks; }
  /// False once the session has ended, or its master.
  bool is_running() const;

  /// All ranks in order. The first `syncrun` of a job on several nodes sees those of all nodes, and each other one sees
  /// those of its own node only.
  std::vector<RankView> look();
  /// Whether each rank that look() returns works, in place of waiting for a command or for other ranks. Reads one word per
  /// rank, so it may be called often.
  std::vector<bool> are_busy() const;

 private:
  bool is_shown(int rank) const noexcept { return place().node == 0 || place().has(rank); }
  std::string call_of(int rank, std::uint64_t command) const;
  std::string name_of_function(std::uint64_t offset) const;
  const std::string& device_of(int rank, int pid);

  std::string path_;  // of the descriptor of the master
  os::FileDescriptor memory_;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  protocol::ControlBlock control_;
  std::map<int, std::pair<int, std::string>> devices_;  // by rank: the pid, and its device
};

}  // namespace syncrun::detail::master::inspect
