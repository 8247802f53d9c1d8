#pragma once

// Decompresses what zip archives call method 8. Uses no LibTorch. The format: RFC 1951.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace syncrun::libtorch::detail {

/// Returns the contents of a compressed record, which has `size` bytes. Returns nothing if the record is damaged.
std::optional<std::string> inflate(std::span<const std::byte> compressed, std::uint64_t size);

}  // namespace syncrun::libtorch::detail
