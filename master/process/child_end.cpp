#include "master/process/child_end.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/kernel_file.hpp"
#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "master/process/child_watcher.hpp"
#include "master/process/nursery.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::process {

namespace {

// How long the search for the cause of a death may delay the exception. The kernel reports a death only after it has
// freed the memory of the process.
constexpr os::Milliseconds kCauseLimit = std::chrono::seconds(5);
// The time between two checks whether the process has called exec.
constexpr os::Milliseconds kLookForEndEvery{25};

/// Whether the kernel gives core files to a program (or, since Linux 6.16, to a socket). The limit on their size does not
/// matter then.
bool are_cores_passed_on() {
  const std::string pattern = os::kernel_file("/proc/sys/kernel/core_pattern");
  return pattern.starts_with('|') || pattern.starts_with('@');
}

/// The status of a process that is ending, as of waitpid: the 50th field after the name in /proc/PID/stat. 0 if it is not
/// known.
int status_at_end(int pid) {
  constexpr int kField = 50;
  const std::string text = os::kernel_file("/proc/" + std::to_string(pid) + "/stat");
  const auto name_end = text.rfind(')');  // the name itself may contain any characters
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < kField; ++i) fields >> field;
  const auto status = environment::whole_number(field.c_str());
  return status ? static_cast<int>(*status) : 0;
}

/// The file of the program that a process runs. Empty if the process has given up its memory.
struct Image {
  dev_t device;
  ino_t file;
  bool operator==(const Image&) const = default;
};
std::optional<Image> image_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Image{status.st_dev, status.st_ino};
}

/// True if the process now runs a program that is not one of our workers or helpers. These run the program of this
/// process. If the process runs that program, it may have started it anew with exec. In this case, the environment
/// shows it: the kernel shows the environment that a program was started with (proc(5), /proc/PID/environ). Only our
/// processes are started with one of these variables. They remove it from their own copy, so a program that they start
/// with exec does not have it, unless it was saved.
bool runs_another_program(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/exe";
  const auto image = image_at(path);
  if (!image) return false;
  const auto own = image_at(own_image());
  if (own && *image != *own) return true;
  std::istringstream file(os::kernel_file("/proc/" + std::to_string(pid) + "/environ"));
  for (std::string variable; std::getline(file, variable, '\0');) {
    for (const char* role : {environment::kWorkerRank, environment::kHelper}) {
      if (variable.starts_with(std::string(role) + "=")) return false;
    }
  }
  // A process that has given up its memory in the meantime shows no environment either.
  return image_at(path) == image;
}

std::string program_of(int pid) {
  std::vector<char> path(PATH_MAX);
  const auto length = ::readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), path.data(), path.size());
  return length <= 0 ? "another program" : std::string(path.data(), static_cast<std::size_t>(length));
}

}  // namespace

std::optional<int> core_dump_of(int pid) {
  static const bool passed_on = are_cores_passed_on();
  rlimit limit{};
  const bool is_possible = passed_on || ::prlimit(pid, RLIMIT_CORE, nullptr, &limit) != 0 || limit.rlim_cur != 0;
  if (!is_possible) return std::nullopt;
  const std::string status = os::kernel_file("/proc/" + std::to_string(pid) + "/status");
  if (status.find("\nCoreDumping:\t1\n") == std::string::npos) return std::nullopt;
  return WTERMSIG(status_at_end(pid));
}

std::string describe_crash(int signal) { return signal == 0 ? "crashed" : describe_status(signal); }

namespace {

ChildEnd find_end(Nursery& nursery, int child) {
  os::Patience patience(kCauseLimit);
  do {
    if (const auto status = nursery.await_end(child, kLookForEndEvery)) return {status, describe_status(*status)};
    if (!runs_another_program(nursery.pid(child))) continue;
    std::string cause = "called exec: its process runs " + program_of(nursery.pid(child)) +
                        " now. A function must fork before it calls exec";
    nursery.kill(child);
    const auto status = nursery.await_end(child, kCauseLimit);
    return {status, std::move(cause)};
  } while (!patience.is_over());
  if (const auto signal = core_dump_of(nursery.pid(child))) {
    const os::Milliseconds longest = std::max(kCauseLimit, nursery.grace());
    if (const auto status = nursery.await_end(child, longest - kCauseLimit)) return {status, describe_status(*status)};
    nursery.kill(child);
    const bool has_ended = nursery.await_end(child, kCauseLimit).has_value();
    return {has_ended ? signal : std::nullopt,
            describe_crash(*signal) + "; its core file is cut off, because it was not complete after " +
                std::to_string(longest.count()) + " ms (SessionOptions::grace sets a longer limit)"};
  }
  return {std::nullopt, "died (its cause is not known yet)"};
}

}  // namespace

ChildEnd await_child_end(Nursery& nursery, int child) {
  ChildEnd end = find_end(nursery, child);
  end.crash = nursery.crash_stack(child);
  return end;
}

std::optional<BadEnd> await_expected_ends(Nursery& nursery, os::Milliseconds grace) {
  const bool in_time = nursery.await_all_ends(grace);
  std::optional<BadEnd> bad;
  for (int child = 0; child < nursery.size() && !bad; ++child) {
    const bool is_late = !nursery.await_end(child, os::Milliseconds(0));
    if (is_late) nursery.kill_all();
    ChildEnd end = await_child_end(nursery, child);
    if (is_late) bad = {child, killed_after(grace)};
    else if (!end.is_good()) bad = {child, std::move(end.cause)};
  }
  if (!in_time) nursery.kill_all();
  return bad;
}

std::string killed_after(os::Milliseconds grace) {
  return "did not end within " + std::to_string(grace.count()) + " ms and was killed";
}

}  // namespace syncrun::detail::master::process
