#include "worker/offspring.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/environment.hpp"
#include "common/file_descriptor.hpp"
#include "worker/parent_link.hpp"

namespace syncrun::detail {

namespace {

// "SYNCRUN_JOB=..." with the zero behind it, by which a longer one differs. Written before there is a handler that reads it.
std::array<char, 64> mark{};
std::size_t mark_bytes = 0;
std::atomic<bool> has_closed_streams{false};

constexpr int kMostRounds = 100;

/// Entries of a folder, by getdents64(2): readdir(3) allocates memory.
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

/// The process or thread that a folder of /proc is of; 0 for other entries.
int number_of(const char* name) noexcept {
  int number = 0;
  for (; *name >= '0' && *name <= '9'; ++name) number = number * 10 + (*name - '0');
  return *name == '\0' ? number : 0;
}

/// "NUMBER/file", put together without a library that might allocate.
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
  const FileDescriptor file(::openat(processes, Path(pid, "/environ").text(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return false;
  std::array<char, 4096> bytes;
  for (std::size_t kept = 0;;) {
    const ssize_t count = ::read(file.get(), &bytes[kept], bytes.size() - kept);
    if (count <= 0) return false;
    const std::size_t filled = kept + static_cast<std::size_t>(count);
    if (::memmem(bytes.data(), filled, mark.data(), mark_bytes) != nullptr) return true;
    kept = std::min(filled, mark_bytes - 1);  // it may begin here and end in the next part
    std::memmove(bytes.data(), &bytes[filled - kept], kept);
  }
}

/// Whether it is a worker or helper itself: it has the thread that watches the master (worker/parent_link.cpp). What it has
/// forked has inherited all but that thread.
bool watches_master(int processes, const char* pid) noexcept {
  const FileDescriptor threads(::openat(processes, Path(pid, "/task").text(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!threads.is_open()) return false;
  Entries entries(threads.get());
  while (const char* thread = entries.next()) {
    if (number_of(thread) == 0) continue;
    const FileDescriptor file(::openat(threads.get(), Path(thread, "/comm").text(), O_RDONLY | O_CLOEXEC));
    std::array<char, 16> name{};
    if (file.is_open() && ::read(file.get(), name.data(), name.size()) > 0 &&
        std::string_view(name.data(), name.size()).starts_with(kLifeThread)) {
      return true;
    }
  }
  return false;
}

/// Kills those that a walk through /proc finds. Returns whether there was one: it may have started another one meanwhile.
bool end_round(int processes) noexcept {
  bool has_found = false;
  const pid_t self = ::getpid();
  ::lseek(processes, 0, SEEK_SET);
  Entries entries(processes);
  while (const char* name = entries.next()) {
    const int pid = number_of(name);
    if (pid == 0 || pid == self) continue;
    // Opened before anything is looked at: the number may be given to another process at any moment.
    const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
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

/// Whether the numbers in /proc are those by which we may name processes: it may be another namespace's.
bool is_of_our_namespace(int processes) noexcept {
  std::array<char, 16> self{};
  return ::readlinkat(processes, "self", self.data(), self.size() - 1) > 0 && number_of(self.data()) == ::getpid();
}

}  // namespace

void end_offspring() noexcept {
  if (mark_bytes == 0) return;
  // Their readers are gone with the master; now there are descriptors for this, whatever the limit. Once only: the signal and
  // the thread that watches the master may both come here, and the numbers are the other's descriptors by then.
  if (!has_closed_streams.exchange(true)) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  }
  const FileDescriptor processes(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!processes.is_open() || !is_of_our_namespace(processes.get())) return;
  for (int round = 0; round < kMostRounds && end_round(processes.get()); ++round) {
  }
}

}  // namespace syncrun::detail
