#pragma once

// Philox4x32-10, a counter-based random generator: the numbers are a pure function of (key, counter), so that
// a draw belongs to what it is for (a row, a unit, a step) and not to who makes it or in what order.

#include <array>
#include <cstdint>

namespace demos {

using PhiloxCounter = std::array<std::uint32_t, 4>;

/// Four independent uniform 32-bit words for one counter.
/// Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011,
/// section 4.3: ten rounds of multiply, split and xor, the key bumped by Weyl constants between the rounds.
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

/// A word as a number in (0, 1): the middle of its 2^-32 wide cell, exact in double.
constexpr double to_unit_interval(std::uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace demos
