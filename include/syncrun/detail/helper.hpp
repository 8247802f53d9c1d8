#pragma once

// Helper processes, as thunks see them: processes of their own that run one function, as a producer of a queue or as a
// task. Users never name what stands here.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/detail/construct.hpp"
#include "syncrun/detail/signature.hpp"

namespace syncrun::detail {

class HelperCall;
class ProducerCore;
class PipeCore;
using HelperThunk = void (*)(HelperCall& call, const BodyPointer& body);

/// What a helper runs: the typed thunk and the user's function behind it.
struct HelperBody {
  HelperThunk thunk = nullptr;
  BodyPointer pointer{};
};

/// Helper: its one call, as the thunk sees it.
class HelperCall {
 public:
  HelperCall(std::span<const std::byte> arguments, ProducerCore* producer, PipeCore* pipe) noexcept
      : arguments_(arguments), producer_(producer), pipe_(pipe) {}
  std::span<const std::byte> arguments() const noexcept { return arguments_; }
  ProducerCore& producer() const noexcept { return *producer_; }  // of a producer only
  PipeCore& pipe() const noexcept { return *pipe_; }              // of a task only
  void keep_result(std::vector<std::byte> bytes) noexcept { result_ = std::move(bytes); }
  const std::vector<std::byte>& result() const noexcept { return result_; }

 private:
  std::span<const std::byte> arguments_;
  ProducerCore* producer_;
  PipeCore* pipe_;
  std::vector<std::byte> result_;
};

/// What crosses from process to process as bytes.
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

/// Unpacks a message. Nothing if there is none.
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

/// Calls `function(first..., arguments...)` with the arguments that the master passed.
template <class R, class... Arguments, class Function, class... First>
R call_with_arguments(HelperCall& call, Function function, First&... first) {
  std::span<const std::byte> bytes = call.arguments();
  std::tuple<Arguments...> arguments{take_argument<Arguments>(bytes)...};  // braces: left to right
  return std::apply([&](auto&... a) -> R { return function(first..., std::move(a)...); }, arguments);
}

}  // namespace syncrun::detail
