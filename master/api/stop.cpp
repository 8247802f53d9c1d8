#include "syncrun/stop.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string_view>

#include "common/os/environment.hpp"
#include "common/os/stop_signals.hpp"
#include "common/os/threads.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/process_role.hpp"
#include "common/protocol/supervisor_link.hpp"

namespace syncrun {

namespace detail {

namespace {

constexpr int kNoStopSignal = -1;

// A signal handler gets no arguments from Syncrun, so it reads global variables.
constinit std::atomic<int> first_stop_signal{kNoStopSignal};  // the first signal, or 0 for request_stop()
constinit std::atomic<std::int64_t> stop_asked_ns{0};
constinit std::atomic<bool> has_supervisor{false};
constinit os::Doorbell stop_bell{};  // rung once

void note_stop(int signal) noexcept {
  int none = kNoStopSignal;
  if (first_stop_signal.compare_exchange_strong(none, signal)) stop_bell.wake();
}

/// `syncrun` kills everything at a second request to end. Without it, the default action ends the program, as soon as this
/// handler has returned.
void on_stop_signal(int signal, siginfo_t* info, void*) noexcept {
  const int error = errno;
  note_stop(signal);
  if (signal == SIGTERM || signal == SIGINT) {
    const auto now = os::Clock::now().time_since_epoch();
    std::int64_t first_ns = 0;
    const bool is_first = stop_asked_ns.compare_exchange_strong(first_ns, std::chrono::nanoseconds(now).count());
    const bool is_echo =
        info->si_code != SI_KERNEL && now - std::chrono::nanoseconds(first_ns) < os::longest_echo(signal);
    if (!is_first && !is_echo && !has_supervisor.load()) {
      ::signal(signal, SIG_DFL);
      static_cast<void>(::raise(signal));
    }
  }
  errno = error;
}

bool set_stop_handlers() noexcept {
  const protocol::SupervisorLink& link = protocol::supervisor_link();
  link.send({protocol::SupervisorMessage::Kind::stops, 0, ""});
  has_supervisor = link.is_connected();
  os::handle_stop_signals(on_stop_signal);
  return true;
}

/// A program may listen before it calls run(), which makes this process a worker or an agent.
bool serves_the_master() noexcept {
  const char* const node = environment::get(environment::kNode);
  return protocol::is_in_worker() || environment::get(environment::kWorkerRank) != nullptr ||
         environment::get(environment::kHelper) != nullptr || (node != nullptr && std::string_view(node) != "0");
}

/// A process that serves the master may begin with these signals held back. They must not stay so until run(), because
/// programs that are started before would inherit that. The library is loaded before the code of the program runs.
[[maybe_unused]] const bool has_no_signals_held = [] {
  if (serves_the_master()) os::outlive_stop_signals();
  return true;
}();

/// Returns true in the master. Listens once.
bool listen_to_stops() noexcept {
  if (serves_the_master()) return false;
  static const bool listens = set_stop_handlers();
  return listens;
}

void call_when_stopped(void (*call)(void*, int), void* callable) {
  while (first_stop_signal.load() == kNoStopSignal) {
    const std::uint32_t seen = stop_bell.rings.load();
    if (first_stop_signal.load() == kNoStopSignal) stop_bell.sleep(seen, std::chrono::hours(1));
  }
  call(callable, first_stop_signal.load());
}

}  // namespace

bool call_at_stop(void (*call)(void*, int), void* callable) {
  if (!listen_to_stops()) return false;
  os::start_thread(call_when_stopped, call, callable).detach();
  return true;
}

}  // namespace detail

bool stop_requested() noexcept {
  static const bool listens = detail::listen_to_stops();
  return listens && detail::first_stop_signal.load(std::memory_order_relaxed) != detail::kNoStopSignal;
}

void request_stop() noexcept { detail::note_stop(0); }

}  // namespace syncrun
