#pragma once

// The messages between the master and the agents of other nodes. A message is a kind and a row of values and bytes. Both
// sides run the same image (they compare build ids), so a value travels as it is in memory.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace syncrun::detail::master::nodes {

/// The number of the master's node.
inline constexpr int kMasterNode = 0;

enum class MessageKind : std::uint8_t {
  // both ways
  beat,   ///< the sender is alive
  ping,   ///< between agents: asks for a beat
  bye,    ///< the sender leaves the job; its exit code
  fault,  ///< the sender cannot continue; a kind of error and a text
  // between neighbours in the tree of nodes (relay.hpp)
  bundle,   ///< from the parent: messages of the master to several nodes (Bundle)
  reports,  ///< from a child: messages of several nodes to the master, and the commands that are over in its branch
  // between any nodes: the number of the session, the number of a command, and
  exchange,  ///< a piece of a block in a collective: the number of the exchange, the size of the block, and the bytes
  abandon,   ///< nothing more: the command has failed on the sender's node
  left,      ///< how many exchanges the sender's node takes part in
  vote,      ///< how the ranks of the sender's node have voted, and those of the nodes below it
  verdict,   ///< how the ranks of all nodes have voted
  plans,     ///< how far its GPUs have come in the collectives: by rank, WorkerSlot::plan and plan_wait
  values,    ///< of a variable, for a move: whether the move has to fail, the extents, and the bytes
  // agent to master, before a session
  hello,    ///< what the node is (NodeIdentity)
  devices,  ///< the answer to `open`: its number, the cores and the devices of the node
  // master to agent, before or after a session
  open,  ///< asks for the devices of the node; a number, from how many nodes on there is a tree, and what the user wants
  direct,  ///< the tree of nodes has ended, so messages to the master go directly
  // agent to master, along the tree (goes_along_tree)
  start_failed,  ///< the answer to `open` or `start` if it fails: the number (`start` has 0), a kind of error and a text
  rank_state,    ///< how far the start of a worker is
  progress,      ///< where the workers are, while they are busy
  rank_lost,     ///< a worker was lost
  rank_end,      ///< how a worker has ended
  rank_stacks,   ///< the answer to `stacks`: its number, and a text
  done,          ///< the commands that ranks have finished, and what they report
  ended,         ///< nothing is left of the session on this node
  queue_news,    ///< what the producers of a queue have done: the number of the queue, and put_producer_news()
  queue_failed,   ///< the producers of a queue cannot start: its number, a kind of error, its native code and a text
  producer_lost,  ///< a producer was lost: the number of its queue, and how it has ended (ProducerLoss)
  queue_ended,    ///< no process of a queue is left: its number, whether one cannot be killed, and the first bad end
  // master to agent, along the tree
  start,         ///< starts a session (SessionStart)
  command,       ///< the changes of the heap, a command, and which outputs were consumed
  supply,        ///< a move on another node needs values of this node: who has them, and what comes before (NodeMoves)
  spoil,         ///< a command on which this one depends has failed
  peer_lost,     ///< a worker of another node was lost, and will be replaced
  replace,       ///< starts new workers in the places of lost ones (Successor)
  open_queue,    ///< starts the producers of a queue: the changes of the heap, and QueueStart
  free_batches,  ///< batches are free again: the number of the queue, and the batches in the order of their use
  close_queue,   ///< ends the producers of a queue: its number, and how (QueueEnd)
  expect_ends,   ///< workers that end from now on are not lost
  kill_all,      ///< kill the workers that are left
  stacks,        ///< asks for the native stacks of the workers (`syncrun stacks`): the number of the request
  end            ///< end the session
};

/// Whether messages of this kind go along the tree of nodes. They are those whose order matters: all that belong to a
/// session, except what nodes exchange in collectives, and the values of moves.
constexpr bool goes_along_tree(MessageKind kind) noexcept { return kind >= MessageKind::start_failed; }

/// Writes a message.
class MessageWriter {
 public:
  template <class... T>
  explicit MessageWriter(MessageKind kind, const T&... values) {
    put(kind, values...);
  }
  /// A part of a message, without a kind.
  MessageWriter() = default;
  /// Continues a message.
  explicit MessageWriter(std::vector<std::byte> message) noexcept : bytes_(std::move(message)) {}
  template <class T, class... Others>
  void put(const T& value, const Others&... others) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t before = bytes_.size();
    bytes_.resize(before + sizeof value);
    std::memcpy(bytes_.data() + before, &value, sizeof value);
    if constexpr (sizeof...(others) != 0) put(others...);
  }
  template <class T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(std::as_bytes(values));
  }
  void put_bytes(std::span<const std::byte> bytes);
  void put_text(std::string_view text) {
    put(text.size());
    put_bytes(std::as_bytes(std::span(text)));
  }
  template <class T>
  void put_list(std::span<const T> values) {
    put(values.size());
    put_all(values);
  }
  /// Writes what std::tie() has put together: values, texts, and vectors and pairs of them.
  template <class... T>
  void put_fields(const std::tuple<T&...>& fields) {
    std::apply([this](const auto&... each) { (this->put_field(each), ...); }, fields);
  }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  MessageKind kind() const noexcept { return static_cast<MessageKind>(bytes_.front()); }
  std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  template <class T>
  void put_field(const T& field) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      put(field);
    } else if constexpr (std::is_same_v<T, std::string>) {
      put_text(field);
    } else if constexpr (requires { field.first; }) {
      put_fields(std::tie(field.first, field.second));
    } else if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
      put_list(std::span(field));
    } else {
      put(field.size());
      for (const auto& each : field) put_field(each);
    }
  }

  std::vector<std::byte> bytes_;
};

/// Reads a message in the order in which it was written. Throws Error (system) if it is too short.
class MessageReader {
 public:
  /// `from` names the sender, for errors. The bytes outlive the reader.
  MessageReader(std::span<const std::byte> bytes, std::string_view from) : all_(bytes), rest_(bytes), from_(from) {
    kind_ = get<MessageKind>();
  }
  /// As above, for a reader who may keep the message.
  MessageReader(std::vector<std::byte>& message, std::string_view from) : MessageReader(std::span(message), from) {
    message_ = &message;
  }
  MessageKind kind() const noexcept { return kind_; }
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, get_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// Reads several values.
  template <class... T>
  void get_to(T&... values) {
    ((values = get<T>()), ...);
  }
  template <class T>
  void get_all(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = get_bytes(values.size_bytes());
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  std::span<const std::byte> get_bytes(std::size_t bytes);
  std::string get_text() {
    const auto bytes = get_bytes(get<std::size_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <class T>
  std::vector<T> get_list() {
    const auto count = get<std::size_t>();
    if (count > rest_.size() / sizeof(T)) throw_too_short(count);
    std::vector<T> values(count);
    get_all(std::span<T>(values));
    return values;
  }
  /// Reads what put_fields() has written. Vectors are empty before.
  template <class... T>
  void get_fields(const std::tuple<T&...>& fields) {
    std::apply([this](auto&... each) { (this->get_field(each), ...); }, fields);
  }
  bool is_at_end() const noexcept { return rest_.empty(); }
  /// What has not been read yet.
  std::span<const std::byte> rest() const noexcept { return rest_; }
  /// The message itself, without a copy if possible. rest() is in it from now on.
  std::vector<std::byte> keep();

 private:
  template <class T>
  void get_field(T& field) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      field = get<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      field = get_text();
    } else if constexpr (requires { field.first; }) {
      get_fields(std::tie(field.first, field.second));
    } else if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
      field = get_list<typename T::value_type>();
    } else {
      for (auto left = get<std::size_t>(); left != 0; --left) get_field(field.emplace_back());
    }
  }
  [[noreturn]] void throw_too_short(std::size_t wanted) const;

  std::span<const std::byte> all_;
  std::span<const std::byte> rest_;
  std::string from_;
  MessageKind kind_{};
  std::vector<std::byte>* message_ = nullptr;  // if the reader may keep it
};

}  // namespace syncrun::detail::master::nodes
