#pragma once

// Programs for masters under test that somebody ends in the middle: see programs.hpp for how they are started.

#include <optional>
#include <string>

namespace syncrun::test {

/// Runs the program of this name; empty if there is none.
std::optional<int> run_long_program(const std::string& name, int argc, char** argv);

}  // namespace syncrun::test
