#pragma once

// Parameter types of replicated functions: what happens to an argument is read from its type.
//
//   in the signature         the body gets                               the caller passes
//   Scattered<const T, N>    its own rows                                Data<T, N>
//   Broadcast<const T, N>    the whole array                             Data<T, N>
//   T (trivially copyable)   the same value everywhere                   a value
//   PerWorker<T>             its own value                               one value per rank
//   Local<T, N>              its own copy of a shared variable           Shared<T, N>
//   Sliced<const T, N>       the selected rows of its own copy           Shared<T, N>
//   Update<Op, T, N>         the original to read, a new value to write  Shared<T, N>
//   DeviceScalar<T>          where the device finds the value            a value
//   CpuWorker&, CudaWorker&  the worker it runs on                       nothing
//   Comm&                    its communicator                            nothing
//
// On a CUDA device the pointers of these views are device memory.

#include "syncrun/array.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

/// This worker's rows of an input. Rows are split as evenly as possible, in rank order, and every row is computed
/// exactly once. With `slices`, the rows of the current slice.
template <class T, std::size_t N>
class Scattered : public ArrayView<T, N> {
  static_assert(std::is_const_v<T>, "inputs are read-only: write Scattered<const T, N>");
  static_assert(N >= 1, "a scattered input needs rows to scatter: N is at least 1");

 public:
  Scattered(const ArrayView<T, N>& rows, std::int64_t first_row) noexcept
      : ArrayView<T, N>(rows), first_row_(first_row) {}
  /// Position of row 0 of this view in the rows of the whole call (in the batch, where one was given).
  std::int64_t first_row() const noexcept { return first_row_; }

 private:
  std::int64_t first_row_ = 0;
};

/// The whole of an input, the same on every rank. Not affected by `batch` and `slices`.
template <class T, std::size_t N>
class Broadcast : public ArrayView<T, N> {
  static_assert(std::is_const_v<T>, "inputs are read-only: write Broadcast<const T, N>");

 public:
  explicit Broadcast(const ArrayView<T, N>& whole) noexcept : ArrayView<T, N>(whole) {}
};

/// This rank's own value, of one per rank that the caller passed.
template <class T>
class PerWorker {
  static_assert(std::is_trivially_copyable_v<T>, "values cross processes as bytes: T must be trivially copyable");

 public:
  explicit PerWorker(const T& value) noexcept : value_(value) {}
  const T& value() const noexcept { return value_; }
  operator const T&() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  T value_;
};

/// This rank's own copy of a shared variable, to read and to write in place.
template <class T, std::size_t N>
class Local : public ArrayView<T, N> {
  static_assert(!std::is_const_v<T>, "Local<T, N> is this rank's copy to read and write: drop the const");

 public:
  explicit Local(const ArrayView<T, N>& copy) noexcept : ArrayView<T, N>(copy) {}
};

/// The rows of this rank's own copy of a shared variable that `batch_s` and `slices` select.
template <class T, std::size_t N>
class Sliced : public ArrayView<T, N> {
  static_assert(std::is_const_v<T>, "sliced shared variables are read-only: write Sliced<const T, N>");
  static_assert(N >= 1, "a sliced variable needs rows to select from: N is at least 1");

 public:
  explicit Sliced(const ArrayView<T, N>& rows) noexcept : ArrayView<T, N>(rows) {}
};

/// An update of a shared variable. Every slice reads the original and writes a new value; the new values of the slices
/// are combined by Op (avg is weighted by rows) and committed once, after every rank has returned without an error.
/// A rank without rows keeps its original.
template <class Op, class T, std::size_t N>
class Update {
  static_assert(!std::is_const_v<T>, "Update<Op, T, N> writes a new value: drop the const");

 public:
  Update(const ArrayView<const T, N>& original, const ArrayView<T, N>& value) noexcept
      : original_(original), value_(value) {}
  /// The variable as it was before the call.
  const ArrayView<const T, N>& original() const noexcept { return original_; }
  /// Where the new value of this slice goes; zero at first. With several slices the values are combined by Op: what
  /// adds to the original counts it once per slice, unless only one of them (CpuWorker::slice() == 0) brings it in.
  const ArrayView<T, N>& value() const noexcept { return value_; }

 private:
  ArrayView<const T, N> original_;
  ArrayView<T, N> value_;
};

/// A number that is the same on every rank and changes from call to call, in the device's memory: a replayable function
/// (see replayable) reads it there, since a by-value parameter would be the same for ever.
template <class T>
class DeviceScalar {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 64,
                "a DeviceScalar is a plain value of up to 64 bytes");

 public:
  explicit DeviceScalar(const T* place) noexcept : place_(place) {}
  /// In device memory, in stream order; on a CPU device to be read at once.
  const T* data() const noexcept { return place_; }

 private:
  const T* place_;
};

}  // namespace syncrun
