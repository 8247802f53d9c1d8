#pragma once

// AnyWorker: the part of a worker's interface that does not depend on its device. It is the base of CpuWorker and
// CudaWorker.

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/names.hpp"
#include "syncrun/detail/worker_interface.hpp"

namespace syncrun {

enum class LogLevel : std::uint8_t;

/// The worker that runs the current call. Replicated functions take a CpuWorker& or a CudaWorker&, not this class.
class SYNCRUN_EXPORT AnyWorker {
 public:
  AnyWorker(const AnyWorker&) = delete;
  AnyWorker& operator=(const AnyWorker&) = delete;

  /// The rank of this worker, from 0, and the number of ranks (world_size) in the session.
  int rank() const noexcept;
  int world_size() const noexcept;
  /// The position of this rank among the ranks on the same node, and how many there are (local_world_size).
  int local_rank() const noexcept;
  int local_world_size() const noexcept;
  /// The node of this rank, from 0, and the number of nodes (node_count). Ranks are numbered node by node.
  int node() const noexcept;
  int node_count() const noexcept;
  /// The name of the device: "cpu3" or "cuda3".
  std::string_view device() const noexcept;

  /// The number of rows that this rank computes in the current slice. The number is 1 if the call has no rows: no
  /// Scattered or Sliced argument, and no CallOptions::rows.
  std::int64_t rows() const noexcept;
  /// The position of this slice's first row among the rows of the whole call. 0 if the call has no rows.
  std::int64_t first_row() const noexcept;
  /// The number of the current slice, from 0.
  int slice() const noexcept;

  /// Whether the caller requested this output (see Function::only). The body need not compute an output that the caller
  /// did not request.
  template <auto kOutput>  // &Stats::mean, or its number
  bool wants() const noexcept {
    return wants(detail::output_index<kOutput>());
  }
  bool wants(std::size_t output) const noexcept;

  /// Returns a block of device memory with room for `elements` elements. The memory is not initialised. The worker has
  /// only one such block and keeps it between calls. The next request returns the same memory, or a new block if more
  /// memory is needed. So a request makes the result of an earlier request invalid. Throws Error (system) if there is
  /// not enough memory.
  template <Element T>
  std::span<T> scratch(std::int64_t elements) {
    const std::array<std::int64_t, 1> extents{elements};
    return {static_cast<T*>(detail::scratch_bytes(*core_, detail::checked_size(dtype_of<T>, extents))),
            static_cast<std::size_t>(elements)};
  }

  /// A random number generator of this rank for host code. Its seed is derived from the session's seed and the rank.
  /// The generator keeps its state between calls.
  std::mt19937_64& rng() noexcept;

  /// Writes one line through the worker's logger.
  void log(LogLevel level, std::string_view message);

 protected:
  explicit AnyWorker(detail::CommandLoop& core) noexcept : core_(&core) {}
  ~AnyWorker() = default;

 private:
  friend struct detail::HandleAccess;

  detail::CommandLoop* core_;
};

/// The severity of a log line: trace, debug, info, warning or error. off: no line is logged.
enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };

}  // namespace syncrun
