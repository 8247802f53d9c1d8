#pragma once

// Keep: a result that stays on its device.

#include <cstddef>
#include <memory>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/result_array.hpp"
#include "syncrun/reduction.hpp"
#include "syncrun/value.hpp"

namespace syncrun {

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
class Keep : public detail::ResultArray<T, N> {
  using Base = detail::ResultArray<T, N>;

 public:
  /// Has no meaning here: there is one rank.
  static constexpr Reduction reduction = Reduction::sum;

  Keep() = default;
  using Base::Base;

  /// In the master: the Value that the call makes. Throws Error (usage) if this object was moved from.
  Value<T, N> value() const {
    detail::held(record_, "Keep");
    return detail::HandleAccess::make<Value<T, N>>(record_);
  }
  /// The same as value().
  operator Value<T, N>() const { return value(); }  // NOLINT(google-explicit-constructor)

 private:
  friend struct detail::HandleAccess;

  explicit Keep(std::shared_ptr<detail::VariableRecord> record) noexcept : record_(std::move(record)) {}

  std::shared_ptr<detail::VariableRecord> record_;
};

}  // namespace syncrun
