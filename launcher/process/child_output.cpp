#include "launcher/process/child_output.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace syncrun::detail {

namespace {
/// Writes the whole text to a file. Gives up on an error, such as a full disk.
void write_to_log(ChildLog& log, std::string_view text) noexcept {
  if (!log.fd.is_intact()) return;
  while (!text.empty()) {
    const auto count = ::write(log.fd.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      if (log.error == 0) log.error = count < 0 ? errno : EIO;
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}
}  // namespace

ChildOutput::ChildOutput(std::string tag, FileDescriptor from, NonblockingWriter& to, ChildLog& log)
    : tag_(std::move(tag)), from_(std::move(from)), to_(to), log_(log) {}

bool ChildOutput::pump() {
  std::array<char, 16384> buffer;
  to_.look();
  // Read only a limited number of times, so that a child with much output does not keep the nursery from the others.
  for (int round = 0; round < 4; ++round) {
    const auto count = ::read(from_.get(), buffer.data(), buffer.size());
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
  if (has_news_ && partial_.find('\r') != std::string::npos) to_.show(tag_, partial_);
  has_news_ = false;
}

bool ChildOutput::is_intact() const {
  const std::lock_guard lock(mutex_);
  return !from_.is_open() || from_.is_intact();
}

void ChildOutput::take(std::string_view text) {
  while (!text.empty()) {
    has_news_ = true;
    const auto newline = text.find('\n');
    partial_.append(text.substr(0, newline));
    if (newline == std::string_view::npos) {
      if (partial_.size() < kLongestLine) return;
      text = {};
    } else {
      text.remove_prefix(newline + 1);
    }
    pass_on(partial_);
    partial_.clear();
    has_news_ = false;
  }
}

void ChildOutput::finish() {
  if (!partial_.empty()) pass_on(partial_);
  partial_.clear();
  const std::lock_guard lock(mutex_);
  from_.reset();
}

void ChildOutput::pass_on(std::string_view line) {
  to_.push(tag_, line);
  if (log_.fd.is_open()) write_to_log(log_, std::string(line) + "\n");
  const std::lock_guard lock(mutex_);
  tail_.emplace_back(line);
  if (tail_.size() > kTailLines) tail_.pop_front();
}

std::vector<std::string> ChildOutput::tail() const {
  const std::lock_guard lock(mutex_);
  return {tail_.begin(), tail_.end()};
}

}  // namespace syncrun::detail
