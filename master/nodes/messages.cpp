#include "master/nodes/messages.hpp"

#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

/// Does not fill the memory with zeros first, as resize() would.
void MessageWriter::put_bytes(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> MessageReader::get_bytes(std::size_t bytes) {
  if (bytes > rest_.size()) throw_too_short(bytes);
  const auto taken = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return taken;
}

std::vector<std::byte> MessageReader::keep() {
  // The bytes of a vector stay where they are if the vector is moved.
  if (message_ != nullptr) return std::move(*message_);
  const std::size_t read = all_.size() - rest_.size();
  std::vector<std::byte> copy(all_.begin(), all_.end());
  all_ = copy;
  rest_ = all_.subspan(read);
  return copy;
}

void MessageReader::throw_too_short(std::size_t wanted) const {
  throw Error(ErrorKind::system, "a message from " + from_ + " is too short: " + std::to_string(wanted) +
                                     " more bytes expected, " + std::to_string(rest_.size()) + " are there");
}

}  // namespace syncrun::detail::master::nodes
