#include "launcher/child_end.hpp"

#include <unistd.h>

#include <climits>
#include <fstream>
#include <sstream>
#include <vector>

#include "common/errors.hpp"
#include "common/wait.hpp"
#include "launcher/nursery.hpp"
#include "launcher/spawn.hpp"

namespace syncrun::detail {

namespace {

// How long the cause of a death may keep the exception: the kernel reports it once the memory is gone.
constexpr Milliseconds kCauseLimit = std::chrono::seconds(5);
// Between two looks whether the process goes on with another program.
constexpr Milliseconds kLookEvery{25};

/// True for a process that runs, and is not on its way to its end. Source: proc(5), /proc/PID/stat, state and flags; the
/// flag is PF_EXITING of the kernel's include/linux/sched.h, which a process has before its robust mutexes are marked.
bool goes_on(int pid) {
  constexpr unsigned long kExiting = 0x4;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');  // the name itself may hold anything
  if (name_end == std::string::npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state;
  std::string skipped;
  unsigned long flags = 0;
  fields >> state;
  for (int field = 0; field < 5; ++field) fields >> skipped;  // ppid, pgrp, session, tty_nr, tpgid
  if (!(fields >> flags)) return false;
  return state != "Z" && state != "X" && (flags & kExiting) == 0;
}

std::string program_of(int pid) {
  std::vector<char> path(PATH_MAX);
  const auto length = ::readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), path.data(), path.size());
  return length <= 0 ? "another program" : std::string(path.data(), static_cast<std::size_t>(length));
}

}  // namespace

ChildEnd await_child_end(Nursery& nursery, int child) {
  Patience patience(kCauseLimit);
  int looks_alive = 0;
  do {
    if (const auto status = nursery.await_end(child, kLookEvery)) return {status, describe_status(*status)};
    // More than once: exec takes a moment, in which the old program's name still stands.
    if (!goes_on(nursery.pid(child)) || ++looks_alive < 3) continue;
    std::string cause = "called exec: its process runs " + program_of(nursery.pid(child)) +
                        " now. A function must fork before it calls exec";
    nursery.kill(child);
    const auto status = nursery.await_end(child, kCauseLimit);
    return {status, std::move(cause)};
  } while (!patience.is_over());
  return {std::nullopt, "died (its cause is not known yet)"};
}

}  // namespace syncrun::detail
