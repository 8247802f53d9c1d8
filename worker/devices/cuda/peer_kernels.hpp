#pragma once

// all_reduce with kernels that write to the memory of peers. Every rank launches the same kernels in the same order.
// They wait for each other through memory that each rank shares with the others, without the host.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

inline constexpr int kMostPeers = 16;

/// The ranks, with the address of each rank's memory in this process. Passed to kernels by value.
struct Peers {
  int rank;
  int size;
  std::byte* memory[kMostPeers];
  const int* called_off;  // pinned host memory: if it is not 0, waits for peers end
};

/// The size of each rank's memory. The memory must be zero before the first kernel.
std::size_t peer_memory_bytes(int ranks) noexcept;

/// Up to this size, every rank sends all its values to all others. Each value comes with a mark that shows that it has
/// arrived.
__host__ __device__ constexpr std::size_t most_line_bytes(int ranks) noexcept {
  return (std::size_t{1} << 20U) / static_cast<std::size_t>(ranks < 2 ? 1 : ranks - 1) / 16 * 16;
}
/// Above the least and up to the most, every rank reduces a share and sends the result to all others.
inline constexpr std::size_t kLeastShareBytes = std::size_t{1} << 20U;
inline constexpr std::size_t kMostShareBytes = std::size_t{16} << 20U;

/// Whether these kernels are faster than NCCL, as measured with two and four H200s (docs/benchmarks.md).
constexpr bool peers_are_faster(std::size_t bytes, int ranks) noexcept {
  return bytes <= most_line_bytes(ranks) || (bytes > kLeastShareBytes && bytes <= kMostShareBytes);
}

/// Loads the kernels now. CUDA may wait for the device when it loads a kernel at its first launch.
void load_peer_kernels();

/// How many multiprocessors an all_reduce may use: all, or few if they have other work.
enum class Breadth : bool { all, few };

/// What is reduced, up to kMostShareBytes, and how. All members except values and factor must be the same on every
/// rank.
struct PeerReduction {
  DType dtype;
  Reduction reduction;
  void* values;
  std::size_t elements;
  /// For avg, the factor by which this rank's values are multiplied before they are combined. The products are rounded
  /// to the type of the values. For other reductions, 1. If it is 0, the values count as zero, even if they are NaN.
  double factor;
  Breadth breadth;
};

/// What is averaged by copies between the memories of the ranks, up to kMostShareBytes.
struct PeerAverage {
  DType dtype;
  void* values;  // at a multiple of 16 bytes
  std::size_t elements;
  double factors[kMostPeers];  // by rank; values with factor 0 count as zero, even if they are NaN
};

struct ByteRange {
  std::size_t begin;
  std::size_t end;
  std::size_t count() const noexcept { return end - begin; }
};
/// The part of `bytes` bytes that a rank reduces. It begins at a multiple of 16.
ByteRange share_of_bytes(std::size_t bytes, int rank, int ranks) noexcept;
/// Where rank `from` writes its values of the share of rank `at`, in the memory of rank `at`.
std::byte* place_of_share(const Peers& peers, int at, int from) noexcept;
/// Where the other ranks write their results, in the memory of rank `at`. A result has the same offset here as in the
/// values.
std::byte* place_of_results(const Peers& peers, int at) noexcept;
/// Averages this rank's share, in place and in rank order, from its own values and those that the peers have written.
void average_share(const Peers& peers, const PeerAverage& what, cudaStream_t stream);

/// Works in place and in rank order, so all ranks get the same bits.
void peer_all_reduce(const Peers& peers, const PeerReduction& what, cudaStream_t stream);

}  // namespace syncrun::detail::worker::devices::cuda::kernels
