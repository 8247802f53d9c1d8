#pragma once

// The types of the arguments that the caller passes. Each accepts the right type, and rejects others with a readable
// message.

#include <concepts>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>

#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/keep.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/value.hpp"

namespace syncrun::detail {

template <class>
inline constexpr bool kAlwaysFalse = false;

/// Accepts a Data<T, N>. Rejects anything else with a readable message.
template <class T, std::size_t N>
class DataArgument {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  DataArgument(const Data<T, N>& data) noexcept : record_(&HandleAccess::record(data)) {}
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  DataArgument(const Data<U, M>&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "this Data has another element type or another number of dimensions than the function's parameter");
  }
  template <class U, std::size_t M>
  DataArgument(const Minibatch<U, M>&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "a minibatch is for a Scattered parameter of its element type and number of dimensions");
  }
  template <class U>
  DataArgument(const U&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>, "Scattered and Broadcast take a Data: session.data(values) makes one");
  }
  /// Null if the Data was moved from.
  const std::shared_ptr<DataRecord>& record() const noexcept { return *record_; }

 protected:
  explicit DataArgument(const std::shared_ptr<DataRecord>* record) noexcept : record_(record) {}

 private:
  const std::shared_ptr<DataRecord>* record_;
};

/// Accepts also a minibatch(Data<T, N>).
template <class T, std::size_t N>
class ScatteredArgument : public DataArgument<T, N> {
 public:
  // This class does not inherit the constructors. Otherwise a compiler that rejects an argument would report this line
  // and not the user's.
  template <class U>
  ScatteredArgument(const U& passed) : DataArgument<T, N>(passed) {}  // NOLINT(google-explicit-constructor)
  ScatteredArgument(const Minibatch<T, N>& batch) noexcept            // NOLINT(google-explicit-constructor)
      : DataArgument<T, N>(&HandleAccess::record(batch.data)), rows_(DataRows::of_the_batch) {}
  DataRows rows() const noexcept { return rows_; }

 private:
  DataRows rows_ = DataRows::of_the_call;
};

/// Accepts a Shared<T, N> or a Value<T, N>. Rejects anything else with a readable message.
template <class T, std::size_t N>
class SharedArgument {
 public:
  // A template, because there is no Shared<T, 0> to convert to, but a Value<T, 0>.
  template <class U, std::size_t M>
    requires(std::same_as<U, T> && M == N)
  SharedArgument(const Shared<U, M>& shared) noexcept  // NOLINT(google-explicit-constructor)
      : record_(&HandleAccess::record(shared)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  SharedArgument(const Value<T, N>& value) noexcept : record_(&HandleAccess::record(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  SharedArgument(const Keep<T, N>& kept) noexcept : record_(&HandleAccess::record(kept)) {}
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  SharedArgument(const Value<U, M>&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "this Value has another element type or another number of dimensions than the function's parameter");
  }
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  SharedArgument(const Shared<U, M>&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "this Shared has another element type or another number of dimensions than the function's parameter");
  }
  template <class U>
  SharedArgument(const U&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "Local, Sliced and Update take a Shared or a Value: session.shared<T, N>(name) and "
                  "session.value(values, shape, device) make them");
  }
  /// Null if the Shared or Value was moved from.
  const std::shared_ptr<VariableRecord>& record() const noexcept { return *record_; }

 private:
  const std::shared_ptr<VariableRecord>* record_;
};

/// One value per rank: any contiguous range of T, or a braced list.
template <class T>
class PerWorkerArgument {
 public:
  template <std::ranges::contiguous_range R>
    requires std::same_as<std::ranges::range_value_t<R>, T>
  PerWorkerArgument(const R& values) noexcept  // NOLINT(google-explicit-constructor)
      : values_(std::ranges::data(values), count_of(values)) {}
  PerWorkerArgument(std::initializer_list<T> values) noexcept : values_(values.begin(), values.size()) {}
  std::span<const T> values() const noexcept { return values_; }

 private:
  std::span<const T> values_;
};

}  // namespace syncrun::detail
