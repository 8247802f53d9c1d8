#pragma once

// Programs for masters under test: this very binary, started as `--program NAME ...`.

#include <string>
#include <vector>

namespace syncrun::test {

/// What main of a master under test runs: argv[2] is the name.
int run_program(int argc, char** argv);

/// The path of this binary.
std::string own_binary();

}  // namespace syncrun::test
