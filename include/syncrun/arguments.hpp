#pragma once

// Parameter types of replicated functions. The type of a parameter says what happens to its argument.
//
//   in the signature         the body gets                               the caller passes
//   Scattered<const T, N>    its own rows                                Data<T, N>
//   Broadcast<const T, N>    the whole array                             Data<T, N>
//   T (trivially copyable)   the same value everywhere                   a value
//   std::string_view         the same text everywhere, in host memory    a text
//   PerWorker<T>             its own value                               one value per rank
//   Local<T, N>              its own copy, to read and write             Shared<T, N>, Value<T, N>
//   Local<const T, N>        its own copy, to read                       Shared<T, N>, Value<T, N>
//   Sliced<const T, N>       the selected rows of its own copy           Shared<T, N>, Value<T, N>
//   Update<Op, T, N>         the original to read, a new value to write  Shared<T, N>, Value<T, N>
//   DeviceScalar<T>          a value in device memory                    a value
//   CpuWorker&, CudaWorker&  the worker that runs the body               nothing
//   Comm&                    the communicator of that worker             nothing
//
// On a CUDA device, the arrays that the body gets are in device memory.

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "syncrun/array.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

/// This worker's rows of an input. Rows are divided in rank order: as evenly as possible, or by the weights of
/// Session::set_weights. Every row is on exactly one rank. If CallOptions::slices is greater than 1, the body runs once
/// per slice, and this view has the rows of the current slice.
template <class T, std::size_t N>
class Scattered : public ArrayView<T, N> {
  static_assert(std::is_const_v<T>, "inputs are read-only: write Scattered<const T, N>");
  static_assert(N >= 1, "a scattered input needs rows to scatter: N is at least 1");

 public:
  /// Syncrun makes it for each slice of a call.
  Scattered(const ArrayView<T, N>& rows, std::int64_t first_row) noexcept
      : ArrayView<T, N>(rows), first_row_(first_row) {}
  /// The position of row 0 of this view among the rows of the whole call. If the call has a batch (CallOptions::batch),
  /// this is a position in the batch.
  std::int64_t first_row() const noexcept { return first_row_; }

 private:
  std::int64_t first_row_ = 0;
};

/// The whole of an input, the same on every rank. CallOptions::batch and CallOptions::slices do not affect it.
template <class T, std::size_t N>
class Broadcast : public ArrayView<T, N> {
  static_assert(std::is_const_v<T>, "inputs are read-only: write Broadcast<const T, N>");

 public:
  /// Syncrun makes it for each call.
  explicit Broadcast(const ArrayView<T, N>& whole) noexcept : ArrayView<T, N>(whole) {}
};

/// This rank's value. The caller passes one value per rank.
template <class T>
class PerWorker {
  static_assert(std::is_trivially_copyable_v<T>, "values cross processes as bytes: T must be trivially copyable");

 public:
  /// Syncrun makes it for each call.
  explicit PerWorker(const T& value) noexcept : value_(value) {}
  /// The value. A PerWorker also converts to it.
  const T& value() const noexcept { return value_; }
  /// The same as value().
  operator const T&() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  T value_;
};

/// This rank's own copy of a shared variable, or of a Value. The body can read it and write to it in place. With a
/// const T, the body only reads it. Then calls that only read the variable do not depend on this call.
template <class T, std::size_t N>
class Local : public ArrayView<T, N> {
 public:
  /// Syncrun makes it for each call.
  explicit Local(const ArrayView<T, N>& copy) noexcept : ArrayView<T, N>(copy) {}
};

/// Some rows of this rank's own copy of a shared variable. CallOptions::batch_s and CallOptions::slices select these
/// rows.
template <class T, std::size_t N>
class Sliced : public ArrayView<T, N> {
  static_assert(std::is_const_v<T>, "sliced shared variables are read-only: write Sliced<const T, N>");
  static_assert(N >= 1, "a sliced variable needs rows to select from: N is at least 1");

 public:
  /// Syncrun makes it for each slice of a call.
  explicit Sliced(const ArrayView<T, N>& rows) noexcept : ArrayView<T, N>(rows) {}
};

/// An update of a shared variable. Every slice of the call reads the original and writes a new value. Op combines the
/// new values of the slices. With avg, the weight of each slice is its number of rows. Each worker stores the
/// result in its copy once, after the body has returned on every rank without an error. A rank without rows keeps its
/// original.
template <class Op, class T, std::size_t N>
class Update {
  static_assert(!std::is_const_v<T>, "Update<Op, T, N> writes a new value: drop the const");

 public:
  /// Syncrun makes it for each slice of a call.
  Update(const ArrayView<const T, N>& original, const ArrayView<T, N>& value) noexcept
      : original_(original), value_(value) {}
  /// The variable as it was before the call.
  const ArrayView<const T, N>& original() const noexcept { return original_; }
  /// The place for the new value of this slice. It is zero at first. With several slices, Op combines the values of all
  /// slices. If Op is sum and every slice writes the original plus something, the result contains the original once per
  /// slice. To avoid this, include the original in one slice only (CpuWorker::slice() == 0).
  const ArrayView<T, N>& value() const noexcept { return value_; }

 private:
  ArrayView<const T, N> original_;
  ArrayView<T, N> value_;
};

/// The address of a value in device memory. It converts to `const T*`, which kernels take. To read through it on the
/// host does not compile, because the host cannot read a GPU's memory: it calls DeviceScalar::value(). The compiler does
/// not see what host code does with the converted pointer.
template <class T>
class DeviceAddress {
 public:
  /// Syncrun makes it.
  explicit DeviceAddress(const T* place) noexcept : place_(place) {}
  /// The address itself, for a kernel.
  operator const T*() const noexcept { return place_; }  // NOLINT(google-explicit-constructor)

  /// Does not compile, and says why: the host cannot read there.
  const T& operator*() const { return refuse(); }
  /// Does not compile, as above.
  const T* operator->() const { return &refuse(); }
  /// Does not compile, as above.
  const T& operator[](std::ptrdiff_t) const { return refuse(); }

 private:
  [[noreturn]] static const T& refuse() {
    static_assert(sizeof(T) == 0,
                  "host code cannot read device memory: call value() of the DeviceScalar in place of data(). If a "
                  "kernel reads it, pass it as a const T*");
  }

  const T* place_;
};

/// A small value in the device's memory. It is the same on every rank. It can change from call to call. A replayable
/// function is recorded once as a CUDA graph, and later calls replay the recording (see replayable() in
/// replayable.hpp). It reads such a value from device memory. A parameter by value would keep the value of the
/// recorded call, so the body of replayable() has none.
template <class T>
class DeviceScalar {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 64,
                "a DeviceScalar is a plain value of up to 64 bytes");

 public:
  /// Syncrun makes it for each call.
  explicit DeviceScalar(const detail::ScalarPlaces& places) noexcept : places_(places) {}
  /// The address of the value in device memory. Work on the stream of a CUDA device can read the value there.
  DeviceAddress<T> data() const noexcept { return DeviceAddress<T>(static_cast<const T*>(places_.device)); }
  /// The value, for host code on any device. It does not wait for the device. Throws Error (usage) while the body is
  /// captured as a CUDA graph: a replay of the graph would keep this value for ever. A body of replayable_if_possible(),
  /// such as a loss of LibTorch, then runs without a graph.
  T value() const {
    if (*places_.is_captured) detail::refuse_captured_value();
    std::array<std::byte, sizeof(T)> bytes;
    std::memcpy(bytes.data(), places_.host, sizeof(T));
    return std::bit_cast<T>(bytes);
  }

 private:
  detail::ScalarPlaces places_;
};

}  // namespace syncrun
