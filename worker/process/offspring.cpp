#include "worker/process/offspring.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/os/environment.hpp"
#include "common/os/file_descriptor.hpp"
#include "worker/process/parent_link.hpp"

namespace syncrun::detail::worker::process {

namespace {

// "SYNCRUN_JOB=..." with the terminating zero, so that a longer value does not match. Written before the signal handler
// that reads it is installed.
std::array<char, 64> mark{};
std::size_t mark_bytes = 0;

constexpr int kMostRounds = 100;

/// The entries of a folder. Uses getdents64(2), because readdir(3) allocates memory.
class Entries {
 public:
  explicit Entries(int folder) noexcept : folder_(folder) {}
  /// The next name; null at the end.
  const char* next() noexcept {
    if (at_ == end_) {
      const long count = ::syscall(SYS_getdents64, folder_, bytes_.data(), bytes_.size());
      if (count <= 0) return nullptr;
      at_ = 0;
      end_ = static_cast<std::size_t>(count);
    }
    const Entry* entry = reinterpret_cast<const Entry*>(&bytes_[at_]);
    at_ += entry->bytes;
    return entry->name;
  }

 private:
  struct Entry {  // linux_dirent64
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t bytes;
    std::uint8_t type;
    char name[1];
  };
  int folder_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  alignas(8) std::array<char, 2048> bytes_{};
};

/// The number of the process or thread to which a folder of /proc belongs; 0 for other entries.
int number_of(const char* name) noexcept {
  int number = 0;
  for (; *name >= '0' && *name <= '9'; ++name) number = number * 10 + (*name - '0');
  return *name == '\0' ? number : 0;
}

/// The path "NUMBER/file". Does not allocate memory.
class Path {
 public:
  Path(const char* number, const char* file) noexcept {
    char* end = ::stpncpy(text_.data(), number, kMostDigits);
    ::stpncpy(end, file, text_.size() - kMostDigits - 1);
  }
  const char* text() const noexcept { return text_.data(); }

 private:
  static constexpr std::size_t kMostDigits = 10;
  std::array<char, 32> text_{};
};

bool has_mark(int processes, const char* pid) noexcept {
  const os::FileDescriptor file(::openat(processes, Path(pid, "/environ").text(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return false;
  std::array<char, 4096> bytes;
  for (std::size_t kept = 0;;) {
    const ssize_t count = ::read(file.get(), &bytes[kept], bytes.size() - kept);
    if (count <= 0) return false;
    const std::size_t filled = kept + static_cast<std::size_t>(count);
    if (::memmem(bytes.data(), filled, mark.data(), mark_bytes) != nullptr) return true;
    kept = std::min(filled, mark_bytes - 1);  // the mark may begin in this part and end in the next one
    std::memmove(bytes.data(), &bytes[filled - kept], kept);
  }
}

/// Whether the process is itself a worker or helper. Such a process has a thread that watches the master
/// (worker/process/parent_link.cpp). A process that it has forked has not inherited this thread.
bool watches_master(int processes, const char* pid) noexcept {
  const os::FileDescriptor threads(::openat(processes, Path(pid, "/task").text(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!threads.is_open()) return false;
  Entries entries(threads.get());
  while (const char* thread = entries.next()) {
    if (number_of(thread) == 0) continue;
    const os::FileDescriptor file(::openat(threads.get(), Path(thread, "/comm").text(), O_RDONLY | O_CLOEXEC));
    std::array<char, 16> name{};
    if (file.is_open() && ::read(file.get(), name.data(), name.size()) > 0 &&
        std::string_view(name.data(), name.size()).starts_with(kLifeThread)) {
      return true;
    }
  }
  return false;
}

/// Kills the processes with the mark that one pass through /proc finds. Returns whether it found one. Such a process
/// may have started another one in the meantime.
bool end_round(int processes) noexcept {
  bool has_found = false;
  const pid_t self = ::getpid();
  ::lseek(processes, 0, SEEK_SET);
  Entries entries(processes);
  while (const char* name = entries.next()) {
    const int pid = number_of(name);
    if (pid == 0 || pid == self) continue;
    // The pidfd is opened before the checks, because the kernel may give the number to another process at any moment.
    const os::FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process.is_open() || !has_mark(processes, name) || watches_master(processes, name)) continue;
    if (::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0) has_found = true;
  }
  return has_found;
}

}  // namespace

void remember_mark() noexcept {
  const char* value = std::getenv(environment::kJob);
  if (value == nullptr) return;
  const int bytes = std::snprintf(mark.data(), mark.size(), "%s=%s", environment::kJob, value);
  if (bytes > 0 && static_cast<std::size_t>(bytes) < mark.size()) mark_bytes = static_cast<std::size_t>(bytes) + 1;
}

namespace {

/// Whether the process numbers in /proc are valid for this process. /proc may belong to another pid namespace.
bool is_of_our_namespace(int processes) noexcept {
  std::array<char, 16> self{};
  return ::readlinkat(processes, "self", self.data(), self.size() - 1) > 0 && number_of(self.data()) == ::getpid();
}

}  // namespace

void end_offspring() noexcept {
  if (mark_bytes == 0) return;
  // The readers of these streams have died with the master. Closing the streams makes sure that there are free
  // descriptors, even if the limit was reached.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  const os::FileDescriptor processes(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!processes.is_open() || !is_of_our_namespace(processes.get())) return;
  for (int round = 0; round < kMostRounds && end_round(processes.get()); ++round) {
  }
}

}  // namespace syncrun::detail::worker::process
