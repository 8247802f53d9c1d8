#include "common/text/numbers.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace syncrun::detail::text {

std::string fixed_text(double value, int digits) {
  constexpr int kMostDigits = 20;
  std::array<char, std::numeric_limits<double>::max_exponent10 + kMostDigits + 4> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed,
                                 std::min(digits, kMostDigits));
  return {text.data(), end.ptr};
}

std::optional<double> parse_number(std::string_view text) noexcept {
  // from_chars does not accept a plus sign, which users write.
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace syncrun::detail::text
