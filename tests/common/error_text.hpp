#pragma once

// The text of an error that a test expects.

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "syncrun/error.hpp"

namespace syncrun::test {

/// The text of the Error that `use` throws, which must be of this kind. Empty if it throws none.
template <class Use>
std::string error_text(Use&& use, std::optional<ErrorKind> kind = std::nullopt) {
  try {
    use();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind.value_or(error.kind())) << error.what();
    return error.what();
  }
  return {};
}

}  // namespace syncrun::test
