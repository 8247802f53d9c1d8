#pragma once

// Finds the line of the program that called LibTorch, for error messages.

#include <string>

namespace syncrun::libtorch::detail {

/// Returns the innermost place on this thread's stack that is in the program, and not in LibTorch, Syncrun or a standard
/// header: "next_byte_loss (train.cpp:17)". Without debugging information, it is the name of the function only. Empty if
/// no such place was found, or if libdw is not installed. Takes about a tenth of a second.
std::string user_line() noexcept;

}  // namespace syncrun::libtorch::detail
