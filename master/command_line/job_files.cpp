#include "master/command_line/job_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>

#include "common/text/errors.hpp"
#include "common/text/visible_text.hpp"
#include "master/command_line/preparation.hpp"
#include "master/process/output_file.hpp"

namespace syncrun::detail::master::command_line {

namespace {

std::string path_on_node(const std::string& path, int node) {
  return path.empty() || node == 0 ? path : path + ".node" + std::to_string(node);
}

os::FileDescriptor open_job_file(const std::string& option, const std::string& path) {
  if (path.empty()) return {};
  try {
    return process::open_output(path, process::OpenMode::empty, option);
  } catch (const Error& error) {
    text::throw_usage(error.what());
  }
}

void write_text(const os::FileDescriptor& fd, const std::string& option, const std::string& path,
                std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(fd.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) text::throw_errno("cannot write " + option + " " + path);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// Whether the path still names the regular file that was opened.
bool is_there(const os::FileDescriptor& fd, const std::string& path) noexcept {
  struct stat opened {};
  struct stat there {};
  if (::fstat(fd.get(), &opened) != 0 || ::lstat(path.c_str(), &there) != 0) return false;
  return opened.st_dev == there.st_dev && opened.st_ino == there.st_ino && S_ISREG(opened.st_mode);
}

/// Whether this process was the last one that has written its id to the file.
bool has_own_pid(const std::string& path) {
  pid_t pid = 0;
  return std::ifstream(path) >> pid && pid == ::getpid();
}

std::string json_lines(std::string_view text) {
  std::string list = "[";
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    list.append(list.size() == 1 ? "" : ", ").append(text::json_string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list + "]";
}

/// How a job has failed whose program has not said it.
std::string_view kind_of(const Conclusion& conclusion) noexcept {
  if (conclusion.was_asked) return "stopped";
  if (conclusion.was_killed) return "killed";
  if (conclusion.exit_code == kUsageExit) return "usage";
  return "exit";
}

}  // namespace

std::string error_json(const Conclusion& conclusion) {
  const auto value_of = [&](std::string_view name) -> std::string {
    const auto found = std::find_if(conclusion.details.begin(), conclusion.details.end(),
                                    [name](const auto& each) { return each.first == name; });
    return found == conclusion.details.end() ? std::string() : found->second;
  };
  std::string json = "{\n";
  const auto add = [&json](std::string_view name, const std::string& value) {
    json.append(json.size() == 2 ? "" : ",\n").append("  \"").append(name).append("\": ").append(value);
  };
  const auto add_text = [&](std::string_view name) {
    const std::string value = value_of(name);
    add(name, value.empty() ? "null" : text::json_string(value));
  };
  // Only these are numbers. The program has sent them, so they are checked.
  const auto add_number = [&](std::string_view name) {
    const std::string value = value_of(name);
    const bool is_number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    add(name, is_number ? value : "null");
  };
  std::string kind = value_of("kind");
  std::replace(kind.begin(), kind.end(), ' ', '_');  // "worker_lost", as the enumerator is called
  add("kind", text::json_string(kind.empty() ? kind_of(conclusion) : kind));
  add_number("rank");
  add_text("device");
  add_text("node");
  add_number("pid");
  add_text("call");
  add_text("phase");
  add_text("cause");
  add("message", text::json_string(conclusion.message));
  add("stack", json_lines(value_of("stack")));
  add("last_stderr", json_lines(value_of("last_stderr")));
  add("exit_code", std::to_string(conclusion.exit_code));
  return json + "\n}\n";
}

ErrorFile::ErrorFile(const std::string& path, int node)
    : path_(path_on_node(path, node)), fd_(open_job_file("--error-file", path_)) {}

void ErrorFile::conclude(const Conclusion& conclusion) {
  if (!fd_.is_open()) return;
  if (conclusion.exit_code != 0) write_text(fd_, "--error-file", path_, error_json(conclusion));
  else if (is_there(fd_, path_)) ::unlink(path_.c_str());
  fd_.reset();
}

PidFile::PidFile(const std::string& path, int node)
    : path_(path_on_node(path, node)), fd_(open_job_file("--pid-file", path_)) {
  if (!fd_.is_open()) return;
  try {
    write_text(fd_, "--pid-file", path_, std::to_string(::getpid()) + "\n");
  } catch (const Error& error) {
    text::throw_usage(error.what());
  }
}

PidFile::~PidFile() {
  if (fd_.is_open() && is_there(fd_, path_) && has_own_pid(path_)) ::unlink(path_.c_str());
}

}  // namespace syncrun::detail::master::command_line
