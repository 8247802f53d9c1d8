#include "launcher/outlet.hpp"

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

#include "common/visible_text.hpp"

namespace syncrun::detail {

namespace {

// O_NONBLOCK on the descriptor itself would be everybody's who shares it. A second opening has flags of its own.
constexpr int kOpening = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

FileDescriptor open_again(int fd) noexcept {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return FileDescriptor(::open(path.c_str(), kOpening));
}

/// Another user's (sudo) opens only as /dev/tty, if it is the controlling terminal.
FileDescriptor open_terminal_again(int fd) noexcept {
  FileDescriptor own = open_again(fd);
  if (own.is_open()) return own;
  own = FileDescriptor(::open("/dev/tty", kOpening));
  unsigned wanted = 0;
  unsigned opened = 0;
  const bool is_same = own.is_open() && ::ioctl(fd, TIOCGDEV, &wanted) == 0 &&
                       ::ioctl(own.get(), TIOCGDEV, &opened) == 0 && wanted == opened;
  return is_same ? std::move(own) : FileDescriptor();
}

/// A line up to where it overwrites itself, with the carriage returns; one that its newline follows overwrites nothing.
std::string_view first_state(std::string_view line) noexcept {
  const auto end = line.find('\r');
  return line.substr(0, end == std::string_view::npos ? end : line.find_first_not_of('\r', end));
}

/// What is seen of it in the end.
std::string_view last_state(std::string_view line) noexcept {
  const auto last = line.find_last_not_of('\r');
  if (last == std::string_view::npos) return {};
  line = line.substr(0, last + 1);
  return line.substr(line.rfind('\r') + 1);  // from the begin, if there is none
}

/// Whether the terminal has the sequence that clears the rest of a line. All have, but for those that say so.
bool can_erase() noexcept {
  const char* const kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

}  // namespace

Outlet::Outlet(int fd) noexcept : fd_(fd), can_erase_(can_erase()) {}

void Outlet::push(std::string_view tag, std::string_view line) {
  if (is_terminal_) {
    begin_on_terminal(tag, line);
    has_shown_ = false;
  } else {
    do {
      const std::string_view state = first_state(line);
      waiting_.append(tag).append(state);
      line.remove_prefix(state.size());
    } while (!line.empty());
  }
  waiting_.append("\n");
}

void Outlet::show(std::string_view tag, std::string_view line) {
  if (!is_terminal_) return;
  begin_on_terminal(tag, line);
  has_shown_ = true;
}

void Outlet::begin_on_terminal(std::string_view tag, std::string_view line) {
  if (has_shown_) waiting_.append(can_erase_ ? "\r\x1b[K" : "\n");
  waiting_.append(tag).append(visible(last_state(line)));
}

void Outlet::flush() noexcept {
  if (waiting_bytes() == 0) return;
  find_way();
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

pollfd Outlet::poll_entry() const noexcept {
  const int target = way_ == Way::own_opening ? own_.get() : fd_;
  return {is_blocked() ? target : -1, POLLOUT, 0};
}

void Outlet::find_way() noexcept {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    way_ = Way::unknown;  // closed: the write says so
    is_terminal_ = false;
    return;
  }
  if (own_.is_open() && !own_.is_intact()) way_ = Way::unknown;  // the program has closed it
  if (way_ != Way::unknown && status.st_dev == device_ && status.st_ino == inode_) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  own_.reset();
  is_terminal_ = false;
  has_shown_ = false;
  way_ = Way::plain;
  if (S_ISSOCK(status.st_mode)) {
    way_ = Way::socket;
  } else if (S_ISFIFO(status.st_mode)) {
    own_ = open_again(fd_);
    way_ = own_.is_open() ? Way::own_opening : Way::careful_pipe;
  } else if (::isatty(fd_) == 1) {
    is_terminal_ = true;
    own_ = open_terminal_again(fd_);
    way_ = own_.is_open() ? Way::own_opening : Way::careful_terminal;
  }
}

/// Whole lines that a pipe takes at once or not at all, so that they stay whole among other processes' output; or one
/// that is longer than that.
std::string_view Outlet::next_part() const noexcept {
  const std::string_view rest = std::string_view(waiting_).substr(written_);
  const auto last_newline = rest.substr(0, PIPE_BUF).rfind('\n');
  const auto end = last_newline != std::string_view::npos ? last_newline : rest.find('\n');
  return end == std::string_view::npos ? rest : rest.substr(0, end + 1);  // the rest: what is shown without an end
}

ssize_t Outlet::write_now(std::string_view part) const noexcept {
  if (way_ == Way::socket) return ::send(fd_, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (way_ == Way::own_opening) return ::write(own_.get(), part.data(), part.size());
  if (way_ == Way::careful_pipe || way_ == Way::careful_terminal) {
    pollfd writable{fd_, POLLOUT, 0};
    if (::poll(&writable, 1, 0) == 0) {
      errno = EAGAIN;
      return -1;
    }
    part = part.substr(0, way_ == Way::careful_pipe ? PIPE_BUF : 1);
  }
  return ::write(fd_, part.data(), part.size());
}

void Outlet::forget_written() noexcept {
  if (written_ == waiting_.size()) {
    waiting_.clear();
    if (waiting_.capacity() > kFullBytes / 4) waiting_.shrink_to_fit();
    written_ = 0;
  } else if (written_ > kFullBytes / 4) {
    waiting_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace syncrun::detail
