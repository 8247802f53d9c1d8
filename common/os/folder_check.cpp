#include "common/os/folder_check.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::os {

namespace {

/// A file that disappears with its descriptor.
FileDescriptor open_nameless(const std::string& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (file.is_open() || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string name = folder + "/.syncrun-XXXXXX";
  file = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  const int code = errno;
  if (file.is_open()) ::unlink(name.c_str());
  errno = code;
  return file;
}

}  // namespace

std::optional<std::string> why_not_writable(const std::string& folder) {
  std::string path = folder;  // with a slash at the end, lstat would follow the link
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != 0 &&
      status.st_uid != ::geteuid()) {
    return "is a symbolic link of another user (" + std::to_string(status.st_uid) +
           "): name the folder to which it points";
  }
  if (::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) return "is not a folder";
  const auto reason = [] { return std::generic_category().message(errno); };
  const FileDescriptor file = open_nameless(path);
  if (!file.is_open()) return "cannot be written: " + reason();
  constexpr std::array<char, 4096> kBlock{};
  if (::write(file.get(), kBlock.data(), kBlock.size()) == static_cast<ssize_t>(kBlock.size())) return std::nullopt;
  return "is full: " + reason();
}

}  // namespace syncrun::detail::os
