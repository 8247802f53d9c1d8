#pragma once

// The updates that the body of the call that runs has written, until the copies of the variables get them.

#include <array>
#include <cstddef>
#include <cstdint>

#include "syncrun/detail/call.hpp"
#include "worker/call/call_slices.hpp"
#include "worker/call/recordings.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::call {

class CallUpdates {
 public:
  CallUpdates(const process::Attachment& attachment, const devices::DeviceParts& device, const CallSlices& slices,
              Recordings& recordings) noexcept
      : attachment_(attachment),
        memory_(device.memory),
        arithmetic_(device.arithmetic),
        slices_(slices),
        recordings_(recordings) {}

  void begin() noexcept { arguments_ = 0; }
  /// Binds an argument; see WorkerCall::update.
  RawUpdate update(std::size_t argument);
  /// Called after each slice, before the next one begins. Adds its updates to those of the slices before.
  void finish_slice() {
    if (arguments_ != 0) add_slice();
  }
  /// Called after the vote.
  void commit();
  void end() noexcept {
    if (arguments_ != 0) discard();
  }
  /// Frees what a failed call has computed.
  void discard() noexcept;

 private:
  struct Pending {
    void* total = nullptr;  // accumulated over slices; its elements have type_over_slices
    void* value = nullptr;  // of the current slice
    std::size_t bytes = 0;
    std::int64_t rows = 0;
    bool is_written = false;
  };

  void add_slice();

  const process::Attachment& attachment_;
  devices::DeviceMemory& memory_;
  devices::Arithmetic& arithmetic_;
  const CallSlices& slices_;
  Recordings& recordings_;
  std::array<Pending, kMaxArguments> pending_;
  std::uint32_t arguments_ = 0;  // a bit for each argument that is an update
};

}  // namespace syncrun::detail::worker::call
