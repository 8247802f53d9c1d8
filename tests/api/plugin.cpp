// A library that a test loads at run time.

#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

// C++ calls it, too: what it returns need not be known in C. NOLINTNEXTLINE(clang-diagnostic-return-type-c-linkage)
extern "C" sr::Sum<int> plugin_function(sr::CpuWorker& worker, int value) { return value * (worker.rank() + 1); }
