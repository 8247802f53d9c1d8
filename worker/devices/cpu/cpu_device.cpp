#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/arrays/mapped_file.hpp"
#include "common/arrays/reduce.hpp"
#include "common/arrays/update.hpp"
#include "common/os/memory_limit.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "common/text/errors.hpp"
#include "worker/devices/device.hpp"
#include "worker/devices/hardware.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::devices::cpu {

namespace {

/// Memory is this rank's arena.
class CpuMemory final : public DeviceMemory {
 public:
  explicit CpuMemory(const DeviceContext& context) : context_(context), segment_(context.attachment.segment) {}

  void* allocate(std::size_t bytes, os::SharedHeap::Contents contents, std::string_view what) override {
    return at(allocate_with_spare(context_, bytes, [&] { return context_.arena.allocate(bytes, contents, what); }));
  }
  void release(void* memory) noexcept override {
    context_.arena.free(segment_.offset_of(memory), os::SharedHeap::Giveback::later);
  }
  std::uint64_t place_of(const void* memory) const noexcept override { return segment_.offset_of(memory); }
  void* at(std::uint64_t place) const noexcept override { return segment_.at(place); }
  void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) override {
    copy_within(device_memory, shared, bytes);
  }
  void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) override {
    copy_within(shared, device_memory, bytes);
  }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void clear(void* device_memory, std::size_t bytes) override {
    if (bytes != 0) std::memset(device_memory, 0, bytes);
  }
  void finish() override {}
  bool contains(const void* memory) const noexcept { return segment_.contains(memory); }

 private:
  const DeviceContext context_;
  const os::Segment& segment_;
};

class CpuPeers final : public PeerAccess {
 public:
  explicit CpuPeers(CpuMemory& memory) : memory_(memory) {}
  void copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) override {
    memory_.copy_within(to, memory_.at(from.place), bytes);
  }

 private:
  CpuMemory& memory_;
};

class CpuInputs final : public InputStage {
 public:
  void* bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted) override {
    if (wanted.indices == nullptr)
      return const_cast<std::byte*>(from.array) + static_cast<std::size_t>(wanted.first) * from.row_bytes;
    const std::span indices(wanted.indices, static_cast<std::size_t>(wanted.rows));
    if (from.file == nullptr) return gather_local(argument, from.array, from.row_bytes, indices);
    const std::size_t bytes = indices.size() * from.row_bytes;
    std::byte* const to = staging_for(argument, bytes);
    from.file->read_rows(from.row_bytes, indices, 0, to, bytes);
    return to;
  }
  void* gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                     std::span<const std::int64_t> indices) override {
    std::byte* const staging = staging_for(argument, indices.size() * row_bytes);
    std::byte* to = staging;
    for (const auto index : indices) {
      std::memcpy(to, array + static_cast<std::size_t>(index) * row_bytes, row_bytes);
      to += row_bytes;
    }
    return staging;
  }
  /// The value is in a command, at a multiple of 16 bytes. The alignment of its type divides its size, so the largest power
  /// of two that divides the size is enough.
  const void* bring_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) override {
    const std::size_t alignment = bytes & (~bytes + 1);
    if (reinterpret_cast<std::uintptr_t>(value) % alignment == 0) return value;
    return std::memcpy(staging_for(argument, bytes), value, bytes);
  }

 private:
  /// A unit of 64 bytes keeps elements of any type aligned.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  std::byte* staging_for(std::size_t argument, std::size_t bytes) {
    auto& staging = staging_[argument];
    const std::size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line);
    if (staging.size() < lines) staging.resize(lines);
    return reinterpret_cast<std::byte*>(staging.data());
  }

  std::array<std::vector<Line>, kMaxArguments> staging_;
};

class CpuArithmetic final : public Arithmetic {
 public:
  void accumulate(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                  std::size_t elements) override {
    arrays::accumulate_elements(dtype, reduction, into, value, weights, elements);
  }
  void convert(arrays::ElementTypes types, const void* from, void* to, std::size_t elements) override {
    arrays::convert_elements(types, from, to, elements);
  }
  void apply_update(const UpdateWork& work) override { arrays::update_elements(work); }
};

class CpuOutputs final : public DeviceOutputs {
 public:
  explicit CpuOutputs(CpuMemory& memory) : memory_(memory) {}

  OutputBuffer allocate(std::size_t bytes) override {
    void* memory = memory_.allocate(bytes, os::SharedHeap::Contents::zero, "an output");
    return {memory, bytes,
            [](void* data, void* outputs) noexcept {
              process::end_if_forked();  // an exception may unwind the stack in a forked child
              static_cast<CpuOutputs*>(outputs)->memory_.release(data);
            },
            this};
  }
  OutputBuffer adopt(OutputBuffer buffer) override {
    if (buffer.data() == nullptr || memory_.contains(buffer.data())) return buffer;
    OutputBuffer shared = allocate(buffer.bytes());
    std::memcpy(shared.data(), buffer.data(), buffer.bytes());
    return shared;
  }
  std::uint64_t share(OutputBuffer buffer) override {
    return buffer.data() == nullptr ? 0 : memory_.place_of(buffer.detach());
  }
  std::size_t large_bytes() const noexcept override { return std::size_t{16} << 10U; }

 private:
  CpuMemory& memory_;
};

class CpuDevice final : public WorkerDevice {
 public:
  explicit CpuDevice(const DeviceContext& context) : comm_(context.host_comm), memory_(context) {}

  DeviceParts parts() noexcept override { return {memory_, peers_, inputs_, arithmetic_, outputs_}; }

  comm::CommCore& comm(const protocol::CommandHead&) override { return comm_; }
  comm::CommCore& solo() noexcept override { return solo_; }

  protocol::MemorySize memory_size() override {
    const auto free = static_cast<std::uint64_t>(std::max<std::int64_t>(os::available_memory_bytes(), 0));
    const auto total =
        static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return {std::min(free, total), total};
  }
  std::string hardware() const override {
    std::ifstream cpuinfo("/proc/cpuinfo");
    return describe_cpu(cpuinfo);
  }

  void abandon() noexcept override {}
  bool is_lost() const noexcept override { return false; }

 private:
  comm::CpuComm& comm_;
  comm::SoloComm solo_;
  CpuMemory memory_;
  CpuPeers peers_{memory_};
  CpuInputs inputs_;
  CpuArithmetic arithmetic_;
  CpuOutputs outputs_{memory_};
};

}  // namespace

}  // namespace syncrun::detail::worker::devices::cpu

namespace syncrun::detail::worker::devices {

std::unique_ptr<WorkerDevice> make_cpu_device(const DeviceContext& context) {
  return std::make_unique<cpu::CpuDevice>(context);
}

}  // namespace syncrun::detail::worker::devices
