#pragma once

// Starting a thread where there may be none left.

#include <system_error>
#include <thread>
#include <utility>

#include "common/errors.hpp"

namespace syncrun::detail {

/// Throws Error (system), which says what limits threads, where std::thread throws an exception that does not.
template <class... Arguments>
std::thread start_thread(Arguments&&... arguments) {
  try {
    return std::thread(std::forward<Arguments>(arguments)...);
  } catch (const std::system_error& error) {
    throw_no_thread(error.code().value());
  }
}

}  // namespace syncrun::detail
