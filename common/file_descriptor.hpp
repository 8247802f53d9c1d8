#pragma once

// Owners of file descriptors. Everything opened here is CLOEXEC from birth.
//
// The program shares the table of descriptors with us, and may close what is ours (closefrom(3)); the number is then
// the next file's that it opens. So a descriptor that we keep while the program's own code runs has an owner that
// remembers what was opened, and can be asked whether that is still there.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace syncrun::detail {

/// Owns a descriptor within one function of ours, or on its way to a KeptDescriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

/// Owns a descriptor for longer. Making one, asking it and closing it cost one fstat each.
class KeptDescriptor {
 public:
  KeptDescriptor() = default;
  KeptDescriptor(FileDescriptor&& fd) noexcept : fd_(fd.release()) {  // NOLINT(google-explicit-constructor)
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) return;
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  KeptDescriptor(KeptDescriptor&& other) noexcept { *this = std::move(other); }
  KeptDescriptor& operator=(KeptDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(device_, other.device_);
    std::swap(inode_, other.inode_);
    return *this;
  }
  ~KeptDescriptor() { reset(); }

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  /// Whether the number still refers to what it was opened for: the program has neither closed it nor opened something
  /// else under it. (Not told apart: two eventfds, epolls or signalfds, and two pidfds before Linux 6.9.)
  bool is_intact() const noexcept {
    if (fd_ < 0) return false;
    struct stat status {};
    if (::fstat(fd_, &status) != 0) return errno != EBADF;
    const bool is_known = device_ != 0 || inode_ != 0;
    return !is_known || (status.st_dev == device_ && status.st_ino == inode_);
  }
  /// Closes it. A number that is somebody else's by now is left alone.
  void reset() noexcept {
    if (is_intact()) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// Opens /dev/null where a standard stream is missing. A descriptor of ours in its place would be taken for that stream: by
/// the program, which would print into it, and by a child, whose own output would replace it.
inline void open_missing_standard_streams() noexcept {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

}  // namespace syncrun::detail
