#pragma once

// Command lines of the demos, for tests that run them as users do.

#include <string>
#include <vector>

#include "tests/support/command_run.hpp"

namespace demos::testing {

using CommandResult = syncrun::test::CommandResult;
using Words = std::vector<std::string>;

/// `words` and then `more`.
inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The option of `syncrun` for this number of devices of a kind. It holds on machines with devices of other kinds too.
inline Words devices(int count, const std::string& kind = "cpu") {
  std::string names = kind + "0";
  for (int i = 1; i < count; ++i) names += "," + kind + std::to_string(i);
  return {"--devices", names};
}

}  // namespace demos::testing
