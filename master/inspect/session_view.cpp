#include "master/inspect/session_view.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string_view>

#include "common/os/environment.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/text/errors.hpp"
#include "common/text/visible_text.hpp"
#include "master/process/resident_memory.hpp"

namespace syncrun::detail::master::inspect {

namespace {

std::string_view in_words(protocol::CommandKind kind) {
  using Kind = protocol::CommandKind;
  switch (kind) {
    case Kind::call: return "(call)";
    case Kind::destroy: return "(destroys an object)";
    case Kind::collective: return "(collective)";
    case Kind::transfer:
    case Kind::move: return "(moves values)";
    case Kind::files:
    case Kind::look: return "(files)";
    case Kind::free:
    case Kind::unpin:
    case Kind::unmap: return "(frees memory)";
    case Kind::memory: return "(memory)";
    case Kind::connect: return "(connects ranks)";
    case Kind::close: return "(close)";
  }
  return "(command)";
}

/// In these phases, a rank waits for a command or for other ranks. A collective also moves values, but a rank that is
/// slow keeps the others there.
bool is_waiting(protocol::Phase phase) noexcept {
  using protocol::Phase;
  return phase == Phase::idle || phase == Phase::dependencies || phase == Phase::collective || phase == Phase::vote;
}

}  // namespace

SessionView::SessionView(const RunningJob& job)
    : path_("/proc/" + std::to_string(job.master) + "/fd/" + std::to_string(job.segment_fd)),
      memory_(
          text::check_system(::open(path_.c_str(), O_RDWR | O_CLOEXEC), "cannot open the shared memory of the job")) {
  std::uint64_t magic = 0;
  std::array<std::uint32_t, 2> sizes{};  // the world size and the layout, which follow the magic number
  const bool is_read =
      ::pread(memory_.get(), &magic, sizeof(magic), 0) == static_cast<ssize_t>(sizeof(magic)) &&
      ::pread(memory_.get(), sizes.data(), sizeof(sizes), sizeof(magic)) == static_cast<ssize_t>(sizeof(sizes));
  const auto [world_size, layout] = sizes;
  const bool is_sound =
      is_read && magic == protocol::kMagic && world_size >= 1 && world_size <= protocol::kMaxWorldSize;
  if (!is_sound || layout != protocol::kLayout) {
    text::throw_usage("expected a job whose library has the version of this syncrun, but process " +
                      std::to_string(job.master) + " (" + job.command +
                      ") uses another one. Use the syncrun that was installed with the library");
  }
  mapped_bytes_ = protocol::ControlBlock::bytes(static_cast<int>(world_size));
  mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory_.get(), 0);
  if (mapped_ == MAP_FAILED) text::throw_errno("cannot map the shared memory of the job");
  control_ = protocol::ControlBlock(static_cast<std::byte*>(mapped_), static_cast<int>(world_size));
}

SessionView::~SessionView() { ::munmap(mapped_, mapped_bytes_); }

bool SessionView::is_running() const {
  struct stat masters {};
  struct stat own {};
  return ::stat(path_.c_str(), &masters) == 0 && ::fstat(memory_.get(), &own) == 0 && masters.st_ino == own.st_ino &&
         masters.st_dev == own.st_dev;
}

std::vector<RankView> SessionView::look() {
  std::vector<RankView> ranks;
  const protocol::NodePlace& here = place();
  for (int rank = 0; rank < world_size(); ++rank) {
    const protocol::WorkerSlot& slot = control_.worker(rank);
    RankView view;
    view.rank = rank;
    view.node = slot.node;
    view.is_here = here.has(rank);
    if (!is_shown(rank)) continue;
    view.pid = slot.pid.load();
    const std::uint64_t progress = slot.progress.load(std::memory_order_acquire);
    const protocol::Phase phase = protocol::phase_of(progress);
    view.phase = slot.is_lost.load() != 0 ? "lost" : protocol::to_string(phase);
    if (phase != protocol::Phase::idle) view.call = call_of(rank, protocol::command_of(progress));
    view.calls = slot.calls.load(std::memory_order_relaxed);
    view.rows = slot.rows.load(std::memory_order_relaxed);
    view.memory_bytes =
        view.is_here ? process::resident_bytes(view.pid) : slot.memory_bytes.load(std::memory_order_relaxed);
    view.device = view.is_here ? device_of(rank, view.pid) : "";
    if (view.device.empty()) view.device = slot.device_kind == DeviceKind::cuda ? "cuda" : "cpu";
    ranks.push_back(std::move(view));
  }
  return ranks;
}

std::vector<bool> SessionView::are_busy() const {
  std::vector<bool> busy;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!is_shown(rank)) continue;
    const protocol::WorkerSlot& slot = control_.worker(rank);
    const auto phase = protocol::phase_of(slot.progress.load(std::memory_order_relaxed));
    busy.push_back(slot.is_lost.load(std::memory_order_relaxed) == 0 && !is_waiting(phase));
  }
  return busy;
}

/// The name of the command with this number. The command may be over in the meantime, and its slot may have another one.
std::string SessionView::call_of(int rank, std::uint64_t command) const {
  if (command == 0) return "(start)";
  for (std::size_t place = 0; place < protocol::kInboxSize; ++place) {
    const protocol::InboxEntry entry(control_.inbox(rank, place).load(std::memory_order_acquire));
    if (entry.command() != command || entry.slot() >= control_.slots()) continue;
    const protocol::Command& found = control_.command_in(entry.slot());
    const auto* const call = std::get_if<protocol::CallPayload>(&found.payload);
    return call == nullptr ? std::string(in_words(found.kind)) : name_of_function(call->function);
  }
  return {};
}

/// The description of a function is outside of what is mapped here.
std::string SessionView::name_of_function(std::uint64_t offset) const {
  decltype(protocol::FunctionEntry::name) name{};
  const auto at = static_cast<off_t>(offset + offsetof(protocol::FunctionEntry, name));
  if (::pread(memory_.get(), name.data(), sizeof(name), at) != static_cast<ssize_t>(sizeof(name))) return {};
  return text::visible(text::get_text(name));
}

const std::string& SessionView::device_of(int rank, int pid) {
  auto& [known_pid, device] = devices_[rank];
  if (known_pid != pid) {
    known_pid = pid;
    device = variable_of(pid, environment::kDevice);
  }
  return device;
}

}  // namespace syncrun::detail::master::inspect
