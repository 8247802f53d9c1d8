#include "launcher/worker_output.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace syncrun::detail {

WorkerOutput::WorkerOutput(int rank, FileDescriptor from, int to, int log)
    : tag_("[rank " + std::to_string(rank) + "] "), from_(std::move(from)), to_(to), log_(log) {}

bool WorkerOutput::pump() {
  std::array<char, 16384> buffer;
  // Bounded, so that one chatty worker cannot keep the watcher from the others.
  for (int round = 0; round < 16; ++round) {
    const auto count = ::read(from_.get(), buffer.data(), buffer.size());
    if (count > 0) {
      take({buffer.data(), static_cast<std::size_t>(count)});
    } else if (count == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

void WorkerOutput::take(std::string_view text) {
  while (!text.empty()) {
    const auto newline = text.find('\n');
    partial_.append(text.substr(0, newline));
    if (newline == std::string_view::npos) {
      if (partial_.size() < kLongestLine) return;
      text = {};
    } else {
      text.remove_prefix(newline + 1);
    }
    write_line(partial_);
    partial_.clear();
  }
}

void WorkerOutput::finish() {
  if (!partial_.empty()) write_line(partial_);
  partial_.clear();
  from_.reset();
}

void WorkerOutput::write_line(std::string_view line) {
  std::string tagged;
  tagged.reserve(tag_.size() + line.size() + 1);
  tagged.append(tag_).append(line).append("\n");
  write_fully(to_, tagged);
  if (log_ >= 0) write_fully(log_, std::string_view(tagged).substr(tag_.size()));
  tail_.emplace_back(line);
  if (tail_.size() > kTailLines) tail_.pop_front();
}

void write_fully(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const auto count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      if (::poll(&writable, 1, 1000) <= 0) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace syncrun::detail
