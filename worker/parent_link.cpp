#include "worker/parent_link.hpp"

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

#include "common/errors.hpp"
#include "common/function_entry.hpp"
#include "common/image.hpp"
#include "common/life.hpp"
#include "common/threads.hpp"
#include "worker/offspring.hpp"

namespace syncrun::detail {

namespace {

/// End of file means the master is gone.
void live_and_watch(pthread_mutex_t* life, std::atomic<bool>& holds, KeptDescriptor socket) {
  ::pthread_setname_np(::pthread_self(), kLifeThread.data());
  if (life != nullptr) hold_life(*life);
  // Each thread has a death signal of its own; see die_with.
  check_system(::prctl(PR_SET_PDEATHSIG, SIGCONT), "prctl(PR_SET_PDEATHSIG)");
  holds.store(true);
  holds.notify_all();
  char byte = 0;
  for (;;) {
    // Where a body has closed the socket, a receive that has begun goes on all the same; another one cannot begin. The
    // death signal is left then.
    while (!socket.is_intact()) ::pause();
    const auto count = ::recv(socket.get(), &byte, 1, 0);
    // A process that is stopped or traced begins its system calls again when it goes on.
    const bool is_closed_here = count < 0 && (errno == EBADF || errno == ENOTSOCK);
    if (is_closed_here || (count < 0 && errno == EINTR)) continue;
    if (count <= 0) die_with_group();
  }
}

// The process that leads a group which ends with it: this one, unless a body forked it.
std::atomic<pid_t> family_leader{0};

/// The last thing that a worker does when it ends by itself, after its exit handlers and static destructors: ends what its
/// bodies have left running. The master does so too when it buries the worker; but it may be killed just before.
[[gnu::destructor]] void end_family() noexcept {
  const pid_t self = ::getpid();
  if (family_leader != self || ::getpgrp() != self) return;
  // Out of the group first, and into the master's, since all that are in it go. (That has the number 0, which would mean
  // our own, where it comes from outside a namespace of processes; then it is the master's to do.)
  const pid_t masters = ::getpgid(::getppid());
  if (masters > 0 && masters != self && ::setpgid(0, masters) == 0) ::kill(-self, SIGKILL);
}

}  // namespace

/// Until now it was SIGKILL (set before exec); from here on a handler takes this process's children along. If it is
/// stopped at that moment, the other thread's SIGCONT lets it get there. (The kernel's own, to orphaned groups, does not
/// come where a process of the master's session adopts the orphans: a shell that is a container's first process.)
void die_with(pid_t master) {
  remember_mark();
  const int death_signal = SIGRTMAX;
  struct sigaction action {};
  action.sa_handler = [](int) { die_with_group(); };
  ::sigfillset(&action.sa_mask);
  check_system(::sigaction(death_signal, &action, nullptr), "cannot handle the signal of the master's death");
  check_system(::prctl(PR_SET_PDEATHSIG, death_signal), "prctl(PR_SET_PDEATHSIG)");
  family_leader = ::getpid();
  if (::getppid() != master) die_with_group();
}

void live_while_open(FileDescriptor socket, pthread_mutex_t* life) {
  std::atomic<bool> holds{false};
  start_thread(live_and_watch, life, std::ref(holds), std::move(socket)).detach();
  holds.wait(false);
}

void check_image(std::uint32_t build_id_bytes, const std::array<std::uint8_t, 32>& build_id) {
  const ImageAddress mine = program_image();
  ImageAddress masters{};
  masters.build_id_bytes = build_id_bytes;
  masters.build_id = build_id;
  if (mine.build_id_bytes != build_id_bytes ||
      std::memcmp(mine.build_id.data(), build_id.data(), mine.build_id_bytes) != 0) {
    throw Error(ErrorKind::system, "this worker runs another image (" + describe_build_id(mine) +
                                       ") than its master (" + describe_build_id(masters) + ")");
  }
}

void flush_lines() {
  std::setvbuf(stdout, nullptr, _IOLBF, 1U << 16U);
  std::setvbuf(stderr, nullptr, _IOLBF, 1U << 16U);
}

void die_with_group() noexcept {
  // Only as the leader of a group of its own: else the group is somebody else's (a process that a body forked).
  if (::getpgrp() != ::getpid()) ::_exit(127);
  end_offspring();
  ::kill(0, SIGKILL);
  ::_exit(127);
}

}  // namespace syncrun::detail
