#include "common/protocol/command.hpp"

#include <cstring>

namespace syncrun::detail {

void put_head(Command& slot, const CommandHead& head) noexcept {
  constexpr std::size_t kLine = 64;
  static_assert(sizeof(CommandHead) % kLine == 0 && alignof(CommandHead) == kLine);
  auto* to = reinterpret_cast<std::byte*>(static_cast<CommandHead*>(&slot));
  const auto* from = reinterpret_cast<const std::byte*>(&head);
  for (std::size_t at = 0; at < sizeof(CommandHead); at += kLine) {
    if (std::memcmp(to + at, from + at, kLine) != 0) std::memcpy(to + at, from + at, kLine);
  }
}

}  // namespace syncrun::detail
