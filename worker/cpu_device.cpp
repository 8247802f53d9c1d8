#include <array>
#include <cstring>
#include <vector>

#include "common/control_block.hpp"
#include "common/reduce.hpp"
#include "common/segment.hpp"
#include "worker/device.hpp"

namespace syncrun::detail {

namespace {

class CpuDevice final : public Device {
 public:
  CpuDevice(const Segment& segment, SharedHeap& arena) : segment_(segment), arena_(arena) {}

  void* allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) override {
    return segment_.at(arena_.allocate(bytes, contents, what));
  }
  void release(void* memory) noexcept override { arena_.free(segment_.offset_of(memory), SharedHeap::Giveback::later); }

  OutputBuffer allocate_output(std::size_t bytes) override {
    void* memory = allocate(bytes, SharedHeap::Contents::zero, "an output");
    return {memory, bytes, [](void* data, void* device) noexcept { static_cast<CpuDevice*>(device)->release(data); },
            this};
  }

  void* take_rows(std::size_t, const std::byte* array, std::size_t row_bytes, std::int64_t begin,
                  std::int64_t) override {
    return const_cast<std::byte*>(array) + static_cast<std::size_t>(begin) * row_bytes;
  }

  void* gather_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                    std::span<const std::int64_t> indices) override {
    // A wider unit than bytes keeps any element type aligned.
    auto& staging = staging_[argument];
    const std::size_t words = (indices.size() * row_bytes + sizeof(Line) - 1) / sizeof(Line);
    if (staging.size() < words) staging.resize(words);
    auto* to = reinterpret_cast<std::byte*>(staging.data());
    for (const auto index : indices) {
      std::memcpy(to, array + static_cast<std::size_t>(index) * row_bytes, row_bytes);
      to += row_bytes;
    }
    return staging.data();
  }
  void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                          std::span<const std::int64_t> indices) override {
    return gather_rows(argument, array, row_bytes, indices);
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
    const std::array<const void*, 2> sources{into, value};
    const std::array<void*, 1> destinations{into};
    reduce_elements(dtype, reduction, destinations, sources, weights, elements);
  }

  void finish() override {}

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  const Segment& segment_;
  SharedHeap& arena_;
  std::array<std::vector<Line>, kMaxArguments> staging_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const Segment& segment, SharedHeap& arena) {
  return std::make_unique<CpuDevice>(segment, arena);
}

}  // namespace syncrun::detail
