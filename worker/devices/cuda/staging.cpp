#include "worker/devices/cuda/staging.hpp"

#include <utility>

#include "syncrun/error.hpp"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail {

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

}  // namespace

Staging::Staging(PinnedPages& pinned, const DeviceContext& context, std::function<void()> trim_device)
    : pinned_(pinned),
      context_(context),
      trim_device_(std::move(trim_device)),
      feed_(context.interruption),
      copy_stream_(Stream::make(stream_priorities().least)),
      arrived_(Event::make()) {
  jobs_.reserve(kMaxArguments);
}

void* Staging::memory_of(Buffer& buffer, std::size_t bytes) {
  if (bytes > buffer.bytes || buffer.memory == nullptr) {
    if (buffer.memory != nullptr) pool_.release(buffer.memory);
    buffer.memory = nullptr;
    buffer.bytes = MemoryPool::block_bytes(bytes);  // the whole block, so that the address changes rarely
    buffer.memory = allocate(buffer.bytes);
  }
  return buffer.memory;
}

/// If there is too little memory for two sets of buffers, frees the other set. The command that read it has ended. Then
/// frees copies of Values that are valid elsewhere.
void* Staging::allocate(std::size_t bytes) {
  try {
    return pool_.allocate(bytes, "the rows of an argument");
  } catch (const Error&) {
    if (ahead_ != 0) throw;
    static_cast<void>(cudaStreamSynchronize(copy_stream_.get()));
    for (Buffer& other : buffers_[(command_ + 1) % 2]) {
      if (other.memory != nullptr) pool_.release(other.memory);
      other = Buffer{};
    }
    return allocate_with_spare(context_, bytes, [&] {
      trim_device_();
      return pool_.allocate(bytes, "the rows of an argument");
    });
  }
}

void* Staging::bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted, cudaStream_t stream) {
  const auto& [indices, first, rows] = wanted;
  const std::uint64_t command = ahead_ != 0 ? ahead_ : command_;
  Buffer& buffer = buffers_[command % 2][argument];
  if (ahead_ == 0 && buffer.command == command) {
    buffer.command = 0;  // later slices need other rows
    if (buffer.array == from.array && buffer.indices == indices && buffer.first == first && buffer.rows == rows &&
        buffer.row_bytes == from.row_bytes) {
      return buffer.memory;
    }
  }
  const std::size_t bytes = from.row_bytes * static_cast<std::size_t>(rows);
  void* const to = memory_of(buffer, bytes);
  if (ahead_ != 0) {
    buffer.command = ahead_;
    buffer.array = from.array;
    buffer.indices = indices;
    buffer.first = first;
    buffer.rows = rows;
    buffer.row_bytes = from.row_bytes;
  }
  if (bytes == 0) return to;
  const cudaStream_t on = ahead_ != 0 ? copy_stream_.get() : stream;
  if (from.file != nullptr) feed_.bring(to, from, wanted, on);
  else bring_shared(to, from, wanted, on);
  return to;
}

void Staging::bring_shared(void* to, const SharedRows& from, const RowsWanted& wanted, cudaStream_t on) {
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

void* Staging::gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                            const std::int64_t* indices, std::int64_t rows) {
  void* const to = memory_of(buffers_[command_ % 2][argument], row_bytes * static_cast<std::size_t>(rows));
  if (rows == 0) return to;
  pinned_.pin(indices, sizeof(*indices) * static_cast<std::size_t>(rows));
  jobs_.push_back({to, array, row_bytes, indices, rows});
  is_local_ = true;
  return to;
}

void Staging::flush(cudaStream_t stream) {
  if (arrived_ahead_ == command_) {
    check_cuda(cudaStreamWaitEvent(stream, arrived_.get(), 0), "cudaStreamWaitEvent");
    arrived_ahead_ = 0;
  }
  if (jobs_.empty()) return;
  kernels::gather_rows(jobs_, is_local_ ? kLocalBlocks : kBlocks, stream);
  is_local_ = false;
  jobs_.clear();
}

void Staging::abandon() noexcept {
  jobs_.clear();
  is_local_ = false;
  ahead_ = 0;
  arrived_ahead_ = 0;
  static_cast<void>(cudaStreamSynchronize(copy_stream_.get()));
  for (auto& set : buffers_) {
    for (Buffer& buffer : set) buffer.command = 0;
  }
}

void Staging::end_ahead() {
  if (!jobs_.empty()) kernels::gather_rows(jobs_, kBlocksAhead, copy_stream_.get());
  jobs_.clear();
  check_cuda(cudaEventRecord(arrived_.get(), copy_stream_.get()), "cudaEventRecord");
  arrived_ahead_ = ahead_;
  ahead_ = 0;
}

}  // namespace syncrun::detail
