#pragma once

// Names of functions, for messages: from the dynamic symbols, else from the symbol table in the image's file, which knows
// static functions and lambdas as well (unless the file was stripped).

#include <string>

namespace syncrun::detail {

/// What a user would call the function at `address`: "Mlp::step", "lambda in program". Empty if nothing tells.
std::string function_name_at(const void* address);

/// The symbol as a programmer would write it; as it is, if it is no mangled name.
std::string demangled(const std::string& symbol);

/// A demangled symbol without parameters, template arguments of the result and the compiler's own decorations.
std::string short_function_name(const std::string& demangled);

}  // namespace syncrun::detail
