// A library that a test loads at run time.

#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

extern "C" sr::Sum<int> plugin_function(sr::CpuWorker& worker, int value) { return value * (worker.rank() + 1); }
