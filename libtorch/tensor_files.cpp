#include "libtorch/tensor_files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/os/file_descriptor.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using syncrun::detail::FileDescriptor;

[[noreturn]] void fail(const char* what, const std::filesystem::path& file) {
  const int code = errno;
  throw Error(ErrorKind::system, std::string("cannot ") + what + " " + file.string() + ": " + std::strerror(code),
              code);
}

void write_all(const FileDescriptor& fd, const std::filesystem::path& file, const void* data, std::size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(fd.get(), next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", file);
    next += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

/// Removes a file at the end of its life, unless it was renamed.
class TemporaryName {
 public:
  explicit TemporaryName(std::filesystem::path path) : path_(std::move(path)) {}
  ~TemporaryName() {
    if (!is_renamed_) ::unlink(path_.c_str());
  }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  void rename(const std::filesystem::path& to) {
    if (std::rename(path_.c_str(), to.c_str()) != 0) fail("write", to);
    is_renamed_ = true;
  }

 private:
  std::filesystem::path path_;
  bool is_renamed_ = false;
};

/// Waits until the new name of a file is on the disk. Some file systems do not support this, and report EINVAL.
void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open() || (::fsync(fd.get()) != 0 && errno != EINVAL)) fail("write", folder);
}

}  // namespace

FileBytes::FileBytes(const std::filesystem::path& file) {
  // O_NONBLOCK: if the file is a pipe, open does not wait for a writer.
  const FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) fail("read", file);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("read", file);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorKind::usage, file.string() + ": expected a file");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses an empty mapping
  void* const mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) fail("map", file);
  data_ = static_cast<std::byte*>(mapping);
}

FileBytes::~FileBytes() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void replace_file(const std::filesystem::path& file, const std::function<void(const AppendBytes&)>& fill) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  TemporaryName temporary(folder / ("." + file.filename().string() + ".syncrun-" + std::to_string(::getpid())));
  ::unlink(temporary.path().c_str());  // a process of this id may have been killed while it wrote
  const FileDescriptor fd(::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.is_open()) fail("write", temporary.path());
  fill([&](const void* data, std::size_t bytes) { write_all(fd, temporary.path(), data, bytes); });
  if (::fsync(fd.get()) != 0) fail("write", temporary.path());
  temporary.rename(file);
  sync_folder(folder);
}

}  // namespace syncrun::libtorch::detail
