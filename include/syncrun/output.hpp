#pragma once

// Result types of replicated functions. The type of a result says how the values of all ranks are combined into one.
//
//   struct Stats { Avg<float, 1> mean; Max<float, 1> max; };
//   Stats column_stats(CpuWorker& worker, Scattered<const float, 2> x);
//
// Each rank's body returns that rank's values. The caller gets the same struct with the reduced values.

#include <cstring>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

class CpuWorker;
class CudaWorker;

/// A result that is an array of N >= 1 dimensions. Movable, not copyable.
template <Reduction kReduction, Element T, std::size_t N>
class Output {
  static_assert(kReduction != Reduction::avg || FloatingElement<T>, "an average needs a floating-point element type");
  static_assert(kReduction == Reduction::avg || detail::kCanReduce<kReduction, T>, "bool can be gathered, not reduced");

 public:
  using element_type = T;
  static constexpr Reduction reduction = kReduction;
  static constexpr std::size_t dimensions = N;

  Output() = default;
  /// Called by the body: makes a zero-filled result in the device's memory. The body then fills it. Throws Error
  /// (system) if there is not enough memory.
  Output(CpuWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(detail::allocate_output(worker, detail::checked_size(dtype_of<T>, shape.extents()))) {}
  Output(CudaWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(detail::allocate_output(worker, detail::checked_size(dtype_of<T>, shape.extents()))) {}
  /// Called by the body: makes a result and copies values into it from host memory. Throws Error (usage) if the number
  /// of values does not match the shape.
  Output(std::span<const T> values, const Shape<N>& shape) : shape_(shape) {
    detail::check_count(values.size(), shape.extents());
    buffer_ = detail::allocate_on_heap(values.size_bytes());
    if (!values.empty()) std::memcpy(buffer_.data(), values.data(), values.size_bytes());
  }
  /// For Syncrun's own code: takes over memory.
  Output(const Shape<N>& shape, detail::OutputBuffer buffer) noexcept : shape_(shape), buffer_(std::move(buffer)) {}

  const Shape<N>& shape() const noexcept { return shape_; }
  std::int64_t rows() const noexcept { return shape_.rows(); }
  std::int64_t size() const noexcept { return shape_.elements(); }
  T* data() const noexcept { return static_cast<T*>(buffer_.data()); }
  ArrayView<T, N> view() const noexcept { return {data(), shape_}; }
  std::span<T> span() const noexcept { return {data(), static_cast<std::size_t>(size())}; }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + size(); }
  decltype(auto) operator[](std::int64_t row) const noexcept { return view()[row]; }
  template <std::integral... Index>
  T& operator()(Index... index) const noexcept {
    return view()(index...);
  }
  std::vector<T> to_vector() const { return {begin(), end()}; }

  /// For Syncrun's own code: gives up the memory.
  detail::OutputBuffer release() noexcept { return std::move(buffer_); }

 private:
  Shape<N> shape_{};
  detail::OutputBuffer buffer_;
};

/// A result that is one number.
template <Reduction kReduction, Element T>
class Output<kReduction, T, 0> {
  static_assert(kReduction != Reduction::avg || FloatingElement<T>, "an average needs a floating-point element type");
  static_assert(kReduction != Reduction::gather, "a number per rank is gathered as Gather<T, 1> of one row");
  static_assert(kReduction == Reduction::avg || detail::kCanReduce<kReduction, T>, "bool can be gathered, not reduced");

 public:
  using element_type = T;
  static constexpr Reduction reduction = kReduction;
  static constexpr std::size_t dimensions = 0;

  constexpr Output() = default;
  constexpr Output(T value) noexcept : value_(value) {}     // NOLINT(google-explicit-constructor): return loss;
  constexpr operator T() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)
  constexpr T value() const noexcept { return value_; }

  /// Called by a body on a CUDA device: makes a result from a number in device memory. The body's work on the stream
  /// writes the number, and the worker reads it in stream order, after that work. So the body does not have to wait for
  /// its work. The body still owns the memory.
  static constexpr Output in_device_memory(const T* place) noexcept {
    Output output;
    output.place_ = place;
    return output;
  }
  /// For Syncrun's own code: the device address of the number; null if the number is stored in this object (see
  /// value()).
  constexpr const T* place() const noexcept { return place_; }

 private:
  T value_{};
  const T* place_ = nullptr;
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
  /// For Syncrun's own code: takes over memory.
  Stack(const Shape<N>& shape, detail::OutputBuffer buffer) noexcept : Base(shape, std::move(buffer)) {}

 private:
  static Shape<N> as_row(const Shape<N - 1>& own) noexcept {
    Shape<N> shape;
    shape[0] = 1;
    for (std::size_t i = 1; i < N; ++i) shape[i] = own[i - 1];
    return shape;
  }
};

}  // namespace syncrun
