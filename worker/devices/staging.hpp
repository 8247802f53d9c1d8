#pragma once

// Brings the inputs of calls to a device with memory of its own: those of the call that runs, and while it computes, those
// of the next call. The device copies. This class chooses the memory, and what a copy must wait for. It knows nothing
// about CUDA, so it also runs on fake devices.
//
// The device has two lanes that run side by side. The lane `work` runs bodies. The lane `ahead` copies inputs of the next
// call. There are two sets of buffers. The calls of this rank use them in turn, whatever their numbers: numbers count the
// commands of the whole session. What is copied ahead goes to the set that the current call does not use.
//
//   lane work:   call A reads set 0 .......... | call B reads set 1 ........... | call C reads set 0
//   lane ahead:     inputs of B into set 1        inputs of C into set 0
//
// Two rules order the lanes:
// - A copy ahead comes after all work of the calls before the current one. These may have read its set.
// - The work of a call comes after all copies ahead that were requested before the call began.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/export_for_cuda.hpp"
#include "worker/devices/device_parts.hpp"

namespace syncrun::detail::worker::devices {

/// What Staging requires of a device: two lanes of work, each in the order of the requests, and memory for rows. Members
/// throw Error: system, cuda.
class StagingLanes {
 public:
  enum class Lane : std::uint8_t { work, ahead };
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  /// `all`: frees what else can be freed before it gives up.
  enum class Effort : std::uint8_t { usual, all };

  virtual ~StagingLanes() = default;

  /// A block of at least this size. Throws Error (system, ENOMEM) if there is too little memory.
  virtual Block allocate(std::size_t bytes, Effort effort) = 0;
  /// The next allocation may return the block, although earlier requests still use it.
  virtual void release(void* memory) noexcept = 0;

  /// Requests rows of an array in shared memory or in a file. The copy may begin at once, and has begun after start().
  virtual void bring(void* to, const SharedRows& from, const RowsWanted& wanted, Lane lane) = 0;
  /// The same for rows by index of an array in device memory, in the lane `work`.
  virtual void gather_local(void* to, const std::byte* array, std::size_t row_bytes, const std::int64_t* indices,
                            std::int64_t rows) = 0;
  virtual void start(Lane lane) = 0;
  /// Forgets requests that have not begun.
  virtual void forget_requests() noexcept = 0;

  /// Marks the end of what the lane has so far.
  virtual void mark(Lane lane) = 0;
  /// Later requests in `lane` run after everything before the last mark of the other lane.
  virtual void follow(Lane lane) = 0;
  /// Returns when nothing is left in the lane `ahead`.
  virtual void await_ahead() noexcept = 0;
};

class SYNCRUN_EXPORT_FOR_CUDA Staging : public InputStage {
 public:
  explicit Staging(StagingLanes& lanes) noexcept : lanes_(lanes) {}

  void begin_command(std::uint64_t command) override;
  void* bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted) final;
  void* gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                     std::span<const std::int64_t> indices) final;
  const void* bring_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) final {
    return bring(argument, {value, bytes, 1}, {nullptr, 0, 1});
  }
  /// Starts the requested transfers of the current call that were not done ahead.
  void flush() final { lanes_.start(StagingLanes::Lane::work); }
  void begin_ahead(std::uint64_t command) final;
  void end_ahead() final;
  void abandon() noexcept final;

 private:
  using Lane = StagingLanes::Lane;
  struct Buffer {
    StagingLanes::Block block;
    std::uint64_t used_during = 0;  // the current call when rows were last requested for it
    // What was copied ahead, and for which command. The command is 0 if nothing was.
    std::uint64_t command = 0;
    const std::byte* array = nullptr;
    std::size_t row_bytes = 0;
    RowsWanted wanted{};
  };
  using Set = std::array<Buffer, kMaxArguments>;

  bool is_ahead() const noexcept { return ahead_ != 0; }
  /// The set in which requests put their rows now.
  Set& set() noexcept { return sets_[is_ahead() ? 1 - own_ : own_]; }
  void* memory_of(Buffer& buffer, std::size_t bytes);
  StagingLanes::Block allocate(std::size_t bytes);

  StagingLanes& lanes_;
  std::array<Set, 2> sets_;
  std::size_t own_ = 0;          // the set of the current call
  std::uint64_t command_ = 0;    // the number of the current call
  std::uint64_t ahead_ = 0;      // the command for which inputs are copied ahead, or 0
  bool is_used_ = false;         // the current call has requested rows
  bool must_follow_ = false;     // the lane `ahead` has not followed the last mark of the lane `work` yet
  bool is_arriving_ = false;     // the lane `work` has not followed the last mark of the lane `ahead` yet
  std::vector<void*> outgrown_;  // blocks that were outgrown in the current call, after a request had used them
};

}  // namespace syncrun::detail::worker::devices
