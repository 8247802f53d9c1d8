#include "master/command_line/output_relay.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <thread>
#include <utility>

#include "common/os/wait.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// What the mpirun of Open MPI reads at a time, and room for a head.
constexpr std::size_t kOneRead = 4096;
constexpr std::size_t kMostHead = 64;

constexpr std::array kKinds{BlockKind::output, BlockKind::errors, BlockKind::report};

/// How often to check whether the engine has read the last block, and for how long.
constexpr std::chrono::microseconds kLook{50};
constexpr std::chrono::seconds kLongestWait{10};
/// How long the thread sleeps if there is no output.
constexpr int kNapMs = 20;

/// A pipe joins what is written to it. So the next block waits until the engine has read the last one.
void await_empty(int pipe) {
  const auto end = os::Clock::now() + kLongestWait;
  int bytes = 0;
  while (::ioctl(pipe, FIONREAD, &bytes) == 0 && bytes > 0 && os::Clock::now() < end)
    std::this_thread::sleep_for(kLook);
}

}  // namespace

std::optional<Block> block_at(std::string_view text, std::string_view token) {
  std::string_view rest = text;
  const auto skip = [&rest](std::string_view wanted) {
    if (!rest.starts_with(wanted)) return false;
    rest.remove_prefix(wanted.size());
    return true;
  };
  const auto take_number = [&rest](auto& number) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return error == std::errc();
  };
  if (!skip(kBlockMark) || !skip(token) || !skip(" ")) return std::nullopt;
  Block block;
  std::size_t bytes = 0;
  if (rest.find('\n') == std::string_view::npos) return block;
  if (!take_number(block.task) || !skip(" ") || rest.empty()) return std::nullopt;
  block.kind = static_cast<BlockKind>(rest.front());
  rest.remove_prefix(1);
  if (std::find(kKinds.begin(), kKinds.end(), block.kind) == kKinds.end()) return std::nullopt;
  if (!skip(" ") || !take_number(bytes) || !skip("\n") || bytes > kOneRead) return std::nullopt;
  if (rest.size() < bytes) return block;
  block.bytes = rest.substr(0, bytes);
  block.size = text.size() - rest.size() + bytes;
  return block;
}

std::string blocks_of(const std::string& token, int task, BlockKind kind, std::string_view text) {
  std::string blocks;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, kOneRead - kMostHead);
    blocks.append(kBlockMark).append(token).append(" ").append(std::to_string(task)).append(" ");
    blocks.append(1, static_cast<char>(kind)).append(" ").append(std::to_string(part.size())).append("\n").append(part);
    text.remove_prefix(part.size());
  }
  return blocks;
}

void write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // nobody reads
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

OutputRelay::OutputRelay(std::string token, int task) : token_(std::move(token)), task_(task) {
  engine_ = os::FileDescriptor(text::check_system(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), "fcntl"));
  for (std::size_t at = 0; at < kKinds.size(); ++at) {
    std::array<int, 2> ends{};
    text::check_system(::pipe2(ends.data(), O_CLOEXEC), "pipe2");
    sources_[at] = os::FileDescriptor(ends[0]);
    os::FileDescriptor other(ends[1]);
    text::check_system(::fcntl(ends[0], F_SETFL, O_NONBLOCK), "fcntl");
    if (kKinds[at] == BlockKind::report) reports_ = std::move(other);
    else text::check_system(::dup2(other.get(), static_cast<int>(at) + STDOUT_FILENO), "dup2");
  }
  // Signals are for the other thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_.emplace([this](os::StoppableThread& self) { run(self); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// Processes that the program has left may still have the other ends.
OutputRelay::~OutputRelay() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(engine_.get(), fd);
  thread_.reset();
  const auto end = os::Clock::now() + kLongestWait;
  while (pass_on_some(0) && os::Clock::now() < end) {
  }
}

void OutputRelay::report(std::string_view line) { write_fully(reports_.get(), line); }

void OutputRelay::run(os::StoppableThread& self) {
  while (!self.nap(std::chrono::nanoseconds(0))) pass_on_some(kNapMs);
}

/// Returns false if there was nothing.
bool OutputRelay::pass_on_some(int limit_ms) {
  std::array<pollfd, kKinds.size()> events{};
  for (std::size_t at = 0; at < events.size(); ++at) events[at] = {sources_[at].get(), POLLIN, 0};
  if (::poll(events.data(), events.size(), limit_ms) <= 0) return false;
  bool did_something = false;
  for (std::size_t at = 0; at < events.size(); ++at) {
    std::array<char, kOneRead - kMostHead> bytes;
    const auto count = sources_[at].is_open() ? ::read(sources_[at].get(), bytes.data(), bytes.size()) : -1;
    if (count == 0) sources_[at].reset();
    if (count <= 0) continue;
    did_something = true;
    await_empty(engine_.get());
    write_fully(engine_.get(), blocks_of(token_, task_, kKinds[at], {bytes.data(), static_cast<std::size_t>(count)}));
  }
  return did_something;
}

}  // namespace syncrun::detail::master::command_line
