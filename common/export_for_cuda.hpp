#pragma once

// What libsyncrun offers to the library for CUDA devices (worker/cuda), and to nothing else. That library has no copies of
// its own: it works on objects that libsyncrun has made, and in the tests of failures (tests/fault/points) the code that it
// calls must be that of the library with fault points, which the program has loaded.

#include "syncrun/detail/export.hpp"

/// As SYNCRUN_EXPORT, but no part of the interface for programs: both libraries are always of the same build.
#define SYNCRUN_EXPORT_FOR_CUDA SYNCRUN_EXPORT
