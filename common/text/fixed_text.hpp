#pragma once

// Text in fields of a fixed size, in memory that several processes share.

#include <array>
#include <cstddef>
#include <string_view>

namespace syncrun::detail::text {

/// Copies text into a field, and terminates it with a null character. Cuts the text if it is too long.
template <std::size_t N>
void put_text(std::array<char, N>& field, std::string_view text) noexcept {
  const std::size_t count = text.size() < N - 1 ? text.size() : N - 1;
  for (std::size_t i = 0; i < count; ++i) field[i] = text[i];
  field[count] = '\0';
}
/// Reads a field that another process wrote, and that may lack the terminating null character.
template <std::size_t N>
std::string_view get_text(const std::array<char, N>& field) noexcept {
  std::size_t count = 0;
  while (count < N && field[count] != '\0') ++count;
  return {field.data(), count};
}

}  // namespace syncrun::detail::text
