#include "master/process/nonblocking_writer.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/text/visible_text.hpp"

namespace syncrun::detail::master::process {

namespace {

// Setting O_NONBLOCK on the descriptor itself would affect all processes that share it. A second opening has its own
// flags.
constexpr int kOpening = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

os::FileDescriptor open_again(int fd) noexcept {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return os::FileDescriptor(::open(path.c_str(), kOpening));
}

/// A terminal of another user (sudo) can only be opened as /dev/tty, and only if it is the controlling terminal.
os::FileDescriptor open_terminal_again(int fd) noexcept {
  os::FileDescriptor own = open_again(fd);
  if (own.is_open()) return own;
  own = os::FileDescriptor(::open("/dev/tty", kOpening));
  unsigned wanted = 0;
  unsigned opened = 0;
  const bool is_same = own.is_open() && ::ioctl(fd, TIOCGDEV, &wanted) == 0 &&
                       ::ioctl(own.get(), TIOCGDEV, &opened) == 0 && wanted == opened;
  return is_same ? std::move(own) : os::FileDescriptor();
}

/// The first part of a line, up to and including the carriage returns with which it overwrites itself. Carriage returns
/// just before the newline overwrite nothing.
std::string_view first_state(std::string_view line) noexcept {
  const auto end = line.find('\r');
  return line.substr(0, end == std::string_view::npos ? end : line.find_first_not_of('\r', end));
}

/// The part of the line that remains visible in the end.
std::string_view last_state(std::string_view line) noexcept {
  const auto last = line.find_last_not_of('\r');
  if (last == std::string_view::npos) return {};
  line = line.substr(0, last + 1);
  return line.substr(line.rfind('\r') + 1);  // the whole line, if there is none
}

/// The memory that a writer keeps while nothing is waiting. Getting it again for each 64 KiB of output would take longer
/// than copying the output.
constexpr std::size_t kLargestKept = 4 * NonblockingWriter::kFullBytes;

/// True if the terminal supports the sequence that clears the rest of a line. All do, except those whose TERM says
/// otherwise.
bool can_erase() noexcept {
  const char* const kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

}  // namespace

NonblockingWriter::NonblockingWriter(int fd) noexcept : fd_(fd), can_erase_(can_erase()) {}

void NonblockingWriter::push(const LinePrefix& prefix, std::string_view lines) {
  if (!is_terminal_) {
    if (lines.find('\r') == std::string_view::npos) push_plain(prefix.plain, lines);
    else push_states(prefix.plain, lines);
    return;
  }
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    begin_on_terminal(prefix.on_terminal, lines.substr(0, end));
    waiting_ += '\n';
    has_shown_ = false;
    lines.remove_prefix(end + 1);
  }
}

/// Lines that do not overwrite themselves.
void NonblockingWriter::push_plain(std::string_view prefix, std::string_view lines) {
  if (prefix.empty()) {
    waiting_.append(lines);
    return;
  }
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n') + 1;
    waiting_.append(prefix).append(lines.substr(0, end));
    lines.remove_prefix(end);
  }
}

void NonblockingWriter::push_states(std::string_view prefix, std::string_view lines) {
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    std::string_view line = lines.substr(0, end);
    do {
      const std::string_view state = first_state(line);
      waiting_.append(prefix).append(state);
      line.remove_prefix(state.size());
    } while (!line.empty());
    waiting_ += '\n';
    lines.remove_prefix(end + 1);
  }
}

void NonblockingWriter::show(const LinePrefix& prefix, std::string_view line) {
  if (!is_terminal_) return;
  begin_on_terminal(prefix.on_terminal, line);
  has_shown_ = true;
}

void NonblockingWriter::begin_on_terminal(std::string_view prefix, std::string_view line) {
  if (has_shown_) waiting_.append(can_erase_ ? "\r\x1b[K" : "\n");
  waiting_.append(prefix).append(text::visible(last_state(line)));
}

void NonblockingWriter::flush() noexcept {
  if (waiting_bytes() == 0) return;
  find_mode();
  const std::size_t before = waiting_bytes();
  state_ = State::flowing;
  while (waiting_bytes() != 0) {
    const auto count = write_now(next_part());
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      state_ = waiting_bytes() == before ? State::resting : State::blocked;
      break;
    } else if (errno != EINTR) {
      written_ = waiting_.size();
    }
  }
  forget_written();
}

pollfd NonblockingWriter::poll_entry() const noexcept {
  const int target = mode_ == WriteMode::own_opening ? own_.get() : fd_;
  return {is_blocked() ? target : -1, POLLOUT, 0};
}

void NonblockingWriter::find_mode() noexcept {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    mode_ = WriteMode::unknown;  // the descriptor is closed, and the write will fail
    is_terminal_ = false;
    return;
  }
  if (own_.is_open() && !own_.is_intact()) mode_ = WriteMode::unknown;  // the program has closed our own descriptor
  if (mode_ != WriteMode::unknown && status.st_dev == device_ && status.st_ino == inode_) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  own_.reset();
  is_terminal_ = false;
  has_shown_ = false;
  mode_ = WriteMode::plain;
  if (S_ISSOCK(status.st_mode)) {
    mode_ = WriteMode::socket;
  } else if (S_ISFIFO(status.st_mode)) {
    own_ = open_again(fd_);
    mode_ = own_.is_open() ? WriteMode::own_opening : WriteMode::careful_pipe;
  } else if (::isatty(fd_) == 1) {
    is_terminal_ = true;
    own_ = open_terminal_again(fd_);
    mode_ = own_.is_open() ? WriteMode::own_opening : WriteMode::careful_terminal;
  }
}

/// As many whole lines as a pipe takes at once or not at all, so that they are not mixed with the output of other
/// processes. If the first line is longer than that, this line. A file takes everything at once.
std::string_view NonblockingWriter::next_part() const noexcept {
  const std::string_view rest = std::string_view(waiting_).substr(written_);
  if (mode_ == WriteMode::plain) return rest;
  const auto last_newline = rest.substr(0, PIPE_BUF).rfind('\n');
  const auto end = last_newline != std::string_view::npos ? last_newline : rest.find('\n');
  // without a newline: a line that is shown before it is complete
  return end == std::string_view::npos ? rest : rest.substr(0, end + 1);
}

ssize_t NonblockingWriter::write_now(std::string_view part) const noexcept {
  if (mode_ == WriteMode::socket) return ::send(fd_, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (mode_ == WriteMode::own_opening) return ::write(own_.get(), part.data(), part.size());
  if (mode_ == WriteMode::careful_pipe || mode_ == WriteMode::careful_terminal) {
    pollfd writable{fd_, POLLOUT, 0};
    if (::poll(&writable, 1, 0) == 0) {
      errno = EAGAIN;
      return -1;
    }
    part = part.substr(0, mode_ == WriteMode::careful_pipe ? PIPE_BUF : 1);
  }
  return ::write(fd_, part.data(), part.size());
}

void NonblockingWriter::forget_written() noexcept {
  if (written_ == waiting_.size()) {
    waiting_.clear();
    if (waiting_.capacity() > kLargestKept) waiting_.shrink_to_fit();
    written_ = 0;
  } else if (written_ > kFullBytes / 4) {
    waiting_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace syncrun::detail::master::process
