#pragma once

// Collectives through host memory, for a device whose memory is not host memory. The peers may be such devices too, or
// CPU devices, which use CpuComm or NodesComm.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/os/shared_heap.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/devices/device_parts.hpp"

namespace syncrun::detail::worker::devices {

/// In each collective, this rank copies its values to its arena in shared memory, waits until they are there, takes part
/// in the collective of the host, and copies the result back:
///
///   work of the body | copy out | (host waits for the device) collective on the host | copy in | work of the body
///
/// The copies are in the order of the device's other work. The host waits for its peers, so the work cannot be captured.
/// Here, a rank, a peer and a root are positions among the ranks of the command.
class HostComm final : public comm::CommCore {
 public:
  /// `host` is the communicator of the same ranks in host memory. `node` has the buffers of this rank, which peers may
  /// still read. `arena` is this rank's part of the segment.
  HostComm(const os::Segment& segment, os::SharedHeap& arena, comm::CommCore& host, comm::CpuComm& node,
           DeviceMemory& memory)
      : segment_(segment), arena_(arena), host_(host), node_(node), memory_(memory) {}
  ~HostComm() override;
  HostComm(const HostComm&) = delete;
  HostComm& operator=(const HostComm&) = delete;

  void begin(const protocol::Command& command) override { host_.begin(command); }
  int rank() const noexcept override { return host_.rank(); }
  int world_size() const noexcept override { return host_.world_size(); }
  void barrier() override { host_.barrier(); }
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const comm::RankWeights& weights) override;
  void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const comm::RankWeights& weights,
              int root) override;
  /// Changes `values` only where `part` lies in it.
  void reduce_scatter(void* values, void* part, const comm::Division& division, DType dtype, Reduction reduction,
                      const comm::RankWeights& weights) override;
  void broadcast(void* values, std::size_t elements, DType dtype, int root) override;
  void all_gather(const void* part, void* all, const comm::Division& division) override;
  void gather(const void* part, void* all, const comm::Division& division, int root) override;
  void scatter(const void* all, void* part, const comm::Division& division, int root) override;
  void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override { host_.exchange(own, all); }
  void all_reduce_value(void* value, DType dtype, Reduction reduction, const comm::RankWeights& weights) override {
    host_.all_reduce_value(value, dtype, reduction, weights);
  }
  std::int64_t agree(std::int64_t own) override;
  bool can_be_captured() const noexcept override { return false; }
  void enter() override { host_.enter(); }
  void count(std::size_t bytes) noexcept override { host_.count(bytes); }
  void set_label(std::string_view text) noexcept override { host_.set_label(text); }
  void leave() noexcept override { host_.leave(); }

 private:
  std::byte* room_for(std::size_t bytes);
  void copy_out(std::byte* to, const void* values, std::size_t bytes);
  std::byte* bring(const void* values, std::size_t bytes);

  const os::Segment& segment_;
  os::SharedHeap& arena_;
  comm::CommCore& host_;
  comm::CpuComm& node_;
  DeviceMemory& memory_;
  std::uint64_t room_ = 0;  // offset in the segment; 0 while there is none
  std::size_t room_bytes_ = 0;
};

}  // namespace syncrun::detail::worker::devices
