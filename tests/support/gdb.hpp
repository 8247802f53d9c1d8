#pragma once

// Whether gdb is installed, and may trace processes here. A sandbox may forbid debuggers.

#include <cstdlib>

namespace syncrun::test {

inline bool gdb_works() { return std::system("gdb -batch -ex run --args true 2>&1 | grep -q 'exited normally'") == 0; }

}  // namespace syncrun::test
