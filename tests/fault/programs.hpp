#pragma once

// Programs that run as masters under test. A test starts its own binary again with `--program NAME ...`.

#include <string>
#include <vector>

namespace syncrun::test {

/// In the program `stop-at-birth`, each worker and the process of the task send themselves the signals that ask to stop. Call
/// it before they serve.
void get_signals_at_birth(int argc, char** argv);

/// The main of a master under test. Runs the program with the name argv[2] and returns its exit code.
int run_program(int argc, char** argv);

/// Turns off the leak checker of the address sanitizer in this process. In a forked child, it could wait for ever for a lock
/// that another thread of the parent held during the fork. The checker also stops a worker and
/// starts a process for the check. While the master dies, another worker could kill this process, and the first one would
/// stay stopped.
void turn_off_leak_check();

/// The path of the binary that this process runs.
std::string own_binary();

}  // namespace syncrun::test
