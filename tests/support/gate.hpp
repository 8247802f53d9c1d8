#pragma once

// A gate holds up bodies until the test opens it. So a test shows that something does not wait for a busy rank, without a
// limit in milliseconds: if it did wait, nobody would open the gate.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/slowdown.hpp"

namespace syncrun::test {

class Gate {
 public:
  /// An argument of a body.
  struct Key {
    int process;
    int file;
    ino_t inode;
  };

  Gate() : file_(::memfd_create("gate", MFD_CLOEXEC)) {
    struct stat status {};
    if (::fstat(file_, &status) != 0) throw std::runtime_error("memfd_create failed");
    inode_ = status.st_ino;
  }
  ~Gate() { ::close(file_); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Key key() const noexcept { return {::getpid(), file_, inode_}; }
  void open() {
    if (::ftruncate(file_, 1) != 0) throw std::runtime_error("ftruncate failed");
  }

 private:
  int file_;
  ino_t inode_ = 0;
};

/// Called by a body. Returns when the gate is open, or does not exist any more. Throws if nobody opens it for a long time.
inline void pass(Gate::Key key) {
  const std::string path = "/proc/" + std::to_string(key.process) + "/fd/" + std::to_string(key.file);
  const auto end = std::chrono::steady_clock::now() + kSlowdown * std::chrono::seconds(20);
  for (;;) {
    struct stat status {};
    const bool is_found = ::stat(path.c_str(), &status) == 0;
    if (!is_found && errno != ENOENT) throw std::runtime_error("the gate cannot be read");
    if (!is_found || status.st_ino != key.inode || status.st_size != 0) return;
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("nobody has opened the gate");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace syncrun::test
