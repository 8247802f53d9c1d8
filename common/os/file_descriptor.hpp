#pragma once

// Owners of file descriptors.
//
// Syncrun and the user's program share one table of descriptors. The program may close Syncrun's descriptors, for
// example with closefrom(3). The kernel then gives the same number to the next file that the program opens. So when
// Syncrun keeps a descriptor while user code runs, its owner is a KeptDescriptor. It remembers which file was opened,
// and can check whether the number still refers to this file.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace syncrun::detail::os {

/// Owns a descriptor for a short time: within one function of Syncrun, or until a KeptDescriptor takes it.
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

/// Owns a descriptor while user code may run. Construction, is_intact() and reset() each make one fstat call.
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
  /// True if the number still refers to the same file: the program has not closed it, and no other file has got its
  /// number. It cannot distinguish two eventfds, two epolls, two signalfds or, before Linux 6.9, two pidfds.
  bool is_intact() const noexcept {
    if (fd_ < 0) return false;
    struct stat status {};
    if (::fstat(fd_, &status) != 0) return errno != EBADF;
    const bool is_known = device_ != 0 || inode_ != 0;
    return !is_known || (status.st_dev == device_ && status.st_ino == inode_);
  }
  /// Closes the descriptor. Does nothing if the number now belongs to another file.
  void reset() noexcept {
    if (is_intact()) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// Opens /dev/null in the place of each standard stream that is closed. Otherwise, a descriptor of Syncrun could get
/// the number of that stream. The program would then print into it, and the stream of a child would replace it.
inline void open_missing_standard_streams() noexcept {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

}  // namespace syncrun::detail::os
