#pragma once

// The array that a body fills and returns as a result. Output and Keep derive from it.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/worker_interface.hpp"

namespace syncrun {

class CpuWorker;
class CudaWorker;

namespace detail {

/// An array of N dimensions, in the device's memory or on the heap. Movable, not copyable.
template <Element T, std::size_t N>
class ResultArray {
 public:
  using element_type = T;
  static constexpr std::size_t dimensions = N;

  ResultArray() = default;
  /// Called by the body: makes a zero-filled result in the device's memory. The body then fills it. Throws Error
  /// (system) if there is not enough memory.
  ResultArray(CpuWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(allocate_output(worker, checked_size(dtype_of<T>, shape.extents()))) {}
  ResultArray(CudaWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(allocate_output(worker, checked_size(dtype_of<T>, shape.extents()))) {}
  /// Called by the body: makes a result and copies values into it from host memory. Throws Error (usage) if the number
  /// of values does not match the shape.
  ResultArray(std::span<const T> values, const Shape<N>& shape) : shape_(shape) {
    check_count(values.size(), shape.extents());
    buffer_ = allocate_on_heap(values.size_bytes());
    if (!values.empty()) std::memcpy(buffer_.data(), values.data(), values.size_bytes());
  }

  /// The extents: rows first.
  const Shape<N>& shape() const noexcept { return shape_; }
  /// The first extent; 1 for a scalar.
  std::int64_t rows() const noexcept { return shape_.rows(); }
  /// The number of elements.
  std::int64_t size() const noexcept { return shape_.elements(); }
  /// The address of the first element: in the device's memory, or on the heap if the body made the result from values.
  T* data() const noexcept { return static_cast<T*>(buffer_.data()); }
  /// A view of all elements.
  ArrayView<T, N> view() const noexcept { return {data(), shape_}; }
  /// All elements, in row-major order.
  std::span<T> span() const noexcept { return {data(), static_cast<std::size_t>(size())}; }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + size(); }
  /// Row `row`: an element if the array has one dimension, else a view of N-1 dimensions.
  decltype(auto) operator[](std::int64_t row) const noexcept { return view()[row]; }
  /// The element at these indices, one per dimension. Does not check their range.
  template <std::integral... Index>
  T& operator()(Index... index) const noexcept {
    return view()(index...);
  }

 protected:
  /// Takes over memory.
  ResultArray(const Shape<N>& shape, OutputBuffer buffer) noexcept : shape_(shape), buffer_(std::move(buffer)) {}
  ~ResultArray() = default;
  ResultArray(ResultArray&&) = default;
  ResultArray& operator=(ResultArray&&) = default;

 private:
  friend struct HandleAccess;

  Shape<N> shape_{};
  OutputBuffer buffer_;
};

}  // namespace detail
}  // namespace syncrun
