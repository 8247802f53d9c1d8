#pragma once

// For the programs of these tests.

#include <stdexcept>
#include <string>

namespace syncrun::test {

/// Throws if something is not as the test expects it.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not as expected: " + what);
}

}  // namespace syncrun::test
