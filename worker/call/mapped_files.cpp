#include "worker/call/mapped_files.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "common/arrays/array_file.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::worker::call {

namespace {

/// A mapping as the signal handler sees it. `end` is written last and cleared first. If it is 0, the place is free.
struct GuardedRange {
  std::atomic<std::uintptr_t> begin;
  std::atomic<std::uintptr_t> end;
  std::atomic<bool> has_struck;
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

// A signal handler gets no arguments from Syncrun, so it reads global variables.
constinit std::array<GuardedRange, 4096> ranges{};
constinit std::uintptr_t page_bytes = 4096;
struct sigaction action_before {};

/// The guarded range that contains the address, or null.
GuardedRange* find_range(std::uintptr_t address) noexcept {
  for (GuardedRange& range : ranges) {
    const std::uintptr_t end = range.end.load(std::memory_order_acquire);
    if (address < end && address >= range.begin.load(std::memory_order_relaxed)) return &range;
  }
  return nullptr;
}

/// Makes system calls only. When it returns, the interrupted instruction runs again.
void on_bus_error(int, siginfo_t* info, void*) {
  const int error = errno;
  const bool is_sent = info->si_code <= 0;  // sent by a process, not caused by an address
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (GuardedRange* const range = is_sent ? nullptr : find_range(address)) {
    range->has_struck.store(true, std::memory_order_release);
    void* const missing = reinterpret_cast<void*>(address / page_bytes * page_bytes);
    if (::mmap(missing, page_bytes, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == missing) {
      errno = error;
      return;
    }
  }
  // The previous handler is restored. Then the signal occurs again and reaches that handler.
  ::sigaction(SIGBUS, &action_before, nullptr);
  if (is_sent) static_cast<void>(::raise(SIGBUS));
  errno = error;
}

void install_handler() noexcept {
  [[maybe_unused]] static const bool is_installed = [] {
    page_bytes = static_cast<std::uintptr_t>(::getpagesize());
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return ::sigaction(SIGBUS, &action, &action_before) == 0;
  }();
}

os::FileDescriptor open_again(const arrays::FileEntry& entry, const std::string& name) {
  const std::string path = "/proc/" + std::to_string(entry.master) + "/fd/" + std::to_string(entry.fd);
  os::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) text::throw_errno("a worker cannot open " + name + " (as " + path + ")");
  return fd;
}

constexpr const char* kSamePath =
    "a file that is mapped must be the same at the same path on every node; an array in memory is sent to them";

/// Another node has no descriptors of the master.
os::FileDescriptor open_here(const std::string& name, const std::string& why) {
  os::FileDescriptor fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) text::throw_errno("a worker cannot open " + name + " on its node" + why);
  return fd;
}

}  // namespace

FaultGuard::FaultGuard(const arrays::MappedFile& file) : place_(-1) {
  if (file.mapping() == nullptr) return;
  install_handler();
  const auto begin = reinterpret_cast<std::uintptr_t>(file.mapping());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].end.load(std::memory_order_relaxed) != 0) continue;
    ranges[i].has_struck.store(false, std::memory_order_relaxed);
    ranges[i].begin.store(begin, std::memory_order_relaxed);
    ranges[i].end.store(begin + file.mapping_bytes(), std::memory_order_release);
    place_ = static_cast<int>(i);
    return;
  }
  text::throw_usage("more than " + std::to_string(ranges.size()) + " files are mapped, " + file.name() +
                    " among them: drop some that are not used any more, or copy them to memory");
}

FaultGuard::~FaultGuard() {
  if (place_ >= 0) ranges[static_cast<std::size_t>(place_)].end.store(0, std::memory_order_release);
}

bool FaultGuard::has_struck() const noexcept {
  return place_ >= 0 && ranges[static_cast<std::size_t>(place_)].has_struck.load(std::memory_order_acquire);
}

void MappedFiles::look(const os::Segment& segment, const protocol::LookPayload& command, int rank) const {
  const auto& question = *segment.at<const arrays::FileQuestion>(command.question);
  arrays::FileForm form = question.form;
  arrays::FileElements elements =
      arrays::open_elements(arrays::path_on_node({question.path(), question.path_bytes}, place_.node), form);
  const arrays::MappedFile file(std::move(elements.fd), elements.path.string(), elements.elements_at, elements.bytes);
  segment.at<arrays::FileFacts>(command.answers)[rank] = {file.elements_at(), file.bytes(), file.state(), form.extents};
}

const arrays::MappedFile& MappedFiles::at(const arrays::FileEntry& entry) {
  if (const auto found = files_.find(entry.id); found != files_.end()) return found->second->file;
  const std::string path(entry.name(), entry.name_bytes);
  return files_.emplace(entry.id, entry.parts_count != 0 ? map_part(entry, path) : map_same(entry, path))
      .first->second->file;
}

std::unique_ptr<MappedFiles::Guarded> MappedFiles::map_part(const arrays::FileEntry& entry,
                                                            const std::string& path) const {
  const std::string name = arrays::path_on_node(path, place_.node);
  const arrays::FilePartOfNode& part = entry.parts()[place_.node];
  os::FileDescriptor fd = place_.node == 0 ? open_again(entry, name) : open_here(name, "");
  std::unique_ptr<Guarded> guarded(new Guarded{{std::move(fd), name, part.elements_at, part.bytes, part.begin}});
  guarded->file.check_is(part.state);
  return guarded;
}

std::unique_ptr<MappedFiles::Guarded> MappedFiles::map_same(const arrays::FileEntry& entry,
                                                            const std::string& name) const {
  const bool is_masters_node = place_.node == 0;
  os::FileDescriptor fd =
      is_masters_node ? open_again(entry, name) : open_here(name, std::string(" (") + kSamePath + ")");
  std::unique_ptr<Guarded> guarded(new Guarded{{std::move(fd), name, entry.elements_at, entry.bytes}});
  if (is_masters_node) guarded->file.check_is(entry.state);
  else guarded->file.check_unchanged();
  if (!is_masters_node && guarded->file.fingerprint() != entry.fingerprint) {
    throw Error(
        ErrorKind::system,
        name + ": expected the file that the master has mapped, found another one on this node (" + kSamePath + ")");
  }
  return guarded;
}

void MappedFiles::check(std::uint64_t id) const {
  const auto found = files_.find(id);
  if (found == files_.end()) return;
  const Guarded& guarded = *found->second;
  guarded.file.check_unchanged();  // bytes that are missing in its last page read as zeros, without a signal
  if (!guarded.guard.has_struck()) return;
  throw Error(ErrorKind::system, guarded.file.name() +
                                     ": could not be read where it is mapped: it was shorter for a while, or its disk "
                                     "fails; map it anew");
}

}  // namespace syncrun::detail::worker::call
