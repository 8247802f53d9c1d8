#include "libtorch/tensor_files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/os/file_descriptor.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using syncrun::detail::os::FileDescriptor;

[[noreturn]] void fail(const char* what, const std::filesystem::path& file) {
  const int code = errno;
  throw Error(ErrorKind::system, std::string("cannot ") + what + " " + file.string() + ": " + std::strerror(code),
              code);
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

}  // namespace syncrun::libtorch::detail
