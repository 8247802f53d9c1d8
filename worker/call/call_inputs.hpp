#pragma once

// The arguments of the call that runs, which its body only reads: rows, arrays, values and text.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "syncrun/detail/call.hpp"
#include "worker/call/call_slices.hpp"
#include "worker/call/mapped_files.hpp"
#include "worker/call/recordings.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::call {

/// The members of WorkerCall with the same names describe the arguments.
class CallInputs {
 public:
  CallInputs(const process::Attachment& attachment, const devices::DeviceParts& device, MappedFiles& files,
             const CallSlices& slices, Recordings& recordings) noexcept
      : attachment_(attachment),
        memory_(device.memory),
        stage_(device.inputs),
        files_(files),
        slices_(slices),
        recordings_(recordings) {}

  /// Called before the inputs of this command are requested, and after those of a slice were, before the body.
  void begin(std::uint64_t command) { stage_.begin_command(command); }
  void flush() { stage_.flush(); }

  /// Lets the device copy the inputs of a command's first slice ahead. This has no effect if the command does not run
  /// after all.
  void bring_ahead(const protocol::Command& command, std::uint64_t id);

  RawRows rows(std::size_t argument);
  RawArray whole(std::size_t argument);
  ScalarPlaces scalar(std::size_t argument);
  const void* value(std::size_t argument) const;
  std::string_view text(std::size_t argument) const;

  /// Called after the body. Throws Error (system) if bytes were missing in a file that the body has read.
  void check_files() const;

 private:
  devices::SharedRows array_of(const protocol::ArgumentSlot& slot);
  void* bring_rows(const protocol::Command& command, std::size_t argument, arrays::RowRange rows);
  void* bring_whole(const protocol::Command& command, std::size_t argument);
  const void* bring_scalar(const protocol::Command& command, std::size_t argument);
  void count_rows(const protocol::ArgumentSlot& slot, std::int64_t rows) const noexcept;
  RawArray sliced_rows(std::size_t argument, const protocol::ArgumentSlot& slot);

  const process::Attachment& attachment_;
  devices::DeviceMemory& memory_;
  devices::InputStage& stage_;
  MappedFiles& files_;
  const CallSlices& slices_;
  Recordings& recordings_;
};

}  // namespace syncrun::detail::worker::call
