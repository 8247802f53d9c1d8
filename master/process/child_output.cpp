#include "master/process/child_output.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace syncrun::detail::master::process {

namespace {
constexpr std::size_t kReadBytes = std::size_t{1} << 16U;  // what a pipe holds
}  // namespace

ChildOutput::ChildOutput(std::unique_ptr<LineFormat> format, os::FileDescriptor from, OutputTarget& to, ChildLog& log)
    : format_(std::move(format)), from_(std::move(from)), to_(to), log_(log) {}

bool ChildOutput::pump() {
  std::array<char, kReadBytes> buffer;
  to_.look();
  // Read only a limited number of times, so that a child with much output does not keep the nursery from the others. The
  // program may have closed the pipe since the last time, and a file of its own may let this thread wait for ever.
  for (int round = 0; round < 4 && is_intact(); ++round) {
    const auto count = ::read(fd(), buffer.data(), buffer.size());
    if (count > 0) {
      take({buffer.data(), static_cast<std::size_t>(count)});
    } else if (count == 0) {
      return !is_intact();
    } else if (errno != EINTR) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) return !is_intact();
      break;
    }
  }
  show_progress();
  return true;
}

/// For a progress bar: shows an incomplete line if it will be overwritten.
void ChildOutput::show_progress() {
  if (has_news_ && partial_.find('\r') != std::string::npos) to_.show(format_->prefix(), partial_);
  has_news_ = false;
}

bool ChildOutput::is_intact() const {
  const os::MutexLock lock(mutex_);
  return !from_.is_open() || from_.is_intact();
}

/// Passes whole lines on, and keeps the rest. A line that is too long is divided.
void ChildOutput::take(std::string_view text) {
  has_news_ = true;
  if (!partial_.empty()) {
    const auto newline = text.find('\n');
    partial_.append(text.substr(0, newline));
    if (newline != std::string_view::npos || partial_.size() >= kLongestLine) end_partial();
    if (newline == std::string_view::npos) return;
    text.remove_prefix(newline + 1);
  }
  const std::size_t lines = text.rfind('\n') + 1;  // 0 if there is no newline
  if (lines != 0) pass_on(text.substr(0, lines));
  partial_.append(text.substr(lines));
  has_news_ = !partial_.empty();
  if (partial_.size() >= kLongestLine) end_partial();
}

void ChildOutput::end_partial() {
  pass_on(partial_ += '\n');
  partial_.clear();
  has_news_ = false;
}

void ChildOutput::finish() {
  if (!partial_.empty()) end_partial();
  const os::MutexLock lock(mutex_);
  from_.reset();
}

void ChildOutput::pass_on(std::string_view lines) {
  to_.push(format_->prefix(), lines);
  log_.write(lines);
  remember(lines);
}

/// Keeps the last lines. There may be thousands, so it begins at the end.
void ChildOutput::remember(std::string_view lines) {
  std::size_t begin = lines.size();
  for (std::size_t count = 0; count < kTailLines && begin != 0; ++count)
    begin = begin < 2 ? 0 : lines.rfind('\n', begin - 2) + 1;
  lines.remove_prefix(begin);
  const os::MutexLock lock(mutex_);
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    tail_.emplace_back(lines.substr(0, end));
    if (tail_.size() > kTailLines) tail_.pop_front();
    lines.remove_prefix(end + 1);
  }
}

std::vector<std::string> ChildOutput::tail() const {
  const os::MutexLock lock(mutex_);
  return {tail_.begin(), tail_.end()};
}

}  // namespace syncrun::detail::master::process
