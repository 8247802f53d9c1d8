#include "common/os/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <string_view>

#include "common/os/crash_signals.hpp"
#include "common/os/environment.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::os {

namespace interprocess = boost::interprocess;

namespace {

/// Has the interface that mapped_region requires of the thing that it maps.
struct Mappable {
  int fd;
  interprocess::mapping_handle_t get_mapping_handle() const noexcept {
    return interprocess::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

// The mapping whose used pages a core file shall contain. A process has one session at a time.
std::atomic<std::byte*> dumped_base{nullptr};
std::atomic<int> dumped_fd{-1};

/// Runs before the kernel writes a core file. Makes system calls only.
void dump_used_pages(const ucontext_t&) noexcept {
  std::byte* const base = dumped_base.load();
  const int fd = dumped_fd.load();
  for (off_t end = 0; base != nullptr;) {
    const off_t begin = ::lseek(fd, end, SEEK_DATA);
    end = begin < 0 ? -1 : ::lseek(fd, begin, SEEK_HOLE);
    if (end <= begin) break;
    ::madvise(base + begin, static_cast<std::size_t>(end - begin), MADV_DODUMP);
  }
}

/// When the kernel writes a core file, it would make the pages of the whole reservation, which takes hours and all memory.
/// If the user wants the contents, it writes those of used pages only.
void limit_core_files(const interprocess::mapped_region& region, int fd) {
  static_cast<void>(::madvise(region.get_address(), region.get_size(), MADV_DONTDUMP));
  if (!environment::switch_in(environment::kDumpShared).value_or(false)) return;
  dumped_base.store(static_cast<std::byte*>(region.get_address()));
  dumped_fd.store(fd);
  run_at_crash(dump_used_pages, HandlersBefore::are_replaced);
}

interprocess::mapped_region map(int fd, std::size_t bytes) {
  // MAP_NORESERVE: the mapping itself reserves no memory. SharedHeap reserves the pages of the memfd when it allocates.
  interprocess::mapped_region region(Mappable{fd}, interprocess::read_write, 0, bytes, nullptr,
                                     MAP_SHARED | MAP_NORESERVE);
  limit_core_files(region, fd);
  return region;
}

}  // namespace

std::size_t default_reservation_bytes() {
  if (const char* text = environment::get(environment::kReserveBytes)) {
    const auto bytes = environment::whole_number(text);
    if (bytes && *bytes > 0) return static_cast<std::size_t>(*bytes);
    environment::throw_bad_value(environment::kReserveBytes, text, "a number of bytes, such as 1073741824");
  }
#if defined(SYNCRUN_THREAD_SANITIZER)
  return std::size_t{1} << 36U;
#else
  return std::size_t{1} << 40U;
#endif
}

namespace {

/// RLIMIT_FSIZE also applies to files in memory. The kernel kills a process with SIGXFSZ if it makes a file longer than
/// that. So this function checks the limit first. Throws Error (system, EFBIG).
void check_file_size_limit(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return;
  throw Error(ErrorKind::system,
              "shared memory is a file of at least " + std::to_string(bytes) +
                  " bytes, and the size of files is limited (" + text::limit_text(RLIMIT_FSIZE) + "; a smaller " +
                  environment::kReserveBytes + " may do)",
              EFBIG);
}

[[noreturn]] void throw_not_mapped(std::size_t bytes, int code) {
  text::throw_errno("cannot map " + std::to_string(bytes) + " bytes of shared memory (" + text::limit_text(RLIMIT_AS) +
                        "; a smaller " + environment::kReserveBytes + " may do)",
                    code);
}

}  // namespace

Segment Segment::create(std::size_t bytes, std::size_t least) {
  for (;; bytes /= 2) {
    Segment segment;
    segment.fd_ =
        FileDescriptor(text::check_system(::memfd_create("syncrun", MFD_CLOEXEC), "cannot create shared memory"));
    try {
      check_file_size_limit(bytes);
      // The file has the size of the whole reservation from the start. Pages that are not used take no memory.
      text::check_system(::ftruncate(segment.fd_.get(), static_cast<off_t>(bytes)), "cannot size shared memory");
      segment.region_ = map(segment.fd_.get(), bytes);
      return segment;
    } catch (const interprocess::interprocess_exception& error) {
      if (bytes / 2 < least) throw_not_mapped(bytes, error.get_native_error());
    } catch (const Error&) {
      if (bytes / 2 < least) throw;
    }
  }
}

Segment Segment::attach(FileDescriptor fd, std::size_t bytes) {
  Segment segment;
  segment.fd_ = std::move(fd);
  try {
    segment.region_ = map(segment.fd_.get(), bytes);
  } catch (const interprocess::interprocess_exception& error) {
    text::throw_errno("cannot map the session's shared memory", error.get_native_error());
  }
  return segment;
}

void Segment::reserve(std::uint64_t offset, std::uint64_t bytes, std::string_view what) const {
  if (bytes == 0) return;
  while (::fallocate(fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    const int code = errno;
    text::throw_errno("cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " + std::string(what),
                      code);
  }
}

void Segment::map_privately(void* address, std::uint64_t offset, std::size_t bytes) const {
  constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  if (::mmap(address, bytes, PROT_READ | PROT_WRITE, kFlags, fd(), static_cast<off_t>(offset)) == MAP_FAILED) {
    text::throw_errno("cannot map " + std::to_string(bytes) +
                          " bytes of another rank (vm.max_map_count limits the number of mappings)",
                      errno);
  }
}

std::size_t Segment::page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace syncrun::detail::os
