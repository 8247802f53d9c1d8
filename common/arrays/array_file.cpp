#include "common/arrays/array_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::arrays {

namespace {

/// The most bytes in one system call. The kernel itself moves less than 2 GiB in one.
constexpr std::size_t kLargestMove = std::size_t{1} << 30U;

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  const int code = errno;
  text::throw_errno(std::string("cannot ") + what + " " + path.string(), code);
}

/// Reads up to `bytes` bytes, starting at byte `at` of the file. Returns how many it has read: fewer if the file ends.
std::size_t read_some(int fd, const std::filesystem::path& path, std::size_t at, char* data, std::size_t bytes) {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t part = ::pread(fd, data + got, std::min(bytes - got, kLargestMove), static_cast<off_t>(at + got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) fail("read", path);
    if (part == 0) break;
    got += static_cast<std::size_t>(part);
  }
  return got;
}

/// Opens the file `name` in a folder. `path` is its path for messages.
os::FileDescriptor open_to_read(int folder, const std::string& name, const std::filesystem::path& path) {
  // O_NONBLOCK: if `name` is a pipe, open does not wait for a writer.
  os::FileDescriptor fd(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) fail("read", path);
  return fd;
}

std::uint64_t length_of(const os::FileDescriptor& fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("read", path);
  if (!S_ISREG(status.st_mode)) text::throw_usage(path.string() + ": expected a file");
  return static_cast<std::uint64_t>(status.st_size);
}

/// The number of rows in the rest of a file, which must end with a whole row.
std::int64_t rows_in(const std::filesystem::path& path, std::uint64_t rest_bytes, DType dtype,
                     std::span<const std::int64_t> extents, std::int64_t offset_bytes) {
  std::vector<std::int64_t> row(extents.begin(), extents.end());
  row[0] = 1;
  const std::size_t row_bytes = checked_bytes(dtype, row);
  if (row_bytes == 0) {
    text::throw_usage(path.string() + ": expected rows with elements where the first extent is -1, found shape " +
                      syncrun::to_string(extents));
  }
  if (rest_bytes % row_bytes == 0) return static_cast<std::int64_t>(rest_bytes / row_bytes);
  text::throw_usage(path.string() + ": expected whole rows of " + std::to_string(row_bytes) + " bytes (shape " +
                    syncrun::to_string(extents) + " of " + std::string(to_string(dtype)) + ") from byte " +
                    std::to_string(offset_bytes) + " to the end, found " + std::to_string(rest_bytes) +
                    " bytes: state the number of rows to map only these");
}

}  // namespace

FileElements open_raw_elements(const std::filesystem::path& path, DType dtype, std::span<std::int64_t> extents,
                               std::int64_t offset_bytes) {
  const std::size_t alignment = size_of(dtype);
  if (offset_bytes < 0 || static_cast<std::size_t>(offset_bytes) % alignment != 0) {
    text::throw_usage(path.string() + ": expected an offset that is at least 0 and a multiple of the " +
                      std::to_string(alignment) + " bytes of " + std::string(to_string(dtype)) + ", got " +
                      std::to_string(offset_bytes) + " bytes");
  }
  os::FileDescriptor fd = open_to_read(AT_FDCWD, path, path);
  const std::uint64_t length = length_of(fd, path);
  const auto offset = static_cast<std::uint64_t>(offset_bytes);
  const std::uint64_t rest = length > offset ? length - offset : 0;
  if (extents[0] == -1) extents[0] = rows_in(path, rest, dtype, extents, offset_bytes);
  const std::size_t bytes = checked_bytes(dtype, extents);
  if (offset > length || bytes > rest) {
    text::throw_usage(path.string() + ": expected " + std::to_string(bytes) + " bytes of elements (shape " +
                      syncrun::to_string(std::span<const std::int64_t>(extents)) + " of " +
                      std::string(to_string(dtype)) + ") from byte " + std::to_string(offset_bytes) +
                      " on, found a file of " + std::to_string(length) + " bytes");
  }
  return {std::move(fd), path, static_cast<std::size_t>(offset), bytes};
}

namespace {

/// The elements are used in the mapping, so they must be aligned for their type.
void check_aligned(const ArrayFile& file) {
  const NpyHeader& header = file.header();
  if (header.data_offset % size_of(header.dtype) == 0) return;
  text::throw_usage(file.path().string() + ": expected elements at a multiple of their " +
                    std::to_string(size_of(header.dtype)) + " bytes to map them, found them at byte " +
                    std::to_string(header.data_offset) + ": load() copies such a file");
}

}  // namespace

FileElements open_elements(const std::filesystem::path& path, FileForm& form) {
  if (!form.has_header)
    return open_raw_elements(path, form.dtype, {form.extents.data(), form.dimensions}, form.offset_bytes);
  ArrayFile file(path);
  file.check_type(form.dtype, form.dimensions);
  check_aligned(file);
  std::copy(file.header().shape.begin(), file.header().shape.end(), form.extents.begin());
  return file.take_elements();
}

Folder open_folder(const std::filesystem::path& path) {
  Folder folder{os::FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), path};
  if (!folder.fd.is_open()) fail("open", path);
  return folder;
}

bool is_in_place(const os::FileDescriptor& fd, const Folder& folder, const std::string& name) noexcept {
  struct stat own {};
  struct stat there {};
  return ::fstat(fd.get(), &own) == 0 && ::fstatat(folder.fd.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

void remove_file(const Folder& folder, const std::string& name) noexcept {
  static_cast<void>(::unlinkat(folder.fd.get(), name.c_str(), 0));
}

void sync(const Folder& folder) {
  // Some file systems do not support fsync of folders, and report EINVAL. There is nothing to wait for then.
  if (::fsync(folder.fd.get()) != 0 && errno != EINVAL) fail("write", folder.path);
}

void write_file(const Folder& folder, const std::string& name, std::string_view front,
                std::span<const std::byte> rest) {
  const auto path = folder.path / name;
  // The name may already exist, and may be a link or a pipe. So it is removed and not opened.
  remove_file(folder, name);
  const os::FileDescriptor fd(::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.is_open()) fail("write", path);
  write_at(fd, path, 0, std::as_bytes(std::span(front)));
  write_at(fd, path, front.size(), rest);
  sync_file(fd, path);
}

void write_at(const os::FileDescriptor& fd, const std::filesystem::path& path, std::uint64_t at,
              std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t most = std::min(bytes.size(), kLargestMove);
    const ssize_t written = ::pwrite(fd.get(), bytes.data(), most, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path);
    at += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void sync_file(const os::FileDescriptor& fd, const std::filesystem::path& path) {
  if (::fsync(fd.get()) != 0) fail("write", path);
}

std::string read_file(const Folder& folder, const std::string& name, std::size_t longest_bytes) {
  const auto path = folder.path / name;
  const os::FileDescriptor fd = open_to_read(folder.fd.get(), name, path);
  const std::uint64_t length = length_of(fd, path);
  if (length > longest_bytes) {
    text::throw_usage(path.string() + ": expected at most " + std::to_string(longest_bytes) + " bytes, found " +
                      std::to_string(length));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  text.resize(read_some(fd.get(), path, 0, text.data(), text.size()));
  return text;
}

FilePart::FilePart(const Folder& folder, const std::string& name)
    : folder_(folder),
      path_(folder.path / name),
      fd_(::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
  if (!fd_.is_open()) fail("write", path_);
}

void FilePart::write(std::uint64_t at, std::span<const std::byte> bytes) { write_at(fd_, path_, at, bytes); }

void FilePart::sync() {
  sync_file(fd_, path_);
  detail::arrays::sync(folder_);
}

ArrayFile::ArrayFile(const Folder& folder, const std::string& name)
    : ArrayFile(open_to_read(folder.fd.get(), name, folder.path / name), folder.path / name) {}

ArrayFile::ArrayFile(const std::filesystem::path& path) : ArrayFile(open_to_read(AT_FDCWD, path, path), path) {}

ArrayFile::ArrayFile(os::FileDescriptor fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {
  const std::uint64_t length = length_of(fd_, path_);
  std::vector<char> front(static_cast<std::size_t>(std::min<std::uint64_t>(length, kLongestNpyHeader)));
  front.resize(read_some(fd_.get(), path_, 0, front.data(), front.size()));
  try {
    header_ = parse_npy_header(std::as_bytes(std::span(front)));
    bytes_ = npy_data_bytes(header_, length);
  } catch (const Error& error) {
    text::throw_usage(path_.string() + ": " + error.what());
  }
}

void ArrayFile::check_type(DType dtype, std::size_t dimensions) const {
  if (header_.dtype == dtype && header_.shape.size() == dimensions) return;
  text::throw_usage(path_.string() + " is of " + describe_type(header_.dtype, header_.shape.size()) + ", not " +
                    describe_type(dtype, dimensions));
}

void ArrayFile::read(void* values) const { read_part(0, bytes_, values); }

void ArrayFile::read_part(std::size_t at, std::size_t bytes, void* values) const {
  if (at > bytes_ || bytes > bytes_ - at) {
    text::throw_usage(path_.string() + ": expected " + std::to_string(at + bytes) +
                      " bytes of elements or more, found " + std::to_string(bytes_));
  }
  const std::size_t got = read_some(fd_.get(), path_, header_.data_offset + at, static_cast<char*>(values), bytes);
  if (got != bytes) {
    text::throw_usage(path_.string() + ": expected " + std::to_string(at + bytes) + " bytes of elements, found " +
                      std::to_string(at + got));
  }
  if (header_.dtype != DType::boolean) return;
  // A bool can only be 0 or 1. To read another value as a bool would be undefined.
  const std::span<const unsigned char> flags(static_cast<const unsigned char*>(values), bytes);
  const auto bad = std::find_if(flags.begin(), flags.end(), [](unsigned char flag) { return flag > 1; });
  if (bad != flags.end())
    text::throw_usage(path_.string() + ": expected bools of 0 or 1, found " + std::to_string(*bad));
}

}  // namespace syncrun::detail::arrays
