#pragma once

// Value: one array. Syncrun copies it to a device when a call there uses it.

#include <cstddef>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/device.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun {

template <class R>
class Future;

/// One array of N dimensions, with valid copies on the devices that use it. Session::value makes one. A body that
/// returns a Keep<T, N> makes one, too. A Value is a handle and cheap to copy. For the master only.
///
///   auto x = session.value(pixels, Shape{500, 784}, left);   // lies on the device `left`
///   auto y = f.on(left)(x);                                  // f returns a Keep: y lies there, too
///   auto z = g.on(right)(y);                                 // a copy of y moves to `right` first
///   const Array<float, 2> result = z.get();                  // waits for g
///
/// A call takes a Value for a parameter Local<T, N>, Local<const T, N>, Sliced<const T, N> or Update<Op, T, N>. Before
/// the call runs, Syncrun copies the value to the device of the call, directly from a device that has a valid copy. The
/// master does not wait for this. A call that writes the value (Local<T, N>, Update) makes all other copies invalid. In
/// one call, either several ranks read a Value, or one rank writes it.
///
/// A copy is kept until the last handle is destroyed. If a device runs out of memory before that, its worker frees
/// copies that are also valid elsewhere.
///
/// If the call that makes the value fails, all later uses of the value throw that failure, until set() gives it values.
/// Members throw Error (usage) after the session was closed.
template <Element T, std::size_t N>
class Value {
 public:
  using element_type = T;
  static constexpr std::size_t dimensions = N;

  /// Starts to bring a copy to a device, and returns. A call does this by itself. Use this member to start the copying
  /// early. Throws Error (usage) if the value is pinned to another device.
  void to(const Device& device) const { detail::bring_value(record(), device); }
  /// If the call that makes the value still runs, waits for it. Then starts to bring a copy to the memory of the host,
  /// and returns. get() then reads that copy.
  void to_host() const { detail::bring_value_to_host(record()); }
  /// Replaces the elements: `x.set(pixels, Shape{500, 784})`. The shape may differ from the one before. The new elements
  /// lie in the memory of the host, until a call uses them. If the value is pinned, a copy to its device starts at once.
  /// Does not wait: calls in flight keep the elements that they were started with. The value need not have any
  /// elements: set() also works after the call that makes the value has failed, and after the elements were lost. Throws
  /// Error: usage if the number of elements does not match the shape, system if there is not enough memory.
  template <detail::ValuesOf<T> R>
  void set(const R& values, const Shape<N>& shape) {
    detail::check_count(detail::count_of(values), shape.extents());
    detail::set_value(record(), shape.extents(), std::ranges::data(values));
  }
  /// Replaces the elements and keeps the shape. If the value has one dimension, its length becomes the number of
  /// elements. Otherwise, this throws as shape() does.
  template <detail::ValuesOf<T> R>
  void set(const R& values) {
    if constexpr (N == 1) set(values, Shape<1>(std::ranges::size(values)));
    else set(values, shape());
  }

  /// Returns the elements. Waits for the calls that write the value, and for no others. If the only copies are on GPUs
  /// or on other machines, also waits for the calls in flight on one of these devices, the one with the fewest.
  [[nodiscard]] Array<T, N> get() const {
    Array<T, N> values(shape());
    detail::get_value(record(), values.data());
    return values;
  }

  /// If the call that makes the value still runs, waits for it. Then starts to fetch the elements, and returns. Later
  /// calls that write the value do not change the result.
  [[nodiscard]] Future<Array<T, N>> get_async() const {
    auto fetched = detail::launch_get_value(record());
    return Future<Array<T, N>>(std::move(fetched.session), std::move(fetched.result), nullptr);
  }

  /// Waits for the call that makes the value, because the shape is not known before.
  Shape<N> shape() const { return detail::to_shape<N>(detail::extents_of_value(held())); }
  /// The devices that have a valid copy, in the order of their ranks. A copy counts as soon as it is on its way.
  std::vector<Device> where() const { return detail::devices_with(held()); }
  /// True if there is a valid copy in the memory of the host.
  bool is_on_host() const { return detail::is_on_host(held()); }

  /// Names the value in later messages, for example the result of a function that returns a Keep. Without a name, messages
  /// call such a value by a number and by the function that made it.
  void set_name(std::string_view name) { detail::set_name(held(), name); }
  /// Ties the value to this device, and brings a copy there unless there is one. Until unpin(), a call on another
  /// device that takes the value throws Error (usage).
  void pin(const Device& device) { detail::pin_value(record(), device); }
  /// Ends pin(): calls on every device can take the value again.
  void unpin() { detail::unpin_value(held()); }

  /// The name in messages.
  const std::string& name() const { return detail::name_of(held()); }

 private:
  friend struct detail::HandleAccess;

  explicit Value(std::shared_ptr<detail::VariableRecord> record) noexcept : record_(std::move(record)) {}
  detail::VariableRecord& held() const { return detail::held(record_, "Value"); }
  const std::shared_ptr<detail::VariableRecord>& record() const {
    held();
    return record_;
  }

  std::shared_ptr<detail::VariableRecord> record_;
};

}  // namespace syncrun
