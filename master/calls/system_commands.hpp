#pragma once

// Commands that are not function calls: transfers, collectives, constructions. This interface is what the code of these
// features sees of the session. The code can run a command and use the memory in which the arguments travel. It cannot
// open, close or end anything.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "master/calls/command_table.hpp"
#include "master/devices/comm_table.hpp"
#include "master/devices/rank_devices.hpp"
#include "master/pool/segment_heap.hpp"
#include "master/records/settled.hpp"

namespace syncrun::detail::master::calls {

/// CommandDispatcher lets the workers run the commands. The tests have an implementation that plays the part of the workers
/// (tests/master/calls/played_commands.hpp).
class SystemCommands {
 public:
  using Fill = std::function<void(protocol::CommandHead&, InFlight&)>;

  virtual ~SystemCommands() = default;
  SystemCommands(const SystemCommands&) = delete;
  SystemCommands& operator=(const SystemCommands&) = delete;

  /// Fills in a command for the ranks of the room, publishes it without a wait, and waits for it. Each rank runs it after
  /// the commands that the rank has got before. Throws the error of the command, and Error (system) if the room was made
  /// before a wait. `what` and `subject` name the command in messages: "all_reduce", "weights".
  virtual void run_system(const records::Room& room, const char* what, const std::string& subject,
                          const Fill& fill) = 0;
  /// As run_system(), but does not wait. Returns the id of the command. The temporaries are freed once the command has
  /// been collected. A failure surfaces when the session waits for everything, or is closed.
  virtual std::uint64_t launch_system(const records::Room& room, const char* what, const std::string& subject,
                                      const Fill& fill) = 0;

  // Waits. After each of them, everything that is Known must be checked again.

  /// Waits until no call in flight uses these records, and there is room for one more command of these ranks.
  records::Room settle(const protocol::RankSet& ranks, std::span<const void* const> records = {});
  /// Settles, and then does `change(room)`, which checks and publishes. If there is not enough memory for what it
  /// publishes, waits for everything in flight, because workers may be about to free what the program no longer needs, and
  /// tries once more.
  void when_settled(const protocol::RankSet& ranks, std::span<const void* const> records,
                    const std::function<void(const records::Room&)>& change);
  /// For what is only read: there was no wait since now.
  records::Settled settled() const noexcept { return records::Settled(waits_); }
  const records::Waits& waits_so_far() const noexcept { return waits_; }
  /// How often lost workers have been replaced. One replacement may replace several workers.
  std::uint64_t replacements() const noexcept { return replacements_.load(std::memory_order_relaxed); }
  /// Makes room for one more command of these ranks: if a rank has kInboxSize commands that have not been collected,
  /// waits for the oldest of them. Returns whether it waited. Errors of calls go to their results. Throws if the session
  /// ends.
  virtual bool make_room(const protocol::RankSet& ranks) = 0;
  /// Waits for a command, and before it for those on which it depends, and hands out their results. Does nothing if the
  /// command is not in flight. Errors of calls go to their results. Throws if the session ends.
  virtual void await(std::uint64_t id) = 0;
  /// Waits for everything in flight. Errors of calls go to their results. Throws if the session ends.
  virtual void drain_all() = 0;
  /// Waits for the calls in flight that use this: a Data, a variable or a replicated object. Errors of calls go to their
  /// results. Throws if the session ends.
  virtual void await_users(const void* record) = 0;
  /// The next command reads or overwrites what these calls wrote, so it fails if one of them fails. Returns a failure
  /// among them that the program has not seen, or null.
  std::exception_ptr depend_on(const records::WriteLog& writes);
  /// The next command writes this on its ranks, so it waits for other ranks that copy from them.
  void wait_for_copies(const records::WriteLog& writes);
  /// For commands that are not calls, which may write: as the two above, but throws the failure. Also throws a failure
  /// on the ranks `sources`, from which the command copies.
  void follow(const records::WriteLog& writes, const protocol::RankSet& sources = {});
  /// False once the session is over, and in a fork of the program. In these cases this process must not free the
  /// memory.
  virtual bool is_open() const noexcept = 0;

  const os::Segment& segment() const noexcept { return memory_.segment; }
  os::SharedHeap& heap() const noexcept { return memory_.heap; }
  const pool::SegmentHeap& memory() const noexcept { return memory_; }
  const devices::RankDevices& devices() const noexcept { return devices_; }
  /// How the ranks of commands communicate.
  devices::CommTable& comms() noexcept { return comms_; }
  int world_size() const noexcept { return devices_.world_size(); }
  const protocol::RankSet& all_ranks() const noexcept { return calls_.all_ranks(); }
  CommandTable& calls() const noexcept { return calls_; }

  /// Allocates memory of the heap. Memory that GPUs have pinned is given back to the system only if there is no other,
  /// which is a wait. Throws Error (system).
  std::uint64_t allocate(std::size_t bytes, os::SharedHeap::Contents contents, std::string_view what);
  /// Gives all free memory of the heap back to the system, if there are CUDA devices. Memory that GPUs have pinned
  /// stays pinned when it is freed, so the workers first unpin it.
  void give_back_pages();

 protected:
  records::Waits& waits() noexcept { return waits_; }
  /// The object refers to all of them for as long as it lives.
  SystemCommands(pool::SegmentHeap memory, CommandTable& calls, const devices::RankDevices& devices)
      : memory_(memory),
        calls_(calls),
        devices_(devices),
        replacements_(memory.segment.at<const protocol::ControlHeader>(0)->replacements),
        comms_(devices) {}

 private:
  static std::exception_ptr collected_failure(const records::WriteLog& writes, const protocol::RankSet& ranks);
  std::exception_ptr known_failure(const records::WriteLog& writes, const protocol::RankSet& ranks) const;

  pool::SegmentHeap memory_;
  CommandTable& calls_;
  const devices::RankDevices& devices_;
  const std::atomic<std::uint64_t>& replacements_;
  devices::CommTable comms_;
  records::Waits waits_;
};

/// Makes the next command a transfer of so many variables. Returns its slots, one per variable and rank. Their contents
/// are undefined. Throws Error (system).
protocol::TransferSlot* begin_transfer(SystemCommands& commands, protocol::CommandHead& command, InFlight& in_flight,
                                       protocol::TransferDirection direction, std::size_t variables = 1);

/// Memory in the heap, which is freed at the end of this object's life.
class HeapLoan {
 public:
  /// Throws Error (system). `what` is the purpose of the memory, for the message.
  HeapLoan(SystemCommands& commands, std::size_t bytes, const char* what)
      : commands_(commands), offset_(commands.heap().allocate(bytes, os::SharedHeap::Contents::any, what)) {
    commands_.heap().send_by_rows(offset_);  // each node gets what its ranks read, and nothing if they write
  }
  ~HeapLoan() {
    if (commands_.is_open()) commands_.heap().free(offset_, os::SharedHeap::Giveback::now);
  }
  HeapLoan(const HeapLoan&) = delete;
  HeapLoan& operator=(const HeapLoan&) = delete;
  std::uint64_t offset() const noexcept { return offset_; }
  std::byte* data() const noexcept { return commands_.segment().at(offset_); }

 private:
  SystemCommands& commands_;
  std::uint64_t offset_;
};

}  // namespace syncrun::detail::master::calls
