#pragma once

// Programs that run as masters under test until a test ends them. programs.hpp says how tests start them.

#include <optional>
#include <string>

namespace syncrun::test {

/// Runs the program of this name and returns its exit code; empty if no program has this name.
std::optional<int> run_long_program(const std::string& name, int argc, char** argv);

}  // namespace syncrun::test
