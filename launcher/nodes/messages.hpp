#pragma once

// The messages between the master and the agents of other nodes. A message is a kind and a row of values and bytes. Both
// sides run the same image (they compare build ids), so a value travels as it is in memory.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace syncrun::detail {

enum class MessageKind : std::uint8_t {
  command,  ///< master to agent: the changes of the heap, a command, and which outputs were consumed
  spoil,    ///< master to agent: a command on which this one depends has failed
  done      ///< agent to master: the commands that ranks have finished, and what they report
};

/// Writes a message.
class MessageWriter {
 public:
  explicit MessageWriter(MessageKind kind) { put(kind); }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  template <class T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(std::as_bytes(values));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const std::size_t before = bytes_.size();
    bytes_.resize(before + bytes.size());
    std::memcpy(bytes_.data() + before, bytes.data(), bytes.size());
  }
  std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads a message in the order in which it was written. Throws Error (system) if it is too short.
class MessageReader {
 public:
  /// `from` names the sender, for errors. The bytes outlive the reader.
  MessageReader(std::span<const std::byte> bytes, std::string_view from) : rest_(bytes), from_(from) {
    kind_ = get<MessageKind>();
  }
  MessageKind kind() const noexcept { return kind_; }
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, get_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  template <class T>
  void get_all(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = get_bytes(values.size_bytes());
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  std::span<const std::byte> get_bytes(std::size_t bytes);
  bool is_at_end() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  std::string from_;
  MessageKind kind_{};
};

}  // namespace syncrun::detail
