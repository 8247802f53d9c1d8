#include "worker/attachment.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/image.hpp"
#include "common/life.hpp"

namespace syncrun::detail {

namespace {

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw Error(ErrorKind::system, std::string("a worker was started without ") + name);
  std::string text = value;
  ::unsetenv(name);
  return text;
}

FileDescriptor take_descriptor(const char* name) {
  FileDescriptor fd(std::stoi(take_variable(name)));
  check_system(::fcntl(fd.get(), F_SETFD, FD_CLOEXEC), name);
  return fd;
}

/// The thread that stands for this process: it holds the sign of life and blocks on the master's socket. End of file
/// means the master is gone.
void live_and_watch(pthread_mutex_t& life, std::atomic<bool>& holds, FileDescriptor socket) {
  hold_life(life);
  // Each thread has a death signal of its own; see die_with.
  check_system(::prctl(PR_SET_PDEATHSIG, SIGCONT), "prctl(PR_SET_PDEATHSIG)");
  holds.store(true);
  holds.notify_all();
  char byte = 0;
  for (;;) {
    const auto count = ::recv(socket.get(), &byte, 1, 0);
    if (count == 0 || (count < 0 && errno != EINTR)) die_with_group();
  }
}

/// A second way to learn of the master's death, for when that thread cannot run. Until now it was SIGKILL (set before
/// exec); from here on a handler takes this worker's children along. If this worker is stopped at that moment, the other
/// thread's SIGCONT lets it get there. (The kernel's own, to orphaned groups, does not come where a process of the
/// master's session adopts the orphans: a shell that is a container's first process.)
void die_with(pid_t master) {
  const int death_signal = SIGRTMAX;
  struct sigaction action {};
  action.sa_handler = [](int) { die_with_group(); };
  ::sigfillset(&action.sa_mask);
  check_system(::sigaction(death_signal, &action, nullptr), "cannot handle the signal of the master's death");
  check_system(::prctl(PR_SET_PDEATHSIG, death_signal), "prctl(PR_SET_PDEATHSIG)");
  if (::getppid() != master) die_with_group();
}

void check_image(const ControlHeader& header) {
  const ImageAddress mine = program_image();
  ImageAddress masters{};
  masters.build_id_bytes = header.build_id_bytes;
  masters.build_id = header.build_id;
  if (mine.build_id_bytes != header.build_id_bytes ||
      std::memcmp(mine.build_id.data(), header.build_id.data(), mine.build_id_bytes) != 0) {
    throw Error(ErrorKind::system, "this worker runs another image (" + describe_build_id(mine) +
                                       ") than its master (" + describe_build_id(masters) + ")");
  }
}

}  // namespace

void die_with_group() noexcept {
  // Only as the leader of a group of its own: else the group is somebody else's (a process that a body forked).
  if (::getpgrp() == ::getpid()) ::kill(0, SIGKILL);
  ::_exit(127);
}

std::optional<Attachment> attach_if_worker() {
  if (std::getenv(environment::kWorkerRank) == nullptr) return std::nullopt;
  die_with(std::stoi(take_variable(environment::kMasterPid)));

  Attachment attachment;
  attachment.rank = std::stoi(take_variable(environment::kWorkerRank));
  attachment.device = take_variable(environment::kDevice);
  attachment.segment =
      Segment::attach(take_descriptor(environment::kSegmentFd), std::stoull(take_variable(environment::kSegmentBytes)));
  FileDescriptor socket = take_descriptor(environment::kSocketFd);

  const auto& header = *attachment.segment.at<ControlHeader>(0);
  if (header.magic != kMagic) throw Error(ErrorKind::system, "the session's shared memory speaks another protocol");
  attachment.world_size = static_cast<int>(header.world_size);
  attachment.control = ControlBlock(attachment.segment.base(), attachment.world_size);
  if (header.timelines_offset != 0) {
    attachment.timeline = attachment.segment.at<Timeline>(header.timelines_offset) + attachment.rank;
  }

  WorkerSlot& slot = attachment.slot();
  slot.progress.store(progress_word(0, Phase::start));
  std::atomic<bool> holds{false};
  std::thread(live_and_watch, std::ref(slot.life), std::ref(holds), std::move(socket)).detach();
  holds.wait(false);
  check_image(header);
  return attachment;
}

}  // namespace syncrun::detail
