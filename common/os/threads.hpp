#pragma once

// Starting a thread, with an error that explains a refusal.

#include <system_error>
#include <thread>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail::os {

/// Starts a std::thread with these arguments. If the system refuses, throws Error (system) with the limits that apply
/// to threads. The exception of std::thread does not name them.
template <class... Arguments>
std::thread start_thread(Arguments&&... arguments) {
  try {
    return std::thread(std::forward<Arguments>(arguments)...);
  } catch (const std::system_error& error) {
    text::throw_no_thread(error.code().value());
  }
}

}  // namespace syncrun::detail::os
