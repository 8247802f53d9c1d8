#include "worker/process/crash_report.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/os/crash_signals.hpp"
#include "common/os/environment.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/crash_report.hpp"
#include "common/text/fixed_text.hpp"
#include "worker/process/named_memory.hpp"

namespace syncrun::detail::worker::process {

namespace {

// A signal handler gets no arguments from Syncrun, so it reads global variables.
constinit std::atomic<const os::KeptDescriptor*> link_to_master{nullptr};
constinit std::atomic<pid_t> reporter{0};     // a process that a body has forked has another number
constinit std::atomic<pid_t> life_thread{0};  // receives the answer
constinit std::atomic<bool> has_reported{false};
constinit os::Doorbell answer{};  // rung once

#if defined(__x86_64__)

protocol::CrashReport report_of(const ucontext_t& context) noexcept {
  constexpr std::array kOrder{REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                              REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  protocol::CrashReport report{::getpid(), ::gettid(), {}, {}};
  text::put_text(report.used, name_of_memory(static_cast<std::uint64_t>(context.uc_mcontext.gregs[REG_CR2])));
  static_assert(kOrder.size() == std::tuple_size_v<decltype(report.registers)>);
  for (std::size_t i = 0; i < kOrder.size(); ++i)
    report.registers[i] = static_cast<std::uint64_t>(context.uc_mcontext.gregs[kOrder[i]]);
  return report;
}

bool send(const os::KeptDescriptor& link, const protocol::CrashReport& report) noexcept {
  if (!link.is_intact()) return false;
  const auto count = ::send(link.get(), &report, sizeof(report), MSG_DONTWAIT | MSG_NOSIGNAL);
  return count == static_cast<ssize_t>(sizeof(report));
}

void await_answer() noexcept {
  const auto end = os::Clock::now() + protocol::kCrashAnswerLimit;
  while (answer.rings.load() == 0) {
    const auto left = end - os::Clock::now();
    if (left.count() <= 0) return;
    answer.sleep(0, left);
  }
}

/// If several threads crash, the first one reports. The others wait with it, because the death of one ends all.
void report_crash(const ucontext_t& context) noexcept {
  const os::KeptDescriptor* const link = link_to_master.load();
  if (link == nullptr || ::getpid() != reporter.load() || ::gettid() == life_thread.load()) return;
  if (!has_reported.exchange(true) && !send(*link, report_of(context))) answer.wake();
  await_answer();
}

#else

void report_crash(const ucontext_t&) noexcept {}

#endif

/// Failure is allowed: then only the overflow of a stack is not reported.
void provide_signal_stack() noexcept {
  constexpr std::size_t kLeastBytes = std::size_t{64} << 10U;
  stack_t present{};
  if (::sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
  const auto usual = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_SIGSTKSZ)));
  const std::size_t bytes = std::max(usual, kLeastBytes);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t own{.ss_sp = memory, .ss_flags = 0, .ss_size = bytes};
  ::sigaltstack(&own, nullptr);
}

}  // namespace

void set_crash_link(const os::KeptDescriptor& link) noexcept {
  life_thread.store(::gettid());
  reporter.store(::getpid());
  link_to_master.store(&link);
}

void note_crash_answer() noexcept { answer.wake(); }

/// Valgrind prints the stack itself, and does not run an instruction again after a handler.
void report_crashes() {
  if (environment::is_in_valgrind()) return;
  provide_signal_stack();
  os::run_at_crash(report_crash, os::HandlersBefore::stay);
}

}  // namespace syncrun::detail::worker::process
