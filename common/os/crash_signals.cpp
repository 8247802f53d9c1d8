#include "common/os/crash_signals.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail::os {

namespace {

constexpr std::array<int, 5> kCrashSignals{SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};

// A signal handler gets no arguments from Syncrun, so it reads global variables. A step that is there stays there.
constinit std::array<std::atomic<CrashStep>, 2> steps{};
static_assert(std::atomic<CrashStep>::is_always_lock_free);

void on_crash(int signal, siginfo_t* info, void* context) noexcept {
  const int error = errno;
  for (const auto& each : steps) {
    if (const CrashStep step = each.load()) step(*static_cast<const ucontext_t*>(context));
  }
  // The instruction that caused the signal runs again. Nothing repeats a signal that a process has sent.
  ::signal(signal, SIG_DFL);
  if (info->si_code <= 0) static_cast<void>(::raise(signal));
  errno = error;
}

void add(CrashStep step) {
  for (auto& each : steps) {
    CrashStep present = nullptr;
    if (each.compare_exchange_strong(present, step) || present == step) return;
  }
  throw Error(ErrorKind::system, "a crash has at most " + std::to_string(steps.size()) + " steps");
}

}  // namespace

void run_at_crash(CrashStep step, HandlersBefore before) {
  add(step);
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigfillset(&action.sa_mask);
  for (const int signal : kCrashSignals) {
    struct sigaction present {};
    text::check_system(::sigaction(signal, nullptr, &present), "sigaction");
    if (before == HandlersBefore::stay && present.sa_handler != SIG_DFL) continue;
    text::check_system(::sigaction(signal, &action, nullptr), "sigaction");
  }
}

}  // namespace syncrun::detail::os
