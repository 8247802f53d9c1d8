#include "common/arrays/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

#include "common/text/errors.hpp"

namespace syncrun::detail::arrays {

namespace {

/// The most bytes in one system call. The kernel itself moves less than 2 GiB in one.
constexpr std::size_t kLargestPart = std::size_t{1} << 30U;

/// FNV-1a with 64 bits (Fowler, Noll, Vo).
class Hash {
 public:
  void add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte byte : bytes) value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

std::string in_words(const FileState& state) {
  std::tm utc{};
  std::array<char, 32> date{};
  const std::time_t seconds = state.written_s;
  if (::gmtime_r(&seconds, &utc) != nullptr) std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M:%S", &utc);
  const std::string fraction = std::to_string(1'000'000'000 + state.written_ns).substr(1);
  return std::to_string(state.bytes) + " bytes, last written " + date.data() + "." + fraction + " UTC";
}

}  // namespace

bool names_node(std::string_view path) noexcept { return path.find(kNodeInPath) != std::string_view::npos; }

std::string path_on_node(std::string_view path, int node) {
  std::string text;
  for (std::size_t at = path.find(kNodeInPath); at != std::string_view::npos; at = path.find(kNodeInPath)) {
    text.append(path.substr(0, at)).append(std::to_string(node));
    path.remove_prefix(at + kNodeInPath.size());
  }
  return text.append(path);
}

MappedFile::MappedFile(os::FileDescriptor fd, std::string name, std::size_t elements_at, std::size_t bytes,
                       std::size_t begin)
    : fd_(std::move(fd)),
      name_(std::move(name)),
      elements_at_(elements_at),
      bytes_(bytes),
      begin_(begin),
      state_(state_now()) {
  if (bytes_ == 0) return;
  void* const mapping = ::mmap(nullptr, elements_at_ + bytes_, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (mapping == MAP_FAILED)
    text::throw_errno("cannot map the " + std::to_string(elements_at_ + bytes_) + " bytes of " + name_);
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
  read_file(elements_at_ + (at - begin_), to, bytes);
}

void MappedFile::read_file(std::size_t at, void* to, std::size_t bytes) const {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t part = ::pread(fd_.get(), static_cast<std::byte*>(to) + got, std::min(bytes - got, kLargestPart),
                                 static_cast<off_t>(at + got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) text::throw_errno("cannot read " + name_);
    if (part == 0) fail_truncated(at + got);
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
  if (!fd_.is_intact()) throw text::descriptors_closed("that of " + name_);
}

FileState MappedFile::state_now() const {
  check_intact();
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) text::throw_errno("cannot read " + name_);
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

void MappedFile::check_is(const FileState& expected) const {
  const FileState now = state_now();
  const auto length = static_cast<std::size_t>(now.bytes);
  if (length < elements_at_ + bytes_) fail_truncated(length);
  if (now == expected) return;
  throw Error(ErrorKind::system, name_ + " was overwritten while it was mapped: expected " + in_words(expected) +
                                     ", found " + in_words(now) +
                                     ". What was read may be in part of the old file and in part of the new one. Map "
                                     "the file anew, and replace such a file by renaming a new one (mv), which leaves "
                                     "the mapped one as it is");
}

std::uint64_t MappedFile::fingerprint() const {
  constexpr std::size_t kBlocks = 16;
  constexpr std::size_t kBlockBytes = 4096;
  constexpr std::size_t kMostBytesBefore = std::size_t{64} << 10U;  // the elements of a raw file may begin anywhere
  check_unchanged();
  Hash hash;
  hash.add(std::as_bytes(std::span(&state_.bytes, 1)));
  std::vector<std::byte> block;
  const auto add = [&](std::size_t file_offset, std::size_t bytes) {
    block.resize(bytes);
    read_file(file_offset, block.data(), bytes);
    hash.add(block);
  };
  add(0, std::min(elements_at_, kMostBytesBefore));
  for (std::size_t i = 0; i < kBlocks && bytes_ != 0; ++i) {
    const std::size_t at = bytes_ / kBlocks * i;
    add(elements_at_ + at, std::min(kBlockBytes, bytes_ - at));
  }
  return std::max<std::uint64_t>(hash.value(), 1);
}

void MappedFile::fail_truncated(std::size_t got) const {
  throw Error(ErrorKind::system, name_ + ": expected the " + std::to_string(elements_at_ + bytes_) +
                                     " bytes that are mapped, found " + std::to_string(got) +
                                     ": it was truncated since then");
}

}  // namespace syncrun::detail::arrays
