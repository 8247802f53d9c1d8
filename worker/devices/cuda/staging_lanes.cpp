#include "worker/devices/cuda/staging_lanes.hpp"

#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

// The copy engine copies contiguous rows of at least this size, because it does not use multiprocessors. Smaller ones
// are part of the one kernel that gathers for all arguments. Rows by index are copied one by one if a row has at least
// kCopiedRowBytes.
constexpr std::size_t kCopiedBytes = std::size_t{64} << 10U;
constexpr std::size_t kCopiedRowBytes = std::size_t{1} << 20U;
// How many blocks gather. From host memory, they are enough to fill the bus with loads. More blocks would take
// multiprocessors from the work that the rows are for. From device memory, they are as many as possible.
constexpr int kBlocks = 128;
constexpr int kBlocksAhead = 32;
constexpr int kLocalBlocks = 4096;

constexpr const char* kWhatRows = "the rows of an argument";

}  // namespace

CudaLanes::CudaLanes(const DeviceContext& context, CudaMemory& memory)
    : context_(context),
      memory_(memory),
      pinned_(memory.pinned()),
      feed_(context.interruption),
      work_(memory.stream()),
      ahead_(Stream::make(stream_priorities().least)),
      marks_{Event::make(), Event::make()} {
  jobs_.reserve(kMaxArguments);
}

/// With `all`, also frees copies of Values that are valid elsewhere.
StagingLanes::Block CudaLanes::allocate(std::size_t bytes, Effort effort) {
  const std::size_t block_bytes = MemoryPool::block_bytes(bytes);
  if (effort == Effort::usual) return {pool_.allocate(block_bytes, kWhatRows), block_bytes};
  void* const memory = allocate_with_spare(context_, block_bytes, [&] {
    memory_.pool().trim();
    return pool_.allocate(block_bytes, kWhatRows);
  });
  return {memory, block_bytes};
}

void CudaLanes::bring(void* to, const SharedRows& from, const RowsWanted& wanted, Lane lane) {
  if (from.file != nullptr) feed_.bring(to, from, wanted, stream_of(lane));
  else bring_shared(to, from, wanted, stream_of(lane));
}

void CudaLanes::bring_shared(void* to, const SharedRows& from, const RowsWanted& wanted, StreamView on) {
  const auto& [indices, first, rows] = wanted;
  const std::size_t row_bytes = from.row_bytes;
  const std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
  const auto at = [&](std::int64_t row) { return from.array + row_bytes * static_cast<std::size_t>(row); };
  if (indices == nullptr) pinned_.pin(at(first), bytes);
  else pinned_.pin(from.array, from.bytes());
  if (indices == nullptr && bytes >= kCopiedBytes) {
    pinned_.copy_to_device(to, at(first), bytes, on);
  } else if (indices == nullptr) {
    jobs_.push_back({to, at(first), row_bytes, nullptr, rows});
  } else if (row_bytes < kCopiedRowBytes) {
    pinned_.pin(indices, sizeof(*indices) * static_cast<std::size_t>(rows));
    jobs_.push_back({to, from.array, row_bytes, indices, rows});
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      pinned_.copy_to_device(static_cast<std::byte*>(to) + row_bytes * static_cast<std::size_t>(i), at(indices[i]),
                             row_bytes, on);
    }
  }
}

void CudaLanes::gather_local(void* to, const std::byte* array, std::size_t row_bytes, const std::int64_t* indices,
                             std::int64_t rows) {
  pinned_.pin(indices, sizeof(*indices) * static_cast<std::size_t>(rows));
  jobs_.push_back({to, array, row_bytes, indices, rows});
  is_local_ = true;
}

void CudaLanes::start(Lane lane) {
  if (jobs_.empty()) return;
  const int blocks = lane == Lane::ahead ? kBlocksAhead : is_local_ ? kLocalBlocks : kBlocks;
  kernels::gather_rows(jobs_, blocks, stream_of(lane));
  forget_requests();
}

void CudaLanes::forget_requests() noexcept {
  jobs_.clear();
  is_local_ = false;
}

void CudaLanes::mark(Lane lane) {
  check_cuda(cudaEventRecord(marks_[static_cast<std::size_t>(lane)].get(), stream_of(lane)), "cudaEventRecord");
}

void CudaLanes::follow(Lane lane) {
  const Lane other = lane == Lane::work ? Lane::ahead : Lane::work;
  check_cuda(cudaStreamWaitEvent(stream_of(lane), marks_[static_cast<std::size_t>(other)].get(), 0),
             "cudaStreamWaitEvent");
}

void CudaLanes::await_ahead() noexcept { static_cast<void>(cudaStreamSynchronize(ahead_.get())); }

}  // namespace syncrun::detail::worker::devices::cuda
