#pragma once

// The memory of a GPU that stays between calls, copies on the worker's stream, and waits for the stream.

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/gpu_allocators.hpp"
#include "common/protocol/control_block.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/memory_pool.hpp"
#include "worker/devices/cuda/nccl_comm.hpp"
#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/cuda/pinned_pages.hpp"
#include "worker/devices/device.hpp"
#include "worker/devices/staging.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// A block that returns to its pool when this owner ends.
struct ReleaseToPool {
  MemoryPool* pool;
  void operator()(void* block) const noexcept { pool->release(block); }
};
using HeldBlock = std::unique_ptr<void, ReleaseToPool>;

class CudaMemory final : public DeviceMemory {
 public:
  /// `comm` is the communicator that was used last. Only this one can have unfinished work. For `take_back`, see
  /// MemoryPool.
  CudaMemory(const DeviceContext& context, StreamView stream, Staging& staging, NcclComm* const& comm,
             std::function<bool(void*)> take_back)
      : context_(context), stream_(stream), staging_(staging), comm_(comm), pool_(std::move(take_back)) {}

  void* allocate(std::size_t bytes, os::SharedHeap::Contents contents, std::string_view what) override {
    void* const memory = allocate_with_spare(context_, bytes, [&] { return pool_.allocate(bytes, what); });
    if (contents == os::SharedHeap::Contents::zero) clear(memory, bytes);
    return memory;
  }
  void release(void* memory) noexcept override {
    if (is_holding()) held_.push_back(HeldBlock(memory, {&pool_}));
    else pool_.release(memory);
  }
  std::uint64_t place_of(const void* memory) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  void* at(std::uint64_t place) const noexcept override { return reinterpret_cast<void*>(place); }
  MemoryPool& pool() noexcept { return pool_; }
  PinnedPages& pinned() noexcept { return pinned_; }

  /// Between these two, memory that is released stays allocated, because the graph that is captured writes to it.
  void begin_hold() {
    held_.reserve(kMostHeld);
    os::gpu_allocators().is_capturing = is_holding_ = true;
  }
  std::vector<HeldBlock> end_hold() noexcept {
    os::gpu_allocators().is_capturing = is_holding_ = false;
    return std::exchange(held_, {});
  }
  bool is_holding() const noexcept { return is_holding_; }

  void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) override {
    if (bytes == 0) return;
    pinned_.pin(shared, bytes);
    pinned_.copy_to_device(device_memory, shared, bytes, stream_);
  }
  void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) override {
    if (bytes == 0) return;
    pinned_.pin(shared, bytes);
    pinned_.for_each_part(shared, bytes, [&](std::size_t offset, std::size_t part) {
      check_cuda(cudaMemcpyAsync(shared + offset, static_cast<const std::byte*>(device_memory) + offset, part,
                                 cudaMemcpyDeviceToHost, stream_),
                 "copying to shared memory");
    });
  }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying device memory");
  }
  void clear(void* device_memory, std::size_t bytes) override {
    if (bytes == 0) return;
    check_cuda(cudaMemsetAsync(device_memory, 0, bytes, stream_), "clearing device memory");
  }

  void finish() override { finish(NcclComm::Wait::last); }
  void finish(NcclComm::Wait wait) {
    const cudaError_t refused = cudaGetLastError();  // a refused launch is reported only here
    if (refused != cudaErrorNotReady) check_cuda(refused, "what was put on the stream");
    staging_.flush();
    comm_->join_started();
    comm_->note_waiting(wait);
    await(stream_);
    comm_->note_finished();
  }
  /// Waits for a stream of this device, without what finish() does besides.
  void await(StreamView stream) {
    constexpr int kPollsPerCheck = 64;
    for (int polls = 1;; ++polls) {
      const cudaError_t code = cudaStreamQuery(stream);
      if (code == cudaSuccess) return;
      if (code != cudaErrorNotReady) check_cuda(code, "work on the device");
      static_cast<void>(cudaGetLastError());  // clears the code "not ready", which must not be reported later
      context_.interruption.check();
      context_.look_ahead();
      if (polls % kPollsPerCheck == 0) comm_->check_progress();
      if (!context_.attachment.control.header().spins) std::this_thread::yield();
    }
  }
  StreamView stream() const noexcept { return stream_; }

 private:
  /// How many blocks a body may release during a capture. The memory for them is reserved before, because release()
  /// cannot throw.
  static constexpr std::size_t kMostHeld = 1024;

  const DeviceContext& context_;
  StreamView stream_;
  Staging& staging_;
  NcclComm* const& comm_;
  MemoryPool pool_;
  PinnedPages pinned_;
  bool is_holding_ = false;
  std::vector<HeldBlock> held_;
};

}  // namespace syncrun::detail::worker::devices::cuda
