#include "master/process/child_log.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <new>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::process {

namespace {
constexpr const char* kWhat = "the log file";

/// The size of a regular file. 0 for a device, which has no size and is never renamed.
std::uint64_t size_of(int fd) noexcept {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
}
}  // namespace

ChildLog::ChildLog(const std::string& path, OpenMode mode, LogLimit limit)
    : path_(std::filesystem::absolute(path).lexically_normal().string()),
      fd_(open_output(path_, mode, kWhat)),
      limit_(limit),
      bytes_(size_of(fd_.get())) {}

bool ChildLog::is_intact() const {
  const os::MutexLock lock(mutex_);
  return !fd_.is_open() || fd_.is_intact();
}

void ChildLog::write(std::string_view text) noexcept {
  if (!own_fd().is_open()) return;
  // Only whole lines go to one file.
  while (limit_.bytes != 0 && bytes_ + text.size() > limit_.bytes) {
    const std::uint64_t room = limit_.bytes > bytes_ ? limit_.bytes - bytes_ : 0;
    std::size_t end = text.substr(0, room).rfind('\n') + 1;  // 0 if there is none
    if (end == 0 && bytes_ == 0) end = text.find('\n') + 1;  // a line that is longer than the limit
    if (end == text.size() && bytes_ == 0) break;
    if (!write_part(text.substr(0, end)) || !rotate()) return;
    text.remove_prefix(end);
  }
  static_cast<void>(write_part(text));
}

bool ChildLog::write_part(std::string_view text) noexcept {
  if (!own_fd().is_intact()) return false;
  while (!text.empty()) {
    const auto count = ::write(own_fd().get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return note_error(count < 0 ? errno : EIO);
    bytes_ += static_cast<std::uint64_t>(count);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

bool ChildLog::rotate() noexcept {
  try {
    const auto old = [this](int number) { return path_ + "." + std::to_string(number); };
    // If nothing is at the path, the user has removed the file, or it was renamed and no new one could be made. To rename
    // the older files again would only lose the oldest.
    struct stat there {};
    if (limit_.old_files > 0 && ::lstat(path_.c_str(), &there) == 0) {
      for (int number = limit_.old_files - 1; number >= 1; --number)
        std::rename(old(number).c_str(), old(number + 1).c_str());
      if (std::rename(path_.c_str(), old(1).c_str()) != 0) return note_error(errno);
    }
    os::KeptDescriptor next(open_output(path_, OpenMode::append_to_empty, kWhat));
    bytes_ = 0;
    const os::MutexLock lock(mutex_);
    std::swap(fd_, next);
    return true;
  } catch (const Error& error) {
    return note_error(error.native_code() != 0 ? error.native_code() : EIO);
  } catch (const std::bad_alloc&) {
    return note_error(ENOMEM);
  }
}

bool ChildLog::note_error(int code) noexcept {
  if (error_ == 0) error_ = code;
  return false;
}

}  // namespace syncrun::detail::master::process
