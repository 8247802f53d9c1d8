#include "launcher/nodes/messages.hpp"

#include "syncrun/error.hpp"

namespace syncrun::detail {

std::span<const std::byte> MessageReader::get_bytes(std::size_t bytes) {
  if (bytes > rest_.size()) throw_too_short(bytes);
  const auto taken = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return taken;
}

void MessageReader::throw_too_short(std::size_t wanted) const {
  throw Error(ErrorKind::system, "a message from " + from_ + " is too short: " + std::to_string(wanted) +
                                     " more bytes expected, " + std::to_string(rest_.size()) + " are there");
}

}  // namespace syncrun::detail
