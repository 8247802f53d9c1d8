#pragma once

// SYNCRUN_EXPORT: marks what the library offers to programs that link it. Everything else in the library is hidden
// (SyncrunOptions.cmake), so that a program's own spdlog, fmt or Boost cannot mix with those of the library. CMake's
// GenerateExportHeader is not necessary: the library is always a shared one for Linux, and GCC, Clang and nvcc use the
// same attribute when they compile the library and when they use it.

/// Marks each function, and each class with functions, that programs use from the library. Classes that are thrown need
/// it too, because a catch compares their type information.
#define SYNCRUN_EXPORT __attribute__((visibility("default")))
