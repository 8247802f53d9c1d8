#pragma once

// Commands that are not function calls: transfers, collectives, constructions. This interface is what the code of these
// features sees of the session. The code can run a command and use the memory in which the arguments travel. It cannot
// open, close or end anything.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/calls/call_ring.hpp"
#include "launcher/devices/rank_devices.hpp"
#include "launcher/pool/segment_heap.hpp"

namespace syncrun::detail {

/// CommandRunner lets the workers run the commands. The tests have an implementation that plays the part of the workers
/// (tests/launcher/calls/played_commands.hpp).
class SystemCommands {
 public:
  using Fill = std::function<void(CommandHead&, InFlight&)>;

  virtual ~SystemCommands() = default;
  SystemCommands(const SystemCommands&) = delete;
  SystemCommands& operator=(const SystemCommands&) = delete;

  /// Waits for everything in flight, then fills in one more command, publishes it and waits for it. Throws the error of
  /// the command. `what` and `subject` name the command in messages: "all_reduce", "weights".
  virtual void run_system(const char* what, const std::string& subject, const Fill& fill) = 0;
  /// Waits for everything in flight. Errors of calls go to their results. Throws if the session ends.
  virtual void drain_all() = 0;
  /// False once the session is over, and in a fork of the program. In these cases this process must not free the
  /// memory.
  virtual bool is_open() const noexcept = 0;

  const Segment& segment() const noexcept { return memory_.segment; }
  SharedHeap& heap() const noexcept { return memory_.heap; }
  const SegmentHeap& memory() const noexcept { return memory_; }
  const RankDevices& devices() const noexcept { return devices_; }
  int world_size() const noexcept { return devices_.world_size(); }
  CallRing& ring() const noexcept { return ring_; }

  /// Allocates memory of the heap. Memory that GPUs have pinned is given back to the system only if there is no other.
  /// Throws Error (system).
  std::uint64_t allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what);
  /// Gives all free memory of the heap back to the system, if there are CUDA devices. Memory that GPUs have pinned
  /// stays pinned when it is freed, so the workers first unpin it.
  void give_back_pages();

 protected:
  /// The object refers to all of them for as long as it lives.
  SystemCommands(SegmentHeap memory, CallRing& ring, const RankDevices& devices)
      : memory_(memory), ring_(ring), devices_(devices) {}

 private:
  SegmentHeap memory_;
  CallRing& ring_;
  const RankDevices& devices_;
};

/// Memory in the heap, which is freed at the end of this object's life.
class HeapLoan {
 public:
  /// Throws Error (system). `what` is the purpose of the memory, for the message.
  HeapLoan(SystemCommands& commands, std::size_t bytes, const char* what)
      : commands_(commands), offset_(commands.heap().allocate(bytes, SharedHeap::Contents::any, what)) {}
  ~HeapLoan() {
    if (commands_.is_open()) commands_.heap().free(offset_, SharedHeap::Giveback::now);
  }
  HeapLoan(const HeapLoan&) = delete;
  HeapLoan& operator=(const HeapLoan&) = delete;
  std::uint64_t offset() const noexcept { return offset_; }
  std::byte* data() const noexcept { return commands_.segment().at(offset_); }

 private:
  SystemCommands& commands_;
  std::uint64_t offset_;
};

}  // namespace syncrun::detail
