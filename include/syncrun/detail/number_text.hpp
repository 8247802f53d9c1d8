#pragma once

// Numbers as text for messages. The text does not depend on the locale of the program: it has a decimal point in every
// language. std::to_string, printf and streams follow the locale.

#include <charconv>
#include <string>

namespace syncrun::detail {

/// The shortest text that gives the same number when it is read: "0.1", "1e+20", "nan", "-inf".
inline std::string number_text(double value) {
  char text[32];  // 24 characters are the most
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace syncrun::detail
