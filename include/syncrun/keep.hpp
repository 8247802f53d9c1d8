#pragma once

// Keep: a result that stays on its device.

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/reduction.hpp"
#include "syncrun/value.hpp"

namespace syncrun {

class CpuWorker;
class CudaWorker;

/// A result that is an array of N dimensions and stays on the device that computed it. The caller receives a Value at
/// once, before the call has run. A function with such a result runs on one device (`f.on(device)`), without slices.
///
///   Keep<float, 2> product(CpuWorker& worker, Local<const float, 2> a, Local<const float, 2> b) {
///     Keep<float, 2> c(worker, {a.rows(), b.shape(1)});
///     ...                                                 // fills c
///     return c;
///   }
///   Value<float, 2> c = session.function(product).on(device)(a, b);
///
/// A result struct can have several of them, beside reduced results. The caller gets the struct, and each Keep in it
/// converts to a Value. If all of its fields are Keeps, the caller gets it at once. Movable, not copyable.
template <Element T, std::size_t N>
class Keep {
 public:
  using element_type = T;
  static constexpr Reduction reduction = Reduction::sum;  // has no meaning here: there is one rank
  static constexpr std::size_t dimensions = N;

  Keep() = default;
  /// Called by the body: makes a zero-filled result in the device's memory. The body then fills it. Throws Error
  /// (system) if there is not enough memory.
  Keep(CpuWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(detail::allocate_output(worker, detail::checked_size(dtype_of<T>, shape.extents()))) {}
  Keep(CudaWorker& worker, const Shape<N>& shape)
      : shape_(shape), buffer_(detail::allocate_output(worker, detail::checked_size(dtype_of<T>, shape.extents()))) {}
  /// Called by the body: makes a result and copies values into it from host memory. Throws Error (usage) if the number
  /// of values does not match the shape.
  Keep(std::span<const T> values, const Shape<N>& shape) : shape_(shape) {
    detail::check_count(values.size(), shape.extents());
    buffer_ = detail::allocate_on_heap(values.size_bytes());
    if (!values.empty()) std::memcpy(buffer_.data(), values.data(), values.size_bytes());
  }

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

  /// In the master: the Value that the call makes. Throws Error (usage) if this object was moved from.
  Value<T, N> value() const {
    detail::held(record_, "Keep");
    return Value<T, N>(record_);
  }
  operator Value<T, N>() const { return value(); }  // NOLINT(google-explicit-constructor)

  /// For Syncrun's own code, in the master.
  explicit Keep(std::shared_ptr<detail::VariableRecord> record) noexcept : record_(std::move(record)) {}
  /// For Syncrun's own code, in the worker: gives up the memory.
  detail::OutputBuffer release() noexcept { return std::move(buffer_); }

 private:
  friend struct detail::HandleAccess;

  Shape<N> shape_{};
  detail::OutputBuffer buffer_;
  std::shared_ptr<detail::VariableRecord> record_;
};

}  // namespace syncrun
