#pragma once

// The signals with which users, engines and schedulers tell a job to stop.

#include <array>
#include <chrono>
#include <csignal>

namespace syncrun::detail::os {

/// Schedulers send any of them. Each ends a process that does not handle it.
inline constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};

/// A signal that comes again so soon is the same request: timeout(1) sends it to a process and then to its group. Slurm
/// sends SIGTERM for the time limit, and again for the end of the job.
constexpr std::chrono::milliseconds longest_echo(int signal) noexcept {
  return std::chrono::milliseconds(signal == SIGTERM ? 1000 : 100);
}

/// Handles those of these signals that have the default action. Programs that this process starts, and children that it
/// forks, have the default action.
void handle_stop_signals(void (*handler)(int, siginfo_t*, void*)) noexcept;

/// From now on, these signals do nothing in this process, except those that it handles or ignores already. Unblocks them in
/// this thread.
void outlive_stop_signals() noexcept;

}  // namespace syncrun::detail::os
