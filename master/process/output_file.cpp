#include "master/process/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::process {

namespace {

/// Describes the kind of file, or returns null if we write to files of this kind.
const char* describe_refused(mode_t mode) noexcept {
  if (S_ISREG(mode) || S_ISCHR(mode)) return nullptr;
  if (S_ISLNK(mode)) return "a symbolic link, which is not followed";
  if (S_ISFIFO(mode)) return "a pipe, whose reader could hold the program up";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISBLK(mode)) return "a block device";
  return S_ISSOCK(mode) ? "a socket" : "something else";
}

[[noreturn]] void refuse(const std::string& path, const std::string& what, const char* found) {
  text::throw_usage("cannot write " + what + " " + path + ": expected a file or a character device, found " + found +
                    "; name another file");
}

/// The descriptor that a path such as /dev/stderr or /dev/fd/7 stands for.
std::optional<int> own_descriptor(std::string_view path) noexcept {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const std::string_view number = path.substr(folder.size());
    int fd = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), fd);
    if (error == std::errc() && end == number.data() + number.size() && fd >= 0) return fd;
  }
  return std::nullopt;
}

/// Returns a new descriptor for what another descriptor refers to.
os::FileDescriptor open_again(int original, const std::string& path, const std::string& what) {
  os::FileDescriptor fd(::fcntl(original, F_DUPFD_CLOEXEC, 3));
  struct stat status {};
  if (!fd.is_open() || ::fstat(fd.get(), &status) != 0) text::throw_errno("cannot write " + what + " " + path);
  const char* const refused = describe_refused(status.st_mode);
  if (refused != nullptr && !S_ISSOCK(status.st_mode)) refuse(path, what, refused);
  return fd;
}

/// Returns 0, or the error at which it gave up, such as a full disk.
int write_fully(const os::KeptDescriptor& fd, std::string_view text) noexcept {
  if (!fd.is_intact()) return EBADF;
  while (!text.empty()) {
    const auto count = ::write(fd.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : EIO;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

os::FileDescriptor open_output(const std::string& path, OpenMode mode, const std::string& what) {
  if (const auto own = own_descriptor(path)) return open_again(*own, path, what);
  struct stat status {};
  // Check before opening: the reader of a pipe would already notice that it is opened and closed.
  if (::lstat(path.c_str(), &status) == 0) {
    if (const char* const refused = describe_refused(status.st_mode)) refuse(path, what, refused);
  }
  // Check again what was opened, since something else may be at the path now. Only then empty it.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  os::FileDescriptor fd(::open(path.c_str(), kFlags | (mode == OpenMode::empty ? 0 : O_APPEND), 0666));
  if (!fd.is_open()) text::throw_errno("cannot write " + what + " " + path);
  if (::fstat(fd.get(), &status) != 0) text::throw_errno("cannot write " + what + " " + path);
  if (const char* const refused = describe_refused(status.st_mode)) refuse(path, what, refused);
  if (mode != OpenMode::append && S_ISREG(status.st_mode) && ::ftruncate(fd.get(), 0) != 0) {
    text::throw_errno("cannot empty " + what + " " + path);
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) text::throw_errno("fcntl of " + path);
  return fd;
}

OutputFile::OutputFile(std::string path, std::string what)
    : path_(std::move(path)), what_(std::move(what)), fd_(open_output(path_, OpenMode::empty, what_)) {}

OutputFile::~OutputFile() { flush(); }

void OutputFile::write(std::string_view text) {
  waiting_.append(text);
  if (waiting_.size() >= kPartBytes) flush();
}

void OutputFile::flush() noexcept {
  if (error_ == 0) error_ = write_fully(fd_, waiting_);
  waiting_.clear();
}

void OutputFile::close() {
  flush();
  fd_.reset();
  if (error_ == EBADF) throw text::descriptors_closed("that of " + what_ + " " + path_);
  if (error_ != 0) text::throw_errno("cannot write " + what_ + " " + path_, std::exchange(error_, 0));
}

}  // namespace syncrun::detail::master::process
