#pragma once

// Results of replicated functions: each says in its type how the values of all ranks become one.
//
//   struct Stats { Avg<float, 1> mean; Max<float, 1> max; };
//   Stats column_stats(CpuWorker& worker, Scattered<const float, 2> x);
//
// The body returns its own values; the caller gets the same struct with the reduced ones.

#include <cstring>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

class CpuWorker;
class CudaWorker;

namespace detail {

template <Reduction kReduction, class T>
constexpr bool kCanReduce =
    kReduction == Reduction::gather || (kReduction == Reduction::avg ? FloatingElement<T> : !std::is_same_v<T, bool>);
}  // namespace detail

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
  /// Worker: a zero-filled result in the device's memory, to be filled by the body. Throws Error (system) when memory
  /// runs out.
  Output(CpuWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(detail::allocate_output(worker, detail::checked_size(dtype_of<T>, shape.extents()))) {}
  Output(CudaWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(detail::allocate_output(worker, detail::checked_size(dtype_of<T>, shape.extents()))) {}
  /// Worker: a result copied from host memory of the body's own. Throws Error (usage) unless the values fill the shape.
  Output(std::span<const T> values, const Shape<N>& shape) : shape_(shape) {
    detail::check_count(values.size(), shape.extents());
    buffer_ = detail::allocate_on_heap(values.size_bytes());
    if (!values.empty()) std::memcpy(buffer_.data(), values.data(), values.size_bytes());
  }
  /// The framework: takes over memory.
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

  /// The framework: gives up the memory.
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

  /// CUDA worker: a number that the body's work leaves in device memory. Read in stream order after the body's work, so
  /// that the body need not wait for it; the memory stays the body's.
  static constexpr Output in_device_memory(const T* place) noexcept {
    Output output;
    output.place_ = place;
    return output;
  }
  /// The framework: where the number is; null if it is value().
  constexpr const T* place() const noexcept { return place_; }

 private:
  T value_{};
  const T* place_ = nullptr;
};

// clang-format off
/// Mean over all rows: each rank counts by the rows it computed.
template <Element T, std::size_t N = 0> using Avg = Output<Reduction::avg, T, N>;
/// Sum over the ranks, in rank order.
template <Element T, std::size_t N = 0> using Sum = Output<Reduction::sum, T, N>;
/// Element-wise minimum over the ranks.
template <Element T, std::size_t N = 0> using Min = Output<Reduction::min, T, N>;
/// Element-wise maximum over the ranks.
template <Element T, std::size_t N = 0> using Max = Output<Reduction::max, T, N>;
/// Element-wise product over the ranks, in rank order.
template <Element T, std::size_t N = 0> using Prod = Output<Reduction::prod, T, N>;
/// The rows of all ranks, one after the other. Extents behind the first must agree.
template <Element T, std::size_t N = 1> using Gather = Output<Reduction::gather, T, N>;
// clang-format on

/// Each rank's own value, one behind the other: a Gather of one row per rank (with slices, of one per slice of each
/// rank), whose N counts the dimension of the ranks. The body gives its own value of N-1 dimensions and finds it as row 0;
/// ranks without rows of the call have none.
template <Element T, std::size_t N = 1>
class Stack : public Output<Reduction::gather, T, N> {
  static_assert(N >= 1, "a Stack has the dimension of the ranks: N is at least 1");
  using Base = Output<Reduction::gather, T, N>;

 public:
  Stack() = default;
  /// Worker: zero-filled, in the device's memory.
  Stack(CpuWorker& worker, const Shape<N - 1>& own) : Base(worker, as_row(own)) {}
  Stack(CudaWorker& worker, const Shape<N - 1>& own) : Base(worker, as_row(own)) {}
  /// Worker: copied from host memory of the body's own.
  Stack(std::span<const T> values, const Shape<N - 1>& own) : Base(values, as_row(own)) {}
  Stack(T value)  // NOLINT(google-explicit-constructor): .loss = loss
    requires(N == 1)
      : Base(std::span<const T>(&value, 1), Shape<1>(1)) {}
  /// The framework: takes over memory.
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
