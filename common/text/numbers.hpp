#pragma once

// Numbers as text and back, independent of the locale of the program.

#include <optional>
#include <string>
#include <string_view>

#include "syncrun/detail/number_text.hpp"

namespace syncrun::detail::text {

/// The number with this many digits after the decimal point: "12.5" for one digit. This is what printf's %f writes in the
/// C locale.
std::string fixed_text(double value, int digits);

/// Reads a decimal number, such as "30", "+0.5" or "1e3". Empty if the text has anything else, or if the number is out of
/// the range of double.
std::optional<double> parse_number(std::string_view text) noexcept;

}  // namespace syncrun::detail::text
