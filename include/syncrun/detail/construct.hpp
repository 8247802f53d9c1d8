#pragma once

// Construction of replicated objects. The master converts the arguments to bytes, and each worker converts them back to
// values. Producers and tasks get their arguments in the same way.

#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "syncrun/detail/body.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

/// A construction argument is trivially copyable, a string, or a vector of trivially copyable elements.
template <class T>
inline constexpr bool kIsVector = false;
template <class U>
inline constexpr bool kIsVector<std::vector<U>> =
    std::is_trivially_copyable_v<U> && !std::is_same_v<U, bool> && !kPointsElsewhere<U>;

template <class T>
void put_argument(std::vector<std::byte>& bytes, const T& value) {
  const auto append = [&](const void* from, std::size_t count) {
    // Does not use insert(): if g++ 12 inlines all of it, it reports an overflow where the vector grows.
    const std::size_t before = bytes.size();
    bytes.resize(before + count);
    if (count != 0) std::memcpy(bytes.data() + before, from, count);
  };
  if constexpr (std::is_same_v<T, std::string> || kIsVector<T>) {
    const std::uint64_t count = value.size();
    append(&count, sizeof(count));
    append(value.data(), value.size() * sizeof(typename T::value_type));
  } else {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !kPointsElsewhere<T>,
                  "what is built or run in other processes takes trivially copyable values, std::string or std::vector "
                  "of trivially copyable elements as arguments");
    append(&value, sizeof(value));
  }
}

/// Reads an argument. T must be the type that was put there. Throws Error (system) if there are too few bytes.
template <class T>
T take_argument(std::span<const std::byte>& bytes) {
  const auto expect = [&](bool is_there) {
    if (!is_there) throw Error(ErrorKind::system, "a value that came from another process is cut short");
  };
  const auto take = [&](void* to, std::size_t count) {
    expect(count <= bytes.size());
    if (count != 0) std::memcpy(to, bytes.data(), count);
    bytes = bytes.subspan(count);
  };
  if constexpr (std::is_same_v<T, std::string> || kIsVector<T>) {
    std::uint64_t count = 0;
    take(&count, sizeof(count));
    expect(count <= bytes.size() / sizeof(typename T::value_type));
    T value(count, typename T::value_type{});
    take(value.data(), count * sizeof(typename T::value_type));
    return value;
  } else {
    std::array<std::byte, sizeof(T)> raw;
    take(raw.data(), sizeof(T));
    return std::bit_cast<T>(raw);
  }
}

/// The type in which an argument is stored. String literals and views become std::string.
template <class T>
using Stored = std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, std::decay_t<T>>;

/// The worker type that `T(worker, arguments...)` takes on this kind of device.
template <DeviceKind kDevice>
using WorkerOn = std::conditional_t<kDevice == DeviceKind::cpu, CpuWorker, CudaWorker>;

template <DeviceKind kDevice>
WorkerOn<kDevice>& worker_of(WorkerCall& call) {
  if constexpr (kDevice == DeviceKind::cpu) return call.cpu_worker();
  else return call.cuda_worker();
}

template <DeviceKind kDevice, class T, class... Arguments>
inline constexpr bool kTakesWorker = std::is_constructible_v<T, WorkerOn<kDevice>&, Arguments...>;
template <DeviceKind kDevice, class T, class... Arguments>
inline constexpr bool kCanConstruct =
    kTakesWorker<kDevice, T, Arguments...> || std::is_constructible_v<T, Arguments...>;

template <DeviceKind kDevice, class T, class... Arguments>
void construct_object(WorkerCall& call, const BodyPointer&) {
  std::span<const std::byte> bytes = call.construction_arguments();
  std::tuple<Arguments...> arguments{take_argument<Arguments>(bytes)...};  // braces evaluate left to right
  T* object = std::apply(
      [&](auto&... a) {
        const BodyScope scope;
        if constexpr (kTakesWorker<kDevice, T, Arguments...>) return new T(worker_of<kDevice>(call), std::move(a)...);
        else return new T(std::move(a)...);
      },
      arguments);
  call.keep_object(object, [](void* kept) noexcept { delete static_cast<T*>(kept); });
}

/// The bodies that construct a T, one for each kind of device on which it can be constructed.
template <class T, class... Arguments>
std::vector<Body> construction_bodies() {
  static_assert(kCanConstruct<DeviceKind::cpu, T, Arguments...> || kCanConstruct<DeviceKind::cuda, T, Arguments...>,
                "the replicated object has no constructor (CpuWorker&, arguments...), (CudaWorker&, arguments...) or "
                "(arguments...) for these arguments");
  std::vector<Body> bodies;
  if constexpr (kCanConstruct<DeviceKind::cpu, T, Arguments...>)
    bodies.push_back({BodyDevice::cpu, &construct_object<DeviceKind::cpu, T, Arguments...>, {}});
  if constexpr (kCanConstruct<DeviceKind::cuda, T, Arguments...>)
    bodies.push_back({BodyDevice::cuda, &construct_object<DeviceKind::cuda, T, Arguments...>, {}});
  return bodies;
}

/// Constructs an object through a factory function, which returns the object by value.
template <class Pointer>
struct Factory;
template <class T, class... P>
struct Factory<T (*)(P...)> {
  using Object = T;
  static constexpr bool kWantsCpuWorker = (std::same_as<P, CpuWorker&> || ...);
  static constexpr bool kWantsCudaWorker = (std::same_as<P, CudaWorker&> || ...);
  static constexpr BodyDevice kDevice = kWantsCpuWorker    ? BodyDevice::cpu
                                        : kWantsCudaWorker ? BodyDevice::cuda
                                                           : BodyDevice::any;

  template <class... Arguments>
  static void construct(WorkerCall& call, const BodyPointer& body) {
    const auto make = from_body_pointer<T (*)(P...)>(body);
    std::span<const std::byte> bytes = call.construction_arguments();
    std::tuple<Arguments...> arguments{take_argument<Arguments>(bytes)...};
    T* object = std::apply(
        [&](auto&... a) {
          const BodyScope scope;
          if constexpr (kWantsCpuWorker) return new T(make(call.cpu_worker(), std::move(a)...));
          else if constexpr (kWantsCudaWorker) return new T(make(call.cuda_worker(), std::move(a)...));
          else return new T(make(std::move(a)...));
        },
        arguments);
    call.keep_object(object, [](void* kept) noexcept { delete static_cast<T*>(kept); });
  }
};

}  // namespace syncrun::detail
