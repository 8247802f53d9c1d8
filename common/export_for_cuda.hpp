#pragma once

// Marks what libsyncrun exports to Syncrun's other libraries, and to nothing else: to the library for CUDA devices
// (worker/devices/cuda), and to the one for LibTorch (libtorch). The library for CUDA devices has no copies of this
// code, because it works on objects that libsyncrun has made. In the fault tests (tests/fault/points), it must also call
// the code of the library with fault points, which the program has loaded.

#include "syncrun/detail/export.hpp"

/// Exports like SYNCRUN_EXPORT, but is not part of the interface for programs. All of these libraries always
/// come from the same build.
#define SYNCRUN_EXPORT_FOR_CUDA SYNCRUN_EXPORT
