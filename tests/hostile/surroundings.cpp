#include "tests/hostile/surroundings.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace syncrun::test {

namespace {

constexpr int kCannot = 99;
/// Differs from one test process to the next. Its children have the same value.
const uid_t kStranger = 300'000 + static_cast<uid_t>(::getpid()) % 100'000;

Arguments command_of(Front front, const Arguments& arguments) {
  Arguments command;
  if (front == Front::syncrun) command.emplace_back(ODD_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

void write_now(const char* file, const std::string& text) {
  const int fd = ::open(file, O_WRONLY | O_CLOEXEC);
  require(fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  ::close(fd);
}

/// Enters a new mount namespace. A process that may not do so becomes root in a user namespace at the same time.
void leave_mount_namespace() {
  const uid_t user = ::getuid();
  const gid_t group = ::getgid();
  if (::unshare(CLONE_NEWNS) != 0) {
    require(::unshare(CLONE_NEWNS | CLONE_NEWUSER) == 0);
    write_now("/proc/self/setgroups", "deny");
    const auto as_root = [](unsigned id) { return std::string("0 ").append(std::to_string(id)).append(" 1"); };
    write_now("/proc/self/uid_map", as_root(user));
    write_now("/proc/self/gid_map", as_root(group));
  }
  require(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
}

}  // namespace

std::string to_string(Front front) { return front == Front::nothing ? "Alone" : "BehindSyncrun"; }

OddRun::OddRun(Front front, const Arguments& arguments, const Start& start)
    : CommandRun(command_of(front, arguments), start, front == Front::nothing ? ODD_PROGRAM : "") {}

std::string sum_of(long long bytes) { return "2 workers add up " + std::to_string(bytes) + "\n"; }

void require(bool succeeded) {
  if (!succeeded) ::_exit(kCannot);
}

void limit(int resource, rlim_t value) {
  const rlimit wanted{value, value};
  require(::setrlimit(static_cast<__rlimit_resource_t>(resource), &wanted) == 0);
}

void mount_over(const std::string& folder, const std::string& options, unsigned long flags) {
  leave_mount_namespace();
  require(::mount("none", folder.c_str(), "tmpfs", flags, options.c_str()) == 0);
}

void become_user(uid_t user) {
  require(::setgroups(0, nullptr) == 0);
  require(::setgid(user) == 0);
  require(::setuid(user) == 0);
}

bool succeeds(const std::function<void()>& in_child) {
  const pid_t child = ::fork();
  if (child == 0) {
    in_child();
    ::_exit(0);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

bool can_mount() {
  return succeeds([] { mount_over("/dev/shm", "size=1m"); });
}

bool can_become_users() {
  return succeeds([] {
    become_user(first_stranger());
    require(::access(ODD_PROGRAM, X_OK) == 0);
  });
}

uid_t first_stranger() { return kStranger; }
uid_t second_stranger() { return kStranger + 100'000; }

}  // namespace syncrun::test
