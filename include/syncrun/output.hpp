#pragma once

// Result types of replicated functions. The type of a result says how the values of all ranks are combined into one.
//
//   struct Stats { Avg<float, 1> mean; Max<float, 1> max; };
//   Stats column_stats(CpuWorker& worker, Scattered<const float, 2> x);
//
// Each rank's body returns that rank's values. The caller gets the same struct with the reduced values.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/result_array.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

class CpuWorker;
class CudaWorker;

/// A result that is an array of N >= 1 dimensions. The body makes it from the worker and a shape, and fills it, or makes it
/// from values in host memory and a shape. Movable, not copyable.
template <Reduction kReduction, Element T, std::size_t N>
class Output : public detail::ResultArray<T, N> {
  static_assert(kReduction != Reduction::avg || FloatingElement<T>, "an average needs a floating-point element type");
  static_assert(kReduction == Reduction::avg || detail::kCanReduce<kReduction, T>, "bool can be gathered, not reduced");
  using Base = detail::ResultArray<T, N>;

 public:
  /// How the values of all ranks become one.
  static constexpr Reduction reduction = kReduction;

  Output() = default;
  using Base::Base;

  /// A copy of all elements, in row-major order.
  std::vector<T> to_vector() const { return {this->begin(), this->end()}; }

 protected:
  friend struct detail::HandleAccess;
  /// Takes over memory.
  Output(const Shape<N>& shape, detail::OutputBuffer buffer) noexcept : Base(shape, std::move(buffer)) {}
};

/// A result that is one number.
template <Reduction kReduction, Element T>
class Output<kReduction, T, 0> {
  static_assert(kReduction != Reduction::avg || FloatingElement<T>, "an average needs a floating-point element type");
  static_assert(kReduction != Reduction::gather, "a number per rank is gathered as Gather<T, 1> of one row");
  static_assert(kReduction == Reduction::avg || detail::kCanReduce<kReduction, T>, "bool can be gathered, not reduced");

 public:
  using element_type = T;
  /// How the values of all ranks become one.
  static constexpr Reduction reduction = kReduction;
  /// A number has no dimensions.
  static constexpr std::size_t dimensions = 0;

  constexpr Output() = default;
  /// The number that the body returns: `return loss;`.
  constexpr Output(T value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor): return loss;
  /// The same as value().
  constexpr operator T() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)
  /// The number: on a worker, that of this rank; in the master, that of all ranks.
  constexpr T value() const noexcept { return value_; }

  /// Called by a body on a CUDA device: makes a result from a number in device memory. The body's work on the stream
  /// writes the number, and the worker reads it in stream order, after that work. So the body does not have to wait for
  /// its work. The body still owns the memory.
  static constexpr Output in_device_memory(const T* place) noexcept {
    Output output;
    output.place_ = place;
    return output;
  }

 private:
  friend struct detail::HandleAccess;

  T value_{};
  const T* place_ = nullptr;  // the device address of the number; null if it is value_
};

// clang-format off
/// Mean over all rows. The weight of each rank is the number of rows that it computed.
template <Element T, std::size_t N = 0> using Avg = Output<Reduction::avg, T, N>;
/// Sum over the ranks, in rank order.
template <Element T, std::size_t N = 0> using Sum = Output<Reduction::sum, T, N>;
/// Element-wise minimum over the ranks.
template <Element T, std::size_t N = 0> using Min = Output<Reduction::min, T, N>;
/// Element-wise maximum over the ranks.
template <Element T, std::size_t N = 0> using Max = Output<Reduction::max, T, N>;
/// Element-wise product over the ranks, in rank order.
template <Element T, std::size_t N = 0> using Prod = Output<Reduction::prod, T, N>;
/// The rows of all ranks, concatenated in rank order. All extents except the first must be equal on all ranks.
template <Element T, std::size_t N = 1> using Gather = Output<Reduction::gather, T, N>;
// clang-format on

/// Collects one value from each run of the body. The values are the rows of the result, in rank order. A rank adds one
/// row for each of its slices, and none if it received no input rows. The body constructs the Stack from its own value,
/// which has N-1 dimensions. In the body, the Stack has only this row.
template <Element T, std::size_t N = 1>
class Stack : public Output<Reduction::gather, T, N> {
  static_assert(N >= 1, "a Stack has the dimension of the ranks: N is at least 1");
  using Base = Output<Reduction::gather, T, N>;

 public:
  Stack() = default;
  /// Called by the body: makes a zero-filled value in the device's memory.
  Stack(CpuWorker& worker, const Shape<N - 1>& own) : Base(worker, as_row(own)) {}
  Stack(CudaWorker& worker, const Shape<N - 1>& own) : Base(worker, as_row(own)) {}
  /// Called by the body: copies the value from host memory.
  Stack(std::span<const T> values, const Shape<N - 1>& own) : Base(values, as_row(own)) {}
  Stack(T value)  // NOLINT(google-explicit-constructor): .loss = loss
    requires(N == 1)
      : Base(std::span<const T>(&value, 1), Shape<1>(1)) {}

 private:
  friend struct detail::HandleAccess;
  Stack(const Shape<N>& shape, detail::OutputBuffer buffer) noexcept : Base(shape, std::move(buffer)) {}
  static Shape<N> as_row(const Shape<N - 1>& own) noexcept {
    Shape<N> shape;
    shape[0] = 1;
    for (std::size_t i = 1; i < N; ++i) shape[i] = own[i - 1];
    return shape;
  }
};

}  // namespace syncrun
