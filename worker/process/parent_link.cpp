#include "worker/process/parent_link.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "common/os/sign_of_life.hpp"
#include "common/os/stop_signals.hpp"
#include "common/os/threads.hpp"
#include "common/protocol/function_address.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/text/errors.hpp"
#include "worker/process/crash_report.hpp"
#include "worker/process/offspring.hpp"

namespace syncrun::detail::worker::process {

namespace {

/// Holds the sign of life, and waits until the socket reports end of file, which means that the master has died. A byte
/// is the answer to the report of a crash.
void live_and_watch(pthread_mutex_t* life, std::atomic<bool>& holds, os::KeptDescriptor socket) {
  ::pthread_setname_np(::pthread_self(), kLifeThread.data());
  if (life != nullptr) os::hold_life(*life);
  // Each thread has its own death signal; see die_with.
  text::check_system(::prctl(PR_SET_PDEATHSIG, SIGCONT), "prctl(PR_SET_PDEATHSIG)");
  set_crash_link(socket);
  holds.store(true);
  holds.notify_all();
  char byte = 0;
  for (;;) {
    // If a body has closed the socket, a receive that has already begun continues, but a new one cannot begin. Then
    // only the death signal remains.
    while (!socket.is_intact()) ::pause();
    const auto count = ::recv(socket.get(), &byte, 1, 0);
    // After a process was stopped or traced, a system call may return EINTR. Then it is made again.
    const bool is_closed_here = count < 0 && (errno == EBADF || errno == ENOTSOCK);
    if (is_closed_here || (count < 0 && errno == EINTR)) continue;
    if (count <= 0) die_with_group();
    note_crash_answer();
  }
}

// The process that ends its process group when it ends. A process that a body has forked finds another number here.
std::atomic<pid_t> family_leader{0};
std::atomic<pid_t> leaders_master{0};       // the parent of that process, as long as the parent lives
std::atomic<bool> dies_with_master{false};  // a thread is in die_with_group

/// Runs when a worker or helper ends by itself, after its exit handlers and static destructors. Kills what its bodies
/// have left running. The master does this too when it reaps the process, but the master may be killed just before.
[[gnu::destructor]] void end_family() noexcept {
  const pid_t self = ::getpid();
  if (family_leader != self) return;
  // This process first moves to the group of the master, because the signal kills all processes of its own group. The
  // group of the master has the number 0 if the master is outside this pid namespace. As an argument of setpgid, 0
  // would mean the process's own group. In this case, the master has to kill the group.
  if (::getpgrp() == self) {
    const pid_t masters = ::getpgid(leaders_master);
    if (masters > 0 && masters != self) ::setpgid(0, masters);
  }
  if (::getpgrp() != self) ::kill(-self, SIGKILL);
  // If the master has died, the other thread may be ending the offspring. It cannot finish if this thread ends the process.
  if (dies_with_master || ::getppid() != leaders_master) die_with_group();
}

}  // namespace

/// Before this call, the death signal is SIGKILL, which was set before exec. From here on, a signal handler also ends
/// the children of this process. If this process is stopped when the master dies, SIGCONT, the death signal of the
/// other thread, lets the handler run. The SIGCONT that the kernel sends to orphaned process groups is not enough. The
/// kernel does not send it if a process of the master's session adopts the orphans, for example a shell that is the
/// first process of a container.
void die_with(pid_t parent, ParentIs parent_is) {
  os::outlive_stop_signals();
  remember_mark();
  leaders_master = parent;
  family_leader = ::getpid();
  struct sigaction action {};
  action.sa_handler = [](int) { die_with_group(); };
  ::sigfillset(&action.sa_mask);
  int death_signal = SIGRTMAX;
  // Valgrind keeps the last signal for itself.
  if (::sigaction(death_signal, &action, nullptr) != 0 && errno == EINVAL) --death_signal;
  text::check_system(::sigaction(death_signal, &action, nullptr), "cannot handle the signal of the master's death");
  const bool is_wrapped = parent_is == ParentIs::wrapper;
  text::check_system(::prctl(PR_SET_PDEATHSIG, is_wrapped ? 0 : death_signal), "prctl(PR_SET_PDEATHSIG)");
  if (!is_wrapped && ::getppid() != parent) die_with_group();
}

void live_while_open(os::FileDescriptor socket, pthread_mutex_t* life) {
  std::atomic<bool> holds{false};
  os::start_thread(live_and_watch, life, std::ref(holds), std::move(socket)).detach();
  holds.wait(false);
  report_crashes();
}

void check_image(std::uint32_t build_id_bytes, const std::array<std::uint8_t, 32>& build_id) {
  const protocol::ImageAddress mine = protocol::program_image();
  protocol::ImageAddress masters{};
  masters.build_id_bytes = build_id_bytes;
  masters.build_id = build_id;
  if (mine.build_id_bytes != build_id_bytes ||
      std::memcmp(mine.build_id.data(), build_id.data(), mine.build_id_bytes) != 0) {
    throw Error(ErrorKind::system, "this worker runs another image (" + protocol::describe_build_id(mine) +
                                       ") than its master (" + protocol::describe_build_id(masters) + ")");
  }
}

void flush_lines() { std::setvbuf(stdout, nullptr, _IOLBF, 1U << 16U); }

void die_with_group() noexcept {
  // A process that a body has forked ends without the group of the worker.
  const pid_t self = ::getpid();
  if (family_leader != self) ::_exit(127);
  // The handler may run on one thread while another one is here. Without signals, no handler can wait for its own thread.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (dies_with_master.exchange(true)) ::pause();  // the other thread ends the process, after 100 searches at most
  end_offspring();
  // end_family may have moved this process to another group. Its former group can still have no other leader.
  ::kill(-self, SIGKILL);
  ::_exit(127);
}

}  // namespace syncrun::detail::worker::process
