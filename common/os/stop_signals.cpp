#include "common/os/stop_signals.hpp"

#include <pthread.h>

#include <atomic>

namespace syncrun::detail::os {

namespace {

// fork() gives no arguments to its hook, so this is global.
constinit std::atomic<void (*)(int, siginfo_t*, void*)> stop_handler{nullptr};

thread_local sigset_t mask_before_fork;

void change_mask(int how, sigset_t* before) noexcept {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kStopSignals) ::sigaddset(&set, signal);
  ::pthread_sigmask(how, &set, before);
}

/// A signal to the child waits until the child has the default action.
void hold_stop_signals() noexcept { change_mask(SIG_BLOCK, &mask_before_fork); }
void release_stop_signals() noexcept { ::pthread_sigmask(SIG_SETMASK, &mask_before_fork, nullptr); }

/// Nobody could end a child with SIGTERM if it inherited the handler.
void restore_default_in_child() noexcept {
  for (const int signal : kStopSignals) {
    struct sigaction present {};
    const bool is_ours = ::sigaction(signal, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) != 0 &&
                         present.sa_sigaction == stop_handler.load();
    if (is_ours) ::signal(signal, SIG_DFL);
  }
  release_stop_signals();
}

}  // namespace

void handle_stop_signals(void (*handler)(int, siginfo_t*, void*)) noexcept {
  stop_handler.store(handler);
  // Failure is allowed: there is no memory for the hook. Then only forked children are different.
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(hold_stop_signals, release_stop_signals, restore_default_in_child);
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : kStopSignals) {
    struct sigaction present {};
    if (::sigaction(signal, nullptr, &present) == 0 && present.sa_handler == SIG_DFL)
      ::sigaction(signal, &action, nullptr);
  }
}

void outlive_stop_signals() noexcept {
  handle_stop_signals([](int, siginfo_t*, void*) {});
  change_mask(SIG_UNBLOCK, nullptr);
}

}  // namespace syncrun::detail::os
