#pragma once

// Philox4x32-10, a counter-based random number generator. The numbers are a pure function of (key, counter). So a draw
// depends on its purpose (a row, a unit, a step). It does not depend on which process draws it, or in which order.

#include <array>
#include <cstdint>

namespace demos {

using PhiloxCounter = std::array<std::uint32_t, 4>;

/// Four independent uniform 32-bit words for one counter. The generator makes ten rounds of multiply, split and xor,
/// and adds Weyl constants to the key between the rounds. Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel
/// Random Numbers: As Easy as 1, 2, 3", SC 2011, section 4.3.
constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, std::uint64_t key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// Maps a word to a number in (0, 1). The word stands for a cell of width 2^-32, and the number is the middle of that
/// cell. The result is exact in double.
constexpr double to_unit_interval(std::uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace demos
