#pragma once

// What this process still does when it crashes: by SIGSEGV, SIGBUS, SIGABRT, SIGFPE or SIGILL. All parts of Syncrun share
// one signal handler, so none replaces that of another one. When it returns, the crash happens again without a handler,
// so a core file shows the place of the crash.

#include <signal.h>
#include <ucontext.h>

#include <cstdint>

namespace syncrun::detail::os {

/// A step of the handler. Makes async-signal-safe calls only. All signals are blocked in its thread meanwhile.
using CrashStep = void (*)(const ucontext_t& context) noexcept;

/// What happens to handlers of these signals that the program has set before.
enum class HandlersBefore : std::uint8_t { stay, are_replaced };

/// From now on, a crash runs the step, after the steps that were added before. Adding a step again changes only the
/// handlers. A handler that the program sets later replaces that of Syncrun. Throws Error (system).
void run_at_crash(CrashStep step, HandlersBefore before);

}  // namespace syncrun::detail::os
