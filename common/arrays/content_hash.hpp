#pragma once

// A hash by which processes compare large arrays without sending them.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace syncrun::detail::arrays {

/// 64 bits, with the round of xxHash (Yann Collet). Arrays that differ in one word of 8 bytes never have the same hash, and
/// others do so by chance only, about once in 2^64. It does not protect against someone who wants two arrays to agree.
class ContentHash {
 public:
  /// Adds bytes. All but the last ones have a multiple of 8.
  void add(std::span<const std::byte> bytes) noexcept {
    for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t)))
      add_word(bytes.data(), sizeof(std::uint64_t));
    if (!bytes.empty()) add_word(bytes.data(), bytes.size());
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  void add_word(const std::byte* from, std::size_t bytes) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, from, bytes);
    value_ = std::rotl(value_ + word * 0xc2b2ae3d27d4eb4f, 31) * 0x9e3779b185ebca87;
  }

  std::uint64_t value_ = 0x27d4eb2f165667c5;
};

}  // namespace syncrun::detail::arrays
