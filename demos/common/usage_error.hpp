#pragma once

// The exception that a demo throws for a wrong command line.

#include <stdexcept>

namespace demos {

/// The message says which option is wrong, what was expected and what was given.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace demos
