#pragma once

// Whether the user or a scheduler has told the program to stop, so that it can save its state and end in time.
//   while (step < steps && !syncrun::stop_requested()) train(step++);
//   syncrun::save_checkpoint("run", arrays, {{"step", step}});
//   return step < steps ? syncrun::kRequeueExitCode : 0;

#include <concepts>
#include <memory>
#include <utility>

#include "syncrun/detail/export.hpp"
#include "syncrun/detail/master_interface.hpp"

namespace syncrun {

/// The exit code for this case: the program was told to stop, has saved its state, and asks the scheduler to start it again.
/// It is EX_TEMPFAIL of sysexits.h. The batch script in docs/nodes.md lets Slurm queue the job again after this code.
inline constexpr int kRequeueExitCode = 75;

/// Returns true once SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 has come to the program, or request_stop() was called. The first
/// call begins to listen. Before it, each of these signals ends the program, as usual. Signals that the program handles or
/// ignores at that time stay as they are, and do not count. A handler that the program sets later replaces that of Syncrun.
///
/// From the first call on, `syncrun` sets no limit on the time that the program takes to end, unless `--grace` was given. A
/// second SIGTERM or SIGINT to `syncrun`, or to a program without it, ends everything at once. Workers continue until the
/// program ends. On several nodes, the engine may send the signal to all nodes.
///
/// The master calls this function, in any thread. It takes a few nanoseconds. In a worker, the result is always false.
SYNCRUN_EXPORT bool stop_requested() noexcept;

/// Makes stop_requested() true. Any thread of the master and any signal handler may call it, because it is
/// async-signal-safe: call it in a handler of your own, or when another event has to stop the program.
SYNCRUN_EXPORT void request_stop() noexcept;

/// Begins to listen, as stop_requested() does. When the program is told to stop, calls `callback` once, with the number of
/// the signal, or with 0 after request_stop(). If that has already happened, the call follows soon. A thread of Syncrun makes
/// the call, so the callback must not use a session or throw. What it refers to must live until the process ends. It is
/// never called in a worker. Throws Error (system) if the system refuses another thread.
template <std::invocable<int> F>
void on_stop(F callback) {
  auto owner = std::make_unique<F>(std::move(callback));
  const auto call = [](void* callable, int signal) { (*std::unique_ptr<F>(static_cast<F*>(callable)))(signal); };
  if (detail::call_at_stop(call, owner.get())) static_cast<void>(owner.release());
}

}  // namespace syncrun
