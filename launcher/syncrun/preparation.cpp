#include "launcher/syncrun/preparation.hpp"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/text/errors.hpp"

namespace syncrun::detail {

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

[[noreturn]] void throw_not_executable(const std::string& path, int code) {
  throw CommandFailure(kNotExecutableExit,
                       path + ": expected a program that can be executed, got: " + std::strerror(code));
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.empty()) throw CommandFailure(kNotFoundExit, "expected a program to run, got an empty name");
  if (name.find('/') != std::string::npos) {
    const int code = why_not_executable(name);
    if (code == 0) return name;
    if (code != ENOENT && code != ENOTDIR) throw_not_executable(name, code);
    throw CommandFailure(kNotFoundExit, name + ": program not found");
  }
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? kDefaultPath : path;
  std::string refused;
  for (bool more = true; more;) {
    const auto end = rest.find(':');
    more = end != std::string::npos;
    const std::string folder = rest.substr(0, end);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    const int code = why_not_executable(candidate);
    if (code == 0) return candidate;
    if (code == EACCES && refused.empty()) refused = candidate;
    if (more) rest.erase(0, end + 1);
  }
  if (!refused.empty()) throw_not_executable(refused, EACCES);
  throw CommandFailure(kNotFoundExit,
                       name + ": program not found in PATH (a program in this folder is ./" + name + ")");
}

void check_log_dir(const std::string& path) {
  std::filesystem::path existing = path;
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  if (!std::filesystem::is_directory(existing, error)) {
    throw_usage("--log-dir: expected a folder, but " + existing.string() + " is not a folder");
  }
  if (::access(existing.c_str(), W_OK | X_OK) == 0) return;
  throw_usage("--log-dir: expected a folder to write in, but " + existing.string() + ": " + std::strerror(errno));
}

void make_log_dir(const std::string& path) {
  check_log_dir(path);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw_usage("--log-dir: cannot make " + path + ": " + error.message());
}

std::string library_named_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto begin = bytes.find("libsyncrun.so.");
  return begin == std::string::npos ? "" : bytes.substr(begin, bytes.find('\0', begin) - begin);
}

std::string folder_of_library(const std::string& name) {
  std::error_code error;
  const auto command = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = (command.parent_path() / ".." / SYNCRUN_LIBRARY_FOLDER).lexically_normal();
  return std::filesystem::exists(folder / name, error) ? folder.string() : "";
}

bool raises_privileges(const std::string& path) noexcept {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & (S_ISUID | S_ISGID)) != 0) return true;
  return ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

}  // namespace syncrun::detail
