#pragma once

// The two lanes in which rows come to a GPU: the worker's stream, and a second stream for copies ahead. See Staging.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/devices/cuda/cuda_memory.hpp"
#include "worker/devices/cuda/file_feed.hpp"
#include "worker/devices/cuda/kernels.hpp"
#include "worker/devices/cuda/owners.hpp"

namespace syncrun::detail::worker::devices::cuda {

class CudaLanes final : public StagingLanes {
 public:
  CudaLanes(const DeviceContext& context, CudaMemory& memory);

  Block allocate(std::size_t bytes, Effort effort) override;
  void release(void* memory) noexcept override { pool_.release(memory); }
  void bring(void* to, const SharedRows& from, const RowsWanted& wanted, Lane lane) override;
  void gather_local(void* to, const std::byte* array, std::size_t row_bytes, const std::int64_t* indices,
                    std::int64_t rows) override;
  void start(Lane lane) override;
  void forget_requests() noexcept override;
  void mark(Lane lane) override;
  void follow(Lane lane) override;
  void await_ahead() noexcept override;

  /// The memory of the rows. See MemoryPool.
  std::size_t held_bytes() const noexcept { return pool_.held_bytes(); }
  std::size_t free_bytes() const noexcept { return pool_.free_bytes(); }
  void trim() noexcept { pool_.trim(); }

 private:
  StreamView stream_of(Lane lane) const noexcept { return lane == Lane::work ? work_ : StreamView(ahead_); }
  void bring_shared(void* to, const SharedRows& from, const RowsWanted& wanted, StreamView on);

  const DeviceContext& context_;
  CudaMemory& memory_;  // has the worker's stream, and the device's other pool
  PinnedPages& pinned_;
  FileFeed feed_;
  MemoryPool pool_;  // separate from the device's pool, because two streams use these blocks
  StreamView work_;
  Stream ahead_;
  std::array<Event, 2> marks_;  // by lane
  std::vector<kernels::GatherJob> jobs_;
  bool is_local_ = false;  // some jobs read device memory
};

}  // namespace syncrun::detail::worker::devices::cuda
