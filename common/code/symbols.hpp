#pragma once

// Names of functions, for messages. They come from the dynamic symbols or, if a function is not among these, from the
// symbol table in the file of the image. That table also contains static functions and lambdas, unless it was stripped.

#include <string>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::code {

/// The short name of the function at `address`, for example "Mlp::step" or "lambda in program". Empty if it is unknown.
std::string function_name_at(const void* address);

/// The symbol as it is written in source code. Unchanged if it is not a mangled name.
SYNCRUN_EXPORT_FOR_CUDA std::string demangled(const std::string& symbol);

/// A demangled symbol without its parameters, its result type and anonymous namespaces. A lambda becomes "lambda in F",
/// where F is the function that contains it.
SYNCRUN_EXPORT_FOR_CUDA std::string short_function_name(const std::string& demangled);

}  // namespace syncrun::detail::code
