#pragma once

// A device for tests whose memory is not host memory, as that of a GPU. An address in its memory cannot be used on the
// host. Work is put on a queue and runs in finish(), as late as possible. So code that does not wait for the device, or
// that uses a device address on the host, fails.

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/devices/gpu_device.hpp"

namespace syncrun::test {

class OffHostDevice final : public detail::GpuDevice {
 public:
  struct Graph final : detail::DeviceGraph {};

  /// `comm` is the communicator of this device and its peers of the same kind.
  OffHostDevice(const detail::Segment& segment, detail::SharedHeap& arena, detail::CommCore& comm)
      : segment_(segment), arena_(arena), comm_(comm) {}
  OffHostDevice(const OffHostDevice&) = delete;
  OffHostDevice& operator=(const OffHostDevice&) = delete;
  ~OffHostDevice() override {
    for (void* memory : allocated_) std::free(memory);
  }

  /// Where the host finds what is at an address in device memory. For the test only.
  template <class T = std::byte>
  static T* host_view(const void* device_memory) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(device_memory) - kShift);
  }
  /// Puts work on the queue, as a body does.
  void enqueue(std::function<void()> work) { queue_.push_back(std::move(work)); }

  int copies_out = 0;  // requests to copy to shared memory
  int captures = 0;
  int reductions = 0;  // outputs that the device was asked to reduce with its peers

  void* allocate(std::size_t bytes, detail::SharedHeap::Contents contents, std::string_view) override {
    void* const memory =
        contents == detail::SharedHeap::Contents::zero ? std::calloc(bytes + 1, 1) : std::malloc(bytes + 1);
    if (memory == nullptr) throw std::bad_alloc();
    allocated_.push_back(memory);
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) + kShift);
  }
  void release(void*) noexcept override {}  // stays until the end: work on the queue may use it
  detail::OutputBuffer allocate_output(std::size_t bytes) override {
    return {allocate(bytes, detail::SharedHeap::Contents::zero, ""), bytes, [](void*, void*) noexcept {}, this};
  }
  detail::OutputBuffer adopt_output(detail::OutputBuffer buffer) override { return buffer; }
  std::uint64_t place_of(const void* memory) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  void* at(std::uint64_t place) const noexcept override { return reinterpret_cast<void*>(place); }
  void* take_rows(std::size_t, const detail::SharedRows&, std::int64_t, std::int64_t) override { return nullptr; }
  void* gather_rows(std::size_t, const detail::SharedRows&, std::span<const std::int64_t>) override { return nullptr; }
  void* gather_local_rows(std::size_t, const std::byte*, std::size_t, std::span<const std::int64_t>) override {
    return nullptr;
  }
  const void* take_scalar(std::size_t, const std::byte* value, std::size_t) override { return value; }
  void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memcpy(host_view(device_memory), shared, bytes); });
  }
  void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) override {
    ++copies_out;
    if (bytes != 0) enqueue([=] { std::memcpy(shared, host_view(device_memory), bytes); });
  }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memmove(host_view(to), host_view(from), bytes); });
  }
  void clear(void* device_memory, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memset(host_view(device_memory), 0, bytes); });
  }
  void accumulate(DType, Reduction, void*, const void*, std::array<double, 2>, std::size_t) override {}
  void apply_update(const detail::UpdateWork&) override {}
  std::uint64_t share_output(detail::OutputBuffer buffer) override {
    if (buffer.data() == nullptr) return 0;
    const std::uint64_t offset = arena_.allocate(buffer.bytes(), detail::SharedHeap::Contents::any, "an output");
    copy_out(segment_.at(offset), buffer.data(), buffer.bytes());
    return offset;
  }
  std::size_t large_output_bytes() const noexcept override { return std::size_t{64} << 10U; }
  bool shares_before_reducing() const noexcept override { return false; }
  std::uint64_t reduce_output(const detail::OutputReduction&, detail::OutputBuffer) override {
    ++reductions;
    return 0;
  }
  detail::CommCore& comm() noexcept override { return comm_; }
  detail::CommCore& solo() noexcept override { return solo_; }
  std::string hardware() const override { return "no GPU"; }
  void abandon() noexcept override { queue_.clear(); }
  void finish() override {
    for (const auto& work : std::exchange(queue_, {})) work();
  }
  bool is_lost() const noexcept override { return false; }

  CUstream_st* stream() noexcept override { return nullptr; }
  cublasContext* cublas() override { return nullptr; }
  cudnnContext* cudnn() override { return nullptr; }
  void unpin() override {}
  void begin_capture() override { ++captures; }
  std::unique_ptr<detail::DeviceGraph> end_capture() override { return std::make_unique<Graph>(); }
  void abandon_capture() noexcept override {}
  void launch(detail::DeviceGraph&) override {}

 private:
  /// No process may use addresses above this one.
  static constexpr std::uintptr_t kShift = std::uintptr_t{1} << 56U;

  const detail::Segment& segment_;
  detail::SharedHeap& arena_;
  detail::CommCore& comm_;
  detail::SoloComm solo_;
  std::vector<std::function<void()>> queue_;
  std::vector<void*> allocated_;
};

}  // namespace syncrun::test
