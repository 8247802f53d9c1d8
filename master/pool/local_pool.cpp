#include "master/pool/local_pool.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/os/environment.hpp"
#include "common/os/memory_limit.hpp"
#include "common/os/sign_of_life.hpp"
#include "common/protocol/function_address.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/text/errors.hpp"
#include "master/process/debugger.hpp"
#include "master/process/stuck_ranks.hpp"

namespace syncrun::detail::master::pool {

namespace {

/// How long a wrapper may go on when its worker was lost, in a session on several nodes. This process must not be silent
/// for longer.
constexpr os::Milliseconds kWrapperLimitOfNodes = std::chrono::seconds(2);

constexpr const char* kStartLimit = "--start-timeout or SessionOptions::start_timeout";
constexpr std::size_t kAlign = std::size_t{2} << 20U;
constexpr std::size_t round_up(std::size_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

// The least size of a worker's arena besides its values, for the buffers of its communicator. In a session on several
// nodes, it also has what the nodes exchange.
constexpr std::size_t kLeastArenaBytes = 2 * kAlign;
constexpr std::size_t kLeastArenaBytesOfNodes = 12 * kAlign;

/// In a session on several nodes, each has one part more, for what comes from other nodes (WorkerPool::inbound).
int parts_of(const protocol::NodePlace& place) noexcept { return place.local_size + (place.has_others() ? 1 : 0); }

/// The size for a session that does not have one yet. A size that the user chooses goes before what wrappers can bear.
std::size_t usual_segment_bytes(const wrappers::Wrappers& wrappers) {
  const std::size_t usual = os::default_reservation_bytes();
  if (environment::get(environment::kReserveBytes) != nullptr) return usual;
  return std::min(usual, wrappers.most_shared_bytes().value_or(usual));
}

/// The two halves of the segment (see prepare_control) are whole pages, and are large enough for what Syncrun itself
/// puts there.
os::Segment reserve_segment(std::size_t control_bytes, const protocol::NodePlace& place, std::size_t wanted,
                            const wrappers::Wrappers& wrappers) {
  const std::size_t bytes = wanted != 0 ? wanted : usual_segment_bytes(wrappers);
  const std::size_t arena = place.has_others() ? kLeastArenaBytesOfNodes : kLeastArenaBytes;
  const std::size_t least = 2 * (control_bytes + static_cast<std::size_t>(parts_of(place)) * arena);
  if (bytes < least) {
    text::throw_usage(std::string(environment::kReserveBytes) + " is at least " + std::to_string(least) + " for " +
                      std::to_string(place.local_size) + " workers, got " + std::to_string(bytes));
  }
  return os::Segment::create(bytes / (2 * kAlign) * (2 * kAlign),
                             std::max({least, wanted, os::Segment::kSmallestReservation}));
}

}  // namespace

LocalPool::LocalPool(const settings::Settings& settings) : LocalPool(settings, settings.nodes.front()) {}

LocalPool::LocalPool(const settings::Settings& settings, const protocol::NodePlace& place, std::size_t segment_bytes)
    : settings_(settings), place_(place) {
  const int world_size = static_cast<int>(settings_.devices.size());
  settings_.wrappers.check(world_size, place_);
  const std::size_t control_bytes = round_up(protocol::ControlBlock::bytes(world_size));
  set_memory(reserve_segment(control_bytes, place_, segment_bytes, settings_.wrappers), world_size);
  prepare_control(control_bytes);
  workers_.emplace(settings_, segment(), control());
}

void LocalPool::prepare_control(std::size_t control_bytes) {
  auto& header = control().header();
  header.magic = protocol::kMagic;
  header.layout = protocol::kLayout;
  header.world_size = static_cast<std::uint32_t>(world_size());
  header.place = place_;
  // One half is for the control block and the master's heap, the other half for the workers' arenas.
  header.heap_offset = control_bytes;
  header.heap_bytes = segment().bytes() / 2 - control_bytes;
  header.arenas_offset = segment().bytes() / 2;
  header.arena_bytes = segment().bytes() / 2 / static_cast<std::size_t>(parts_of(place_)) / kAlign * kAlign;
  header.seed = settings_.seed;
  header.spins = place_.local_size + 1 <= os::usable_cores();
  header.workers_spin = place_.local_size <= os::usable_cores();
  header.respawns = settings_.on_worker_lost == OnWorkerLost::respawn;
  const protocol::ImageAddress image = protocol::program_image();
  header.build_id_bytes = image.build_id_bytes;
  header.build_id = image.build_id;
  for (int rank = 0; rank < world_size(); ++rank) {
    os::initialise_life(control().worker(rank).life);
    control().worker(rank).device_kind = settings_.devices[static_cast<std::size_t>(rank)].kind;
  }
  for (const protocol::NodePlace& node : settings_.nodes) {
    for (int local_rank = 0; local_rank < node.local_size; ++local_rank)
      control().worker(node.rank(local_rank)).node = node.node;
  }
}

void LocalPool::start() {
  nursery_ = std::make_unique<process::Nursery>(*workers_, settings_.grace, protocol::supervisor_link());
  nursery_->spawn_all(settings_.start_timeout, kStartLimit);
}

void LocalPool::note_shared_memory(std::size_t used_bytes) {
  constexpr int kWhole = 1000;
  constexpr int kStep = 10;  // so that a large array is not announced again and again while it grows
  static const auto granted_bytes = static_cast<double>(os::granted_memory_bytes());
  const double part = static_cast<double>(used_bytes) / granted_bytes;
  const int thousandths = std::min(kWhole, process::kDiesEarlierBy + static_cast<int>(std::ceil(part * kWhole)));
  if (thousandths < workers_->dies_earlier_by() + kStep) return;
  workers_->set_dies_earlier_by(thousandths);
  if (nursery_) nursery_->set_oom_score(process::oom_score_after(thousandths));
}

void LocalPool::stop() noexcept {
  if (!nursery_) return;
  nursery_->expect_ends();
  nursery_->kill_all();
}

void LocalPool::end() noexcept {
  // only the process that created them has these threads and workers
  if (!fork_guard_.is_here()) static_cast<void>(nursery_.release());
  if (nursery_) nursery_->expect_ends();
  nursery_.reset();
}

int LocalPool::pid(int rank) const noexcept {
  const int own = settings_.wrappers.of(rank) == nullptr ? 0 : control().worker(rank).pid.load();
  return own != 0 ? own : nursery_->pid(place_.local_rank(rank));
}

process::ChildEnd LocalPool::await_end(int rank) {
  const int child = place_.local_rank(rank);
  const std::string* const wrapper = settings_.wrappers.of(rank);
  if (wrapper == nullptr) return process::await_child_end(*nursery_, child);
  const auto status = nursery_->await_end(child, place_.has_others() ? kWrapperLimitOfNodes : nursery_->grace());
  if (!status) return {std::nullopt, "died, and its wrapper '" + *wrapper + "' goes on", nursery_->crash_stack(child)};
  const bool has_begun = control().worker(rank).pid.load() != 0;
  return {status,
          wrappers::describe_end(*wrapper, process::describe_status(*status), has_begun,
                                 settings_.wrappers.use_terminals()),
          nursery_->crash_stack(child)};
}

std::optional<Error> LocalPool::watch_failure() const {
  if (!nursery_->has_lost_descriptors()) return std::nullopt;
  return nursery_->lost_descriptors();
}

/// A debugger that is a wrapper traces a process below it. As long as there is none, a person in a terminal may not have
/// let it start.
bool LocalPool::is_debugged() const {
  if (process::is_debugged(*nursery_)) return true;
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    const int rank = place_.rank(local_rank);
    if (settings_.wrappers.of(rank) == nullptr) continue;
    const int pid = control().worker(rank).pid.load();
    if (pid == 0 && settings_.wrappers.use_terminals()) return true;
    if (pid != 0 ? process::tracer_of(pid) != 0 : process::traces_descendants(nursery_->pid(local_rank))) return true;
  }
  return false;
}

int LocalPool::tracer(int rank) const { return process::tracer_of(pid(rank)); }

void LocalPool::take_stacks(std::vector<RankState>& states) { detail::master::process::take_stacks(states); }

bool LocalPool::reap(int rank) {
  if (!await_end(rank).wait_status) return false;
  nursery_->unwatch_life(place_.local_rank(rank));
  return true;
}

void LocalPool::replace(const std::vector<Successor>& successors) {
  forget_losses(successors);
  start_successors(successors);
}

void LocalPool::start_successors(const std::vector<Successor>& successors) {
  for (const Successor& successor : successors) {
    if (!place_.has(successor.rank)) continue;
    nursery_->replace(place_.local_rank(successor.rank), settings_.start_timeout, kStartLimit);
  }
}

}  // namespace syncrun::detail::master::pool
