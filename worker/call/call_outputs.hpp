#pragma once

// The outputs of the call that runs: accepted slice by slice, shared, reduced.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "syncrun/detail/call.hpp"
#include "worker/call/call_slices.hpp"
#include "worker/call/shared_variables.hpp"
#include "worker/comm/outgoing_memory.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::call {

/// An output of a recorded replayable function.
struct RecordedOutput {
  std::size_t output;
  OutputType type;
  std::vector<std::int64_t> extents;
  OutputBuffer buffer;
  const void* place = nullptr;  // of a number in device memory; else null
};

class CallOutputs {
 public:
  /// `outgoing` takes over the memory of shared outputs at the end. `variables` takes over that of outputs that stay on
  /// the device.
  CallOutputs(const process::Attachment& attachment, const devices::DeviceParts& device, comm::OutgoingMemory& outgoing,
              VariableCopies& variables, const CallSlices& slices) noexcept
      : attachment_(attachment),
        outputs_(device.outputs),
        memory_(device.memory),
        arithmetic_(device.arithmetic),
        reducer_(device.reducer),
        outgoing_(outgoing),
        variables_(variables),
        slices_(slices) {}

  bool wants(std::size_t output) const noexcept { return (slices_.call().wanted_outputs >> output & 1U) != 0; }
  void accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents, OutputBuffer buffer);
  void accept_scalar(std::size_t output, const OutputType& type, const void* value);
  void accept_device_scalar(std::size_t output, const OutputType& type, const void* place);

  /// While work is captured: outputs are appended here and not accepted. Null ends that.
  void record_to(std::vector<RecordedOutput>* recorded) noexcept { recorded_ = recorded; }
  /// Recorded work has written them again.
  void accept_recorded(std::span<const RecordedOutput> outputs);

  /// Called after the last slice. Concatenates gathered outputs of slices, brings outputs into shared memory, and
  /// describes them in the outbox. Large outputs that GPUs reduce through their communicator stay in device memory.
  void deliver(protocol::Outbox& outbox);
  bool may_reduce(const protocol::Outbox& outbox) const noexcept;
  /// Whether the ranks may meet to reduce outputs. GPUs do, if they make their communicator for it.
  bool may_meet_after_vote() const noexcept { return !shares_before_reducing(); }
  /// Called after the vote.
  void reduce(protocol::Outbox& outbox);
  /// Hands over the memory of the outputs, which is freed after the master has consumed the command.
  void end(std::uint64_t command);
  /// Frees what a failed call has computed.
  void discard() noexcept;

 private:
  struct Pending {
    double weight = 0;  // so far, for avg
    int slices = 0;
    std::array<std::int64_t, kMaxDimensions> extents{};
    alignas(8) std::array<std::byte, 8> scalar{};  // a number of the host's, in its partial_type
    double average = 0;                            // for the avg of a number: sum of value * weight
    OutputBuffer buffer;  // also holds a number in device memory; until deliver(), its elements have type_over_slices
    std::vector<OutputBuffer> pieces;  // for gather: one per slice
    std::vector<std::int64_t> piece_rows;
    std::uint64_t shared = 0;  // offset in the segment, after the output was shared
  };

  /// Workers of several nodes reduce outputs on each node, and then the master does.
  bool shares_before_reducing() const noexcept;
  bool is_reduced_by_workers(std::size_t output) const noexcept;
  protocol::RankSet::Part ranks_here() const noexcept;
  bool has_peers_here() const noexcept;
  bool all_are_large() const noexcept;
  const protocol::Outbox& outbox_of(int rank) const noexcept {
    return attachment_.control.outbox(slices_.command(), rank);
  }
  OutputBuffer adopted(OutputBuffer buffer);
  OutputBuffer converted(arrays::ElementTypes types, OutputBuffer buffer);
  OutputBuffer borrowed(void* memory, std::size_t bytes) noexcept;
  void take(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents, OutputBuffer buffer);
  void concatenate(Pending& pending, const OutputType& type);
  void share(protocol::Outbox& outbox);
  bool reduce_output(std::size_t index, protocol::Outbox& outbox, std::span<const int> ranks,
                     std::span<const double> weights);

  const process::Attachment& attachment_;
  devices::DeviceOutputs& outputs_;
  devices::DeviceMemory& memory_;
  devices::Arithmetic& arithmetic_;
  devices::OutputReducer* reducer_;
  comm::OutgoingMemory& outgoing_;
  VariableCopies& variables_;
  const CallSlices& slices_;
  std::array<Pending, kMaxOutputs> pending_;
  std::vector<RecordedOutput>* recorded_ = nullptr;
};

}  // namespace syncrun::detail::worker::call
