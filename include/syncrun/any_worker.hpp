#pragma once

// What a replicated function can ask of the worker it runs on, whatever its device is: the base of CpuWorker and CudaWorker.

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/names.hpp"
#include "syncrun/detail/worker_seam.hpp"

namespace syncrun {

enum class LogLevel : std::uint8_t;

/// A worker during a call. Replicated functions take a CpuWorker& or a CudaWorker&, not this.
class SYNCRUN_EXPORT AnyWorker {
 public:
  AnyWorker(const AnyWorker&) = delete;
  AnyWorker& operator=(const AnyWorker&) = delete;

  int rank() const noexcept;
  int world_size() const noexcept;
  /// "cpu3" or "cuda3".
  std::string_view device() const noexcept;

  /// Rows this rank computes in the current slice; 1 where the call has no scattered or sliced argument.
  std::int64_t rows() const noexcept;
  /// Position of this slice's first row in the rows of the whole call.
  std::int64_t first_row() const noexcept;
  /// The current slice, from 0.
  int slice() const noexcept;

  /// Whether the caller wants this output (see Function::only): one that it does not want need not be computed.
  template <auto kOutput>  // &Stats::mean, or its number
  bool wants() const noexcept {
    return wants(detail::output_index<kOutput>());
  }
  bool wants(std::size_t output) const noexcept;

  /// Memory of the device, of at least `elements` elements, that stays allocated between calls and is overwritten by the
  /// next use; not initialised. One block per worker: a second request in the same call may move it. Throws Error (system).
  template <Element T>
  std::span<T> scratch(std::int64_t elements) {
    const std::array<std::int64_t, 1> extents{elements};
    return {static_cast<T*>(scratch_bytes(detail::checked_size(dtype_of<T>, extents))),
            static_cast<std::size_t>(elements)};
  }

  /// Random numbers of this rank for host code, seeded from the session's seed and the rank; state is kept between calls.
  std::mt19937_64& rng() noexcept;

  /// Writes one line through the worker's logger.
  void log(LogLevel level, std::string_view message);

 protected:
  explicit AnyWorker(detail::WorkerCore& core) noexcept : core_(&core) {}
  ~AnyWorker() = default;

 private:
  void* scratch_bytes(std::size_t bytes);
  detail::WorkerCore* core_;

 public:
  /// The framework's own entry.
  detail::WorkerCore& core() const noexcept { return *core_; }
};

/// Severity of a log line.
enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };

}  // namespace syncrun
