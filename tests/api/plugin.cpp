// A library that a test loads at run time.

#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

// C++ code calls this function too, so it may return a C++ type. NOLINTNEXTLINE(clang-diagnostic-return-type-c-linkage)
extern "C" sr::Sum<int> plugin_function(sr::CpuWorker& worker, int value) { return value * (worker.rank() + 1); }
