#pragma once

// Programs that run as masters under test. A test starts its own binary again with `--program NAME ...`.

#include <string>
#include <vector>

namespace syncrun::test {

/// The main of a master under test. Runs the program with the name argv[2] and returns its exit code.
int run_program(int argc, char** argv);

/// The path of the binary that this process runs.
std::string own_binary();

}  // namespace syncrun::test
