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
#include "worker/place/user_code.hpp"

namespace syncrun::detail {

namespace {

class CpuDevice final : public WorkerDevice {
 public:
  explicit CpuDevice(const DeviceContext& context)
      : context_(context), segment_(context.attachment.segment), arena_(context.arena), comm_(context.host_comm) {}

  void* allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) override {
    return segment_.at(allocate_with_spare(context_, bytes, [&] { return arena_.allocate(bytes, contents, what); }));
  }
  void release(void* memory) noexcept override { arena_.free(segment_.offset_of(memory), SharedHeap::Giveback::later); }

  OutputBuffer allocate_output(std::size_t bytes) override {
    void* memory = allocate(bytes, SharedHeap::Contents::zero, "an output");
    return {memory, bytes,
            [](void* data, void* device) noexcept {
              end_if_forked();  // an exception may unwind the stack in a forked child
              static_cast<CpuDevice*>(device)->release(data);
            },
            this};
  }

  OutputBuffer adopt_output(OutputBuffer buffer) override {
    if (buffer.data() == nullptr || segment_.contains(buffer.data())) return buffer;
    OutputBuffer shared = allocate_output(buffer.bytes());
    std::memcpy(shared.data(), buffer.data(), buffer.bytes());
    return shared;
  }

  std::uint64_t place_of(const void* memory) const noexcept override { return segment_.offset_of(memory); }
  void* at(std::uint64_t place) const noexcept override { return segment_.at(place); }

  void copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) override {
    copy_within(to, segment_.at(from.place), bytes);
  }

  void* take_rows(std::size_t, const SharedRows& rows, std::int64_t begin, std::int64_t) override {
    return const_cast<std::byte*>(rows.array) + static_cast<std::size_t>(begin) * rows.row_bytes;
  }
  void* gather_rows(std::size_t argument, const SharedRows& rows, std::span<const std::int64_t> indices) override {
    if (rows.file == nullptr) return gather_local_rows(argument, rows.array, rows.row_bytes, indices);
    const std::size_t bytes = indices.size() * rows.row_bytes;
    std::byte* const to = staging_for(argument, bytes);
    rows.file->read_rows(rows.row_bytes, indices, 0, to, bytes);
    return to;
  }
  void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
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
  const void* take_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) override {
    const std::size_t alignment = bytes & (~bytes + 1);
    if (reinterpret_cast<std::uintptr_t>(value) % alignment == 0) return value;
    return std::memcpy(staging_for(argument, bytes), value, bytes);
  }

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

  void accumulate(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                  std::size_t elements) override {
    accumulate_elements(dtype, reduction, into, value, weights, elements);
  }
  void convert(ElementTypes types, const void* from, void* to, std::size_t elements) override {
    convert_elements(types, from, to, elements);
  }

  void apply_update(const UpdateWork& work) override { update_elements(work); }

  std::uint64_t share_output(OutputBuffer buffer) override {
    return buffer.data() == nullptr ? 0 : segment_.offset_of(buffer.detach());
  }
  std::size_t large_output_bytes() const noexcept override { return std::size_t{16} << 10U; }
  bool shares_before_reducing() const noexcept override { return true; }

  CommCore& comm(const CommandHead&) override { return comm_; }
  CommCore& solo() noexcept override { return solo_; }

  MemorySize memory() override {
    const auto free = static_cast<std::uint64_t>(std::max<std::int64_t>(available_memory_bytes(), 0));
    const auto total =
        static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return {std::min(free, total), total};
  }

  std::string hardware() const override {
    std::ifstream cpuinfo("/proc/cpuinfo");
    return describe_cpu(cpuinfo);
  }

  void abandon() noexcept override {}
  void finish() override {}
  bool is_lost() const noexcept override { return false; }

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

  const DeviceContext context_;
  const Segment& segment_;
  SharedHeap& arena_;
  CpuComm& comm_;
  SoloComm solo_;
  std::array<std::vector<Line>, kMaxArguments> staging_;
};

}  // namespace

std::unique_ptr<WorkerDevice> make_cpu_device(const DeviceContext& context) {
  return std::make_unique<CpuDevice>(context);
}

}  // namespace syncrun::detail
