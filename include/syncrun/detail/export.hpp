#pragma once

// What the library offers to programs that link it. Everything else in it is hidden (SyncrunOptions.cmake), so that a
// program's own spdlog, fmt or Boost never meets the library's. Written by hand, not by CMake's GenerateExportHeader: there
// is one form of the library, a shared one for Linux, and GCC, Clang and nvcc spell it the same way when the library is
// compiled and when it is used.

/// Stands before each function, and each class with functions, that programs find in the library. A class that is thrown
/// has it as well: whoever catches it compares its type information.
#define SYNCRUN_EXPORT __attribute__((visibility("default")))
