#pragma once

// all_reduce by kernels that write to the peers' memory. Every rank launches the same ones in the same order; they meet in
// the memory that each has opened to the others, so that nothing of the host's is in the way.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::kernels {

inline constexpr int kMostPeers = 16;

/// As all ranks see them: where each one's memory is in this process. Passed to kernels by value.
struct Peers {
  int rank;
  int size;
  std::byte* memory[kMostPeers];
  const int* called_off;  // pinned host memory: once it is not 0, whoever waits for a peer gives up
};

/// Bytes of each rank's memory, which is zero before the first kernel.
std::size_t peer_memory_bytes(int ranks) noexcept;

/// Up to here every rank sends all it has to everybody, each value with the mark that says it has arrived.
__host__ __device__ constexpr std::size_t most_line_bytes(int ranks) noexcept {
  return (std::size_t{1} << 20U) / static_cast<std::size_t>(ranks < 2 ? 1 : ranks - 1) / 16 * 16;
}
/// From above the least to the most every rank reduces a share, and sends the result to everybody.
inline constexpr std::size_t kLeastShareBytes = std::size_t{1} << 20U;
inline constexpr std::size_t kMostShareBytes = std::size_t{16} << 20U;

/// Whether that is faster than NCCL, as measured with two and four H200s (docs/benchmarks.md).
constexpr bool peers_are_faster(std::size_t bytes, int ranks) noexcept {
  return bytes <= most_line_bytes(ranks) || (bytes > kLeastShareBytes && bytes <= kMostShareBytes);
}

/// Brings them to the device now: CUDA may wait for the device when it loads one at its first launch.
void load_peer_kernels();

/// How many multiprocessors an all_reduce may take: all, or few, where there is other work for them.
enum class Breadth : bool { all, few };

/// What is reduced, up to kMostShareBytes, and how: the same on every rank but for values and factor.
struct PeerReduction {
  DType dtype;
  Reduction reduction;
  void* values;
  std::size_t elements;
  /// For avg what this rank's values are multiplied by before, rounded to their type; 1 elsewhere. 0 counts them as zero,
  /// whatever they are.
  double factor;
  Breadth breadth;
};

/// What is averaged by copies among the ranks' memory, up to kMostShareBytes.
struct PeerAverage {
  DType dtype;
  void* values;  // at a multiple of 16 bytes
  std::size_t elements;
  double factors[kMostPeers];  // what each rank's values count; 0 counts them as zero, whatever they are
};

struct ByteRange {
  std::size_t begin;
  std::size_t end;
  std::size_t count() const noexcept { return end - begin; }
};
/// The part of so many bytes that a rank reduces; begins at a multiple of 16.
ByteRange share_of_bytes(std::size_t bytes, int rank, int ranks) noexcept;
/// Where rank `at` finds what `from` brings to its share.
std::byte* place_of_share(const Peers& peers, int at, int from) noexcept;
/// Where rank `at` finds what the others have reduced, by its place in the values.
std::byte* place_of_results(const Peers& peers, int at) noexcept;
/// This rank's share, in place and in rank order, of its own values and of what the peers have brought.
void average_share(const Peers& peers, const PeerAverage& what, cudaStream_t stream);

/// In place, in rank order: the same bits on every rank.
void peer_all_reduce(const Peers& peers, const PeerReduction& what, cudaStream_t stream);

}  // namespace syncrun::detail::kernels
