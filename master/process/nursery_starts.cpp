// How the thread of the nursery starts its children.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "master/process/nursery.hpp"
#include "master/process/output_file.hpp"

namespace syncrun::detail::master::process {

namespace {

std::pair<os::FileDescriptor, os::FileDescriptor> make_pipe() {
  std::array<int, 2> ends{};
  text::check_system(::pipe2(ends.data(), O_CLOEXEC), "cannot make a pipe for a child's output");
  std::pair<os::FileDescriptor, os::FileDescriptor> pipe{os::FileDescriptor(ends[0]), os::FileDescriptor(ends[1])};
  text::check_system(::fcntl(ends[0], F_SETFL, O_NONBLOCK), "cannot read a child's output without blocking");
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
  return environment::is_in_valgrind() ? std::filesystem::read_symlink(kOwnImage).string() : kOwnImage;
}

std::string job_mark() {
  // The kernel may give the pid of this process to another one later. So the mark also contains a time.
  static const auto first_asked = os::Clock::now().time_since_epoch().count();
  return std::to_string(::getpid()) + "-" + std::to_string(first_asked);
}

namespace {
/// Children run the image of this process with its arguments. Both can be found only in /proc.
void require_proc() {
  if (::access(kOwnImage, F_OK) != 0) {
    text::throw_errno(std::string("cannot find this program's own image at ") + kOwnImage + " (is /proc mounted?)");
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
    const os::MutexLock lock(mutex_);
    wanted = std::exchange(wanted_, std::nullopt);
  }
  if (!wanted) return;
  std::exception_ptr error;
  try {
    clear_place(*wanted);
    if (!closes_.load()) spawn_child(*wanted);
    if (closes_.load()) kill_all();  // it may have been started after the destructor had killed all
  } catch (...) {
    error = std::current_exception();
  }
  {
    const os::MutexLock lock(mutex_);
    spawn_error_ = error;
    spawned_ = true;
  }
  changed_.notify_all();
}

/// Clears the place of a child that was reaped. Output of other processes that still hold its pipes is ignored. These
/// processes have been killed.
void Nursery::clear_place(int index) {
  for (ChildOutput* const reader : {own_child(index).output.get(), own_child(index).error.get()}) {
    if (reader != nullptr && reader->fd() >= 0) reader->finish();
  }
  notes_of(index) = Notes{.is_successor = true};
  crashes_.forget(own_child(index).pid);
  const os::MutexLock lock(mutex_);
  children_[static_cast<std::size_t>(index)] = Child{};
}

void Nursery::spawn_child(int index) {
  std::array<int, 2> ends{};
  text::check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  os::FileDescriptor socket(ends[0]);
  const os::FileDescriptor childs_end(ends[1]);
  auto [output_read, output_write] = make_pipe();
  auto [error_read, error_write] = make_pipe();
  const OutputSettings rules = watcher_.output_settings();
  auto log = std::make_unique<ChildLog>();
  if (const std::string path = watcher_.log_of(index); !path.empty()) {
    const OpenMode mode = notes_of(index).is_successor ? OpenMode::append : OpenMode::append_to_empty;
    log = std::make_unique<ChildLog>(path, mode, rules.log_limit);
  }

  SpawnedProcess process =
      spawn(watcher_.request_for(index, {childs_end.get(), output_write.get(), error_write.get()}));
  supervisor_.send({protocol::SupervisorMessage::Kind::worker, process.pid, {}});
  watcher_.on_start(index, process.pid);
  {
    const os::MutexLock lock(mutex_);
    const std::string tag = watcher_.tag_of(index);
    Child& child = children_[static_cast<std::size_t>(index)];
    child.socket = std::move(socket);
    child.log = std::move(log);
    child.pidfd = std::move(process.pidfd);
    const auto target_for = [&](OutputTarget& target) -> OutputTarget& {
      return watcher_.is_shown(index) ? target : nowhere_;
    };
    OutputTarget& errors = rules.is_json_log ? static_cast<OutputTarget&>(error_with_log_) : error_;
    child.output = std::make_unique<ChildOutput>(make_line_format(rules, tag, index), std::move(output_read),
                                                 target_for(output_), *child.log);
    child.error = std::make_unique<ChildOutput>(make_line_format(rules, tag, index), std::move(error_read),
                                                target_for(errors), *child.log);
    child.pid = process.pid;
  }
  // Not by stdio: whoever reads standard error may be slow, and this thread must not wait for them.
  if (const std::string news = watcher_.news_of_start(index, process.pid); !news.empty()) say(LogLevel::info, news);
}

}  // namespace syncrun::detail::master::process
