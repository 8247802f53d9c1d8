#include "worker/devices/cuda/file_feed.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "common/arrays/mapped_file.hpp"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

// Large enough that a copy runs at bus speed, small enough that reading and copying overlap within a batch.
constexpr std::size_t kBlockBytes = std::size_t{4} << 20U;
// One thread copies from the page cache at about 5 GB/s, and disks are faster with several requests at a time.
constexpr std::size_t kReaders = 4;
constexpr std::chrono::microseconds kPoll{20};

/// Thrown to end the waits of a reader when another one has failed.
struct GivenUp {};

}  // namespace

void FileFeed::make_blocks(std::size_t readers) {
  if (blocks_.size() < readers) blocks_.resize(readers);
  for (Blocks& blocks : blocks_) {
    for (Block& block : blocks) {  // also the blocks that an earlier attempt failed to make
      if (!block.memory) block.memory = PinnedMemory::make(kBlockBytes, "cudaHostAlloc for rows of a file");
      if (!block.is_free) block.is_free = Event::make();
    }
  }
}

void FileFeed::bring(void* to, const SharedRows& from, const RowsWanted& wanted, cudaStream_t stream) {
  const std::size_t bytes = from.row_bytes * static_cast<std::size_t>(wanted.rows);
  if (bytes == 0) return;
  const std::size_t pieces = (bytes + kBlockBytes - 1) / kBlockBytes;
  const std::size_t readers = std::min(pieces, kReaders);
  make_blocks(readers);
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  Job job{.to = static_cast<std::byte*>(to),
          .from = from,
          .wanted = wanted,
          .bytes = bytes,
          .stream = stream,
          .device = device};
  std::vector<std::exception_ptr> failures(readers);
  read_with_others(job, failures);
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// The first reader is the calling thread. It also checks for interruptions.
void FileFeed::read_with_others(Job& job, std::vector<std::exception_ptr>& failures) {
  const auto guarded = [&](std::size_t reader, const auto& work) noexcept {
    try {
      work();
    } catch (const GivenUp&) {  // another thread has the failure
    } catch (...) {
      failures[reader] = std::current_exception();
      job.is_given_up.store(true, std::memory_order_release);
    }
  };
  const std::function<void()> check_given_up = [&job] {
    if (job.is_given_up.load(std::memory_order_acquire)) throw GivenUp{};
  };

  std::vector<std::jthread> others;
  guarded(0, [&] {
    for (std::size_t reader = 1; reader < failures.size(); ++reader) {
      const auto work = [&, reader] {
        guarded(reader, [&] {
          check_cuda(cudaSetDevice(job.device), "cudaSetDevice");
          read_pieces(job, blocks_[reader], check_given_up);
        });
        job.readers.fetch_sub(1, std::memory_order_release);
      };
      job.readers.fetch_add(1, std::memory_order_relaxed);
      try {
        others.emplace_back(work);
      } catch (const std::system_error&) {  // no more threads available: the existing ones do the work
        job.readers.fetch_sub(1, std::memory_order_relaxed);
        break;
      }
    }
    read_pieces(job, blocks_[0], [&] {
      check_given_up();
      interruption_.check();
    });
    while (job.readers.load(std::memory_order_acquire) != 0) {
      interruption_.check();
      std::this_thread::sleep_for(kPoll);
    }
  });
}

/// Reads one piece after the other until no piece is left. Pieces are distributed among the threads. `check` throws an
/// exception to end the wait for a block.
void FileFeed::read_pieces(Job& job, Blocks& blocks, const std::function<void()>& check) {
  for (std::size_t turn = 0;; ++turn) {
    const std::size_t begin = job.next_piece.fetch_add(1, std::memory_order_relaxed) * kBlockBytes;
    if (begin >= job.bytes) return;
    const Block& block = blocks[turn % blocks.size()];
    for (cudaError_t code; (code = cudaEventQuery(block.is_free.get())) != cudaSuccess;) {
      if (code != cudaErrorNotReady) check_cuda(code, "copying rows of a file to the device");
      static_cast<void>(cudaGetLastError());  // clears the code "not ready", which must not be reported later
      check();
      std::this_thread::sleep_for(kPoll);
    }
    check();
    const std::size_t bytes = std::min(kBlockBytes, job.bytes - begin);
    read_piece(job, begin, block.data(), bytes);
    check_cuda(cudaMemcpyAsync(job.to + begin, block.data(), bytes, cudaMemcpyHostToDevice, job.stream),
               "copying rows of a file to the device");
    check_cuda(cudaEventRecord(block.is_free.get(), job.stream), "cudaEventRecord");
  }
}

/// Reads bytes [begin, begin + bytes) of the wanted rows, which are numbered as if they were stored one after the
/// other.
void FileFeed::read_piece(const Job& job, std::size_t begin, std::byte* to, std::size_t bytes) {
  const auto& [array, row_bytes, rows, file] = job.from;
  if (job.wanted.indices == nullptr) {
    return file->read(static_cast<std::size_t>(job.wanted.first) * row_bytes + begin, to, bytes);
  }
  file->read_rows(row_bytes, {job.wanted.indices, static_cast<std::size_t>(job.wanted.rows)}, begin, to, bytes);
}

}  // namespace syncrun::detail::worker::devices::cuda
