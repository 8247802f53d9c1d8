#include "common/arrays/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

/// The most bytes in one system call. The kernel itself moves less than 2 GiB in one.
constexpr std::size_t kLargestPart = std::size_t{1} << 30U;

}  // namespace

MappedFile::MappedFile(FileDescriptor fd, std::string name, std::size_t elements_at, std::size_t bytes)
    : fd_(std::move(fd)), name_(std::move(name)), elements_at_(elements_at), bytes_(bytes) {
  if (bytes_ == 0) return;
  void* const mapping = ::mmap(nullptr, elements_at_ + bytes_, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (mapping == MAP_FAILED)
    throw_errno("cannot map the " + std::to_string(elements_at_ + bytes_) + " bytes of " + name_);
  mapping_ = static_cast<std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, elements_at_ + bytes_);
}

void MappedFile::read(std::size_t at, void* to, std::size_t bytes) const {
  check_intact();
  read_on(at, to, bytes);
}

void MappedFile::read_on(std::size_t at, void* to, std::size_t bytes) const {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t part = ::pread(fd_.get(), static_cast<std::byte*>(to) + got, std::min(bytes - got, kLargestPart),
                                 static_cast<off_t>(elements_at_ + at + got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) throw_errno("cannot read " + name_);
    if (part == 0) fail_truncated(elements_at_ + at + got);
    got += static_cast<std::size_t>(part);
  }
}

void MappedFile::read_rows(std::size_t row_bytes, std::span<const std::int64_t> indices, std::size_t skipped, void* to,
                           std::size_t bytes) const {
  check_intact();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t row = (skipped + done) / row_bytes;
    const std::size_t within = (skipped + done) % row_bytes;
    const std::size_t part = std::min(row_bytes - within, bytes - done);
    read_on(static_cast<std::size_t>(indices[row]) * row_bytes + within, static_cast<std::byte*>(to) + done, part);
    done += part;
  }
}

void MappedFile::check_intact() const {
  if (!fd_.is_intact()) throw descriptors_closed("that of " + name_);
}

void MappedFile::check_length() const {
  check_intact();
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno("cannot read " + name_);
  const auto length = static_cast<std::size_t>(status.st_size);
  if (length < elements_at_ + bytes_) fail_truncated(length);
}

void MappedFile::fail_truncated(std::size_t got) const {
  throw Error(ErrorKind::system, name_ + ": expected the " + std::to_string(elements_at_ + bytes_) +
                                     " bytes it had when it was mapped, found " + std::to_string(got) +
                                     ": it was truncated since then");
}

}  // namespace syncrun::detail
