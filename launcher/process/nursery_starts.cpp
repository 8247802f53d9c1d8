// How the thread of the nursery starts its children.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/text/errors.hpp"
#include "launcher/process/nursery.hpp"
#include "launcher/process/output_file.hpp"

namespace syncrun::detail {

namespace {

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  std::array<int, 2> ends{};
  check_system(::pipe2(ends.data(), O_CLOEXEC), "cannot make a pipe for a child's output");
  std::pair<FileDescriptor, FileDescriptor> pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  check_system(::fcntl(ends[0], F_SETFL, O_NONBLOCK), "cannot read a child's output without blocking");
  return pipe;
}

}  // namespace

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (arguments.empty()) arguments.emplace_back(program_invocation_name);
  return arguments;
}

std::string own_image() {
  const char* const preloaded = std::getenv("LD_PRELOAD");
  const bool is_in_valgrind = preloaded != nullptr && std::strstr(preloaded, "/vgpreload_") != nullptr;
  return is_in_valgrind ? std::filesystem::read_symlink(kOwnImage).string() : kOwnImage;
}

std::string job_mark() {
  // The kernel may give the pid of this process to another one later. So the mark also contains a time.
  static const auto first_asked = Clock::now().time_since_epoch().count();
  return std::to_string(::getpid()) + "-" + std::to_string(first_asked);
}

namespace {
/// Children run the image of this process with its arguments. Both can be found only in /proc.
void require_proc() {
  if (::access(kOwnImage, F_OK) != 0) {
    throw_errno(std::string("cannot find this program's own image at ") + kOwnImage + " (is /proc mounted?)");
  }
}
}  // namespace

void Nursery::start_children() {
  require_proc();
  for (int index = 0; index < size(); ++index) {
    if (closes_.load()) return;
    spawn_child(index);
  }
}

void Nursery::restart_children() {
  std::array<char, 64> rings;
  if (!wake_.is_intact()) next_check_ = {};
  while (wake_.is_intact() && ::recv(wake_.get(), rings.data(), rings.size(), MSG_DONTWAIT) > 0) {
  }
  std::optional<int> wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = std::exchange(wanted_, std::nullopt);
  }
  if (!wanted) return;
  std::exception_ptr error;
  try {
    clear_place(children_[static_cast<std::size_t>(*wanted)]);
    if (!closes_.load()) spawn_child(*wanted);
    if (closes_.load()) kill_all();  // it may have been started after the destructor had killed all
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    spawn_error_ = error;
    spawned_ = true;
  }
  changed_.notify_all();
}

/// Clears the place of a child that was reaped. Output of other processes that still hold its pipes is ignored. These
/// processes have been killed.
void Nursery::clear_place(Child& child) {
  for (Stream* stream : {&child.output, &child.error}) {
    if (stream->reader && stream->reader->fd() >= 0) stream->reader->finish();
  }
  const std::lock_guard lock(mutex_);
  child = Child{};
  child.is_successor = true;
}

void Nursery::spawn_child(int index) {
  Child& child = children_[static_cast<std::size_t>(index)];
  std::array<int, 2> ends{};
  check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  FileDescriptor socket(ends[0]);
  const FileDescriptor childs_end(ends[1]);
  auto [output_read, output_write] = make_pipe();
  auto [error_read, error_write] = make_pipe();
  FileDescriptor log;
  const std::string log_path = watcher_.log_of(index);
  if (!log_path.empty()) {
    log = open_output(log_path, child.is_successor ? OpenMode::append : OpenMode::append_to_empty, "the log file");
  }

  SpawnedProcess process =
      spawn(watcher_.request_for(index, {childs_end.get(), output_write.get(), error_write.get()}));
  supervisor_.send({SupervisorMessage::Kind::worker, process.pid, {}});
  watcher_.on_start(index, process.pid);
  {
    const std::lock_guard lock(mutex_);
    const std::string tag = watcher_.tag_of(index);
    child.socket = std::move(socket);
    child.log.path = log_path;
    child.log.fd = std::move(log);
    child.pidfd = std::move(process.pidfd);
    child.output.reader = std::make_unique<ChildOutput>(tag, std::move(output_read), output_, child.log);
    child.error.reader = std::make_unique<ChildOutput>(tag, std::move(error_read), error_, child.log);
    child.pid = process.pid;
  }
}

}  // namespace syncrun::detail
