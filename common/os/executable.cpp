#include "common/os/executable.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace syncrun::detail::os {

namespace {

/// The folders that a shell searches if PATH is not set.
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

/// Returns 0, or the errno with which executing the file would fail.
int why_not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

}  // namespace

FoundExecutable find_executable(const std::string& name) {
  if (name.find('/') != std::string::npos) return {name, why_not_executable(name)};
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? kDefaultPath : path;
  FoundExecutable refused{"", ENOENT};
  for (bool more = true; more;) {
    const auto end = rest.find(':');
    more = end != std::string::npos;
    const std::string folder = rest.substr(0, end);
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    const int code = why_not_executable(candidate);
    if (code == 0) return {std::move(candidate), 0};
    if (code == EACCES && refused.path.empty()) refused = {std::move(candidate), EACCES};
    if (more) rest.erase(0, end + 1);
  }
  return refused;
}

}  // namespace syncrun::detail::os
