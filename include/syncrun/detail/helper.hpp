#pragma once

// Helper processes, as thunks see them. A helper runs one function in its own process, as a producer of a queue or as a
// task. Users never name anything in this header.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/detail/body.hpp"
#include "syncrun/detail/construct.hpp"
#include "syncrun/detail/signature.hpp"

namespace syncrun::detail {

// Types of the library, by their folders.
namespace worker::helper_processes {
class PipeCore;
}  // namespace worker::helper_processes
using worker::helper_processes::PipeCore;

class HelperCall;
class ProducerCore;
using HelperThunk = void (*)(HelperCall& call, const BodyPointer& body);

/// The code that a helper runs: the typed thunk, and the user's function that the thunk calls.
struct HelperBody {
  HelperThunk thunk = nullptr;
  BodyPointer pointer{};
};

/// The one call of a helper, as its thunk sees it.
class HelperCall {
 public:
  HelperCall(std::span<const std::byte> arguments, ProducerCore* producer, PipeCore* pipe) noexcept
      : arguments_(arguments), producer_(producer), pipe_(pipe) {}
  std::span<const std::byte> arguments() const noexcept { return arguments_; }
  ProducerCore& producer() const noexcept { return *producer_; }  // in a producer only
  PipeCore& pipe() const noexcept { return *pipe_; }              // in a task only
  void keep_result(std::vector<std::byte> bytes) noexcept { result_ = std::move(bytes); }
  const std::vector<std::byte>& result() const noexcept { return result_; }

 private:
  std::span<const std::byte> arguments_;
  ProducerCore* producer_;
  PipeCore* pipe_;
  std::vector<std::byte> result_;
};

/// The types that can be sent to another process as bytes.
template <class T>
inline constexpr bool kIsMessage = std::is_same_v<T, std::string> || kIsVector<T> ||
                                   (std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
                                    !std::is_reference_v<T> && !std::is_same_v<T, std::string_view>);

template <class T>
std::vector<std::byte> to_bytes(const T& value) {
  std::vector<std::byte> bytes;
  put_argument(bytes, value);
  return bytes;
}

template <class T>
T from_bytes(std::span<const std::byte> bytes) {
  return take_argument<T>(bytes);
}

/// Unpacks a message. Returns nothing if there is no message.
template <class T>
std::optional<T> decode(const std::optional<std::vector<std::byte>>& bytes) {
  if (!bytes) return std::nullopt;
  return from_bytes<T>(*bytes);
}

template <class... Arguments>
std::vector<std::byte> bytes_of(const Arguments&... arguments) {
  std::vector<std::byte> bytes;
  (put_argument(bytes, Stored<Arguments>(arguments)), ...);
  return bytes;
}

/// Calls `function(first..., arguments...)`. `arguments` are those that the master passed.
template <class R, class... Arguments, class Function, class... First>
R call_with_arguments(HelperCall& call, Function function, First&... first) {
  std::span<const std::byte> bytes = call.arguments();
  std::tuple<Arguments...> arguments{take_argument<Arguments>(bytes)...};  // braces evaluate left to right
  return std::apply([&](auto&... a) -> R { return function(first..., std::move(a)...); }, arguments);
}

}  // namespace syncrun::detail
