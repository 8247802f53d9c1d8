#pragma once

// Construction of replicated objects: the arguments as bytes on the master, back to values on each worker.

#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "syncrun/detail/call.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

/// What a construction argument may be: trivially copyable, a string, or a vector of trivially copyable elements.
template <class T>
inline constexpr bool kIsVector = false;
template <class U>
inline constexpr bool kIsVector<std::vector<U>> = std::is_trivially_copyable_v<U>;

template <class T>
void put_argument(std::vector<std::byte>& bytes, const T& value) {
  const auto append = [&](const void* from, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + count);
  };
  if constexpr (std::is_same_v<T, std::string> || kIsVector<T>) {
    const std::uint64_t count = value.size();
    append(&count, sizeof(count));
    append(value.data(), value.size() * sizeof(typename T::value_type));
  } else {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "construction arguments of a replicated object are trivially copyable values, std::string or "
                  "std::vector of trivially copyable elements");
    append(&value, sizeof(value));
  }
}

template <class T>
T take_argument(std::span<const std::byte>& bytes) {
  const auto take = [&](void* to, std::size_t count) {
    if (count != 0) std::memcpy(to, bytes.data(), count);
    bytes = bytes.subspan(count);
  };
  if constexpr (std::is_same_v<T, std::string> || kIsVector<T>) {
    std::uint64_t count = 0;
    take(&count, sizeof(count));
    T value(count, {});
    take(value.data(), count * sizeof(typename T::value_type));
    return value;
  } else {
    std::array<std::byte, sizeof(T)> raw;
    take(raw.data(), sizeof(T));
    return std::bit_cast<T>(raw);
  }
}

/// Literals and views are stored as what owns them.
template <class T>
using Stored = std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, std::decay_t<T>>;

template <class T, class... Arguments>
void construct_object(WorkerCall& call, const BodyPointer&) {
  std::span<const std::byte> bytes = call.construction_arguments();
  std::tuple<Arguments...> arguments{take_argument<Arguments>(bytes)...};  // braces: left to right
  T* object = std::apply(
      [&](auto&... a) {
        if constexpr (std::is_constructible_v<T, CpuWorker&, Arguments...>)
          return new T(call.cpu_worker(), std::move(a)...);
        else return new T(std::move(a)...);
      },
      arguments);
  call.keep_object(object, [](void* kept) noexcept { delete static_cast<T*>(kept); });
}

/// The same through a factory function, which returns the object by value.
template <class Pointer>
struct Factory;
template <class T, class... P>
struct Factory<T (*)(P...)> {
  using Object = T;
  static constexpr bool kWantsWorker = (std::same_as<P, CpuWorker&> || ...);

  template <class... Arguments>
  static void construct(WorkerCall& call, const BodyPointer& body) {
    const auto make = from_body_pointer<T (*)(P...)>(body);
    std::span<const std::byte> bytes = call.construction_arguments();
    std::tuple<Arguments...> arguments{take_argument<Arguments>(bytes)...};
    T* object = std::apply(
        [&](auto&... a) {
          if constexpr (kWantsWorker) return new T(make(call.cpu_worker(), std::move(a)...));
          else return new T(make(std::move(a)...));
        },
        arguments);
    call.keep_object(object, [](void* kept) noexcept { delete static_cast<T*>(kept); });
  }
};

}  // namespace syncrun::detail
