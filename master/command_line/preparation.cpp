#include "master/command_line/preparation.hpp"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/os/executable.hpp"
#include "common/os/folder_check.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::command_line {

namespace {

[[noreturn]] void throw_not_executable(const std::string& path, int code) {
  throw CommandFailure(kNotExecutableExit,
                       path + ": expected a program that can be executed, got: " + std::strerror(code));
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.empty()) throw CommandFailure(kNotFoundExit, "expected a program to run, got an empty name");
  const os::FoundExecutable found = os::find_executable(name);
  if (found.error == 0) return found.path;
  const bool is_path = name.find('/') != std::string::npos;
  if (!found.path.empty() && found.error != ENOENT && found.error != ENOTDIR)
    throw_not_executable(found.path, found.error);
  throw CommandFailure(kNotFoundExit,
                       is_path ? name + ": program not found"
                               : name + ": program not found in PATH (a program in this folder is ./" + name + ")");
}

void check_log_dir(const std::string& path) {
  std::filesystem::path existing = path;
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  if (!std::filesystem::is_directory(existing, error)) {
    text::throw_usage("--log-dir: expected a folder, but " + existing.string() + " is not a folder");
  }
  if (const auto why = os::why_not_writable(existing.string()))
    text::throw_usage("--log-dir: expected a folder to write in, but " + existing.string() + " " + *why);
}

void make_log_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) text::throw_usage("--log-dir: cannot make " + path + ": " + error.message());
}

std::string library_named_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto begin = bytes.find("libsyncrun.so.");
  const bool is_program = bytes.starts_with("\177ELF");
  return !is_program || begin == std::string::npos ? "" : bytes.substr(begin, bytes.find('\0', begin) - begin);
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

}  // namespace syncrun::detail::master::command_line
