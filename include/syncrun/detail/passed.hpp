#pragma once

// The types of the arguments that the caller passes. Each accepts the right type, and rejects others with a readable
// message.

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>

#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/keep.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/value.hpp"

namespace syncrun::detail {

template <class>
inline constexpr bool kAlwaysFalse = false;

/// A text as a template argument.
template <std::size_t kLength>
struct Words {
  char text[kLength]{};
  // NOLINTNEXTLINE(google-explicit-constructor)
  consteval Words(const char (&words)[kLength]) {
    for (std::size_t i = 0; i < kLength; ++i) text[i] = words[i];
  }
};
/// The last parameter of a deleted constructor. The compiler reports a deleted constructor at the line of the user's call,
/// and prints its parameters. A static assertion would be reported at a line of this file.
template <Words>
struct Refused {};

/// Accepts a Data<T, N>. Rejects anything else with a readable message.
template <class T, std::size_t N>
class DataArgument {
 protected:
  using OtherData =
      Refused<"this Data has another element type or another number of dimensions than the function's parameter">;
  using NoData = Refused<"Scattered and Broadcast take a Data: session.data(values) makes one">;

 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  DataArgument(const Data<T, N>& data) noexcept : record_(&HandleAccess::record(data)) {}
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  DataArgument(const Data<U, M>&, OtherData = {}) = delete;
  template <class U, std::size_t M>
  DataArgument(const Minibatch<U, M>&,
               Refused<"a minibatch is for a Scattered parameter of its element type and dimensions"> = {}) = delete;
  template <class U>
  DataArgument(const U&, NoData = {}) = delete;
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
  // NOLINTNEXTLINE(google-explicit-constructor)
  ScatteredArgument(const Data<T, N>& data) noexcept : DataArgument<T, N>(data) {}
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  ScatteredArgument(const Data<U, M>&, typename DataArgument<T, N>::OtherData = {}) = delete;
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  ScatteredArgument(
      const Minibatch<U, M>&,
      Refused<"this minibatch has another element type or another number of dimensions than the parameter"> = {}) =
      delete;
  template <class U>
  ScatteredArgument(const U&, typename DataArgument<T, N>::NoData = {}) = delete;
  ScatteredArgument(const Minibatch<T, N>& batch) noexcept  // NOLINT(google-explicit-constructor)
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
  SharedArgument(const Value<U, M>&,
                 Refused<"this Value has another element type or another number of dimensions than the function's "
                         "parameter"> = {}) = delete;
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  SharedArgument(const Shared<U, M>&,
                 Refused<"this Shared has another element type or another number of dimensions than the function's "
                         "parameter"> = {}) = delete;
  template <class U>
  SharedArgument(const U&, Refused<"Local, Sliced and Update take a Shared or a Value: session.shared<T, N>(name) and "
                                   "session.value(values, shape, device) make them"> = {}) = delete;
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

/// A text: anything that converts to a std::string_view. The call copies it.
class TextArgument {
 public:
  template <class S>
    requires(std::convertible_to<const S&, std::string_view> && !std::same_as<S, std::nullptr_t>)
  TextArgument(const S& text) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::convertible_to<const S&, const char*> && !std::is_array_v<S>) {
      if (static_cast<const char*>(text) == nullptr) return;
    }
    text_ = text;
  }
  template <class U>
    requires(!std::convertible_to<const U&, std::string_view> || std::same_as<U, std::nullptr_t>)
  TextArgument(const U&,
               Refused<"a std::string_view parameter takes a text: a std::string, a std::string_view or a string "
                       "literal"> = {}) = delete;
  /// Empty if the caller has passed a null pointer.
  const std::optional<std::string_view>& text() const noexcept { return text_; }

 private:
  std::optional<std::string_view> text_;
};

}  // namespace syncrun::detail
