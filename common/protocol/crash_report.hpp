#pragma once

// A worker, a producer or a task that crashes sends one CrashReport to the master, over the socket that shows it the death
// of the master. It then waits until the master has read its stack and answers with one byte. After that, it dies.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace syncrun::detail::protocol {

struct CrashReport {
  std::int32_t pid;
  std::int32_t thread;  // that has crashed
  /// The registers at the crash: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip. This is the order of DWARF
  /// (System V ABI of AMD64, "DWARF Register Number Mapping").
  std::array<std::uint64_t, 17> registers;
  /// What the thread has used, if it is memory that has a name (NamedMemory). Otherwise empty.
  std::array<char, 120> used;
  static constexpr std::size_t kStackPointer = 7;
  static constexpr std::size_t kProgramCounter = 16;
};

/// How long the master may take to read the stack.
inline constexpr std::chrono::milliseconds kCrashStackLimit{500};
/// How long the process waits for the answer. Longer, because the master may be busy when the report comes.
inline constexpr std::chrono::milliseconds kCrashAnswerLimit{1000};

}  // namespace syncrun::detail::protocol
