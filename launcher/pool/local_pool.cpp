#include "launcher/pool/local_pool.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/os/environment.hpp"
#include "common/os/life.hpp"
#include "common/os/memory_limit.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/protocol/image.hpp"
#include "common/text/errors.hpp"
#include "launcher/process/debugger.hpp"
#include "launcher/process/rank_report.hpp"

namespace syncrun::detail {

namespace {

constexpr const char* kStartLimit = "--start-timeout or SessionOptions::start_timeout";
constexpr std::size_t kAlign = std::size_t{2} << 20U;
constexpr std::size_t round_up(std::size_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

// The least size of a worker's arena besides its values, for the buffers of its communicator. In a session on several
// nodes, it also has what the nodes exchange.
constexpr std::size_t kLeastArenaBytes = 2 * kAlign;
constexpr std::size_t kLeastArenaBytesOfNodes = 12 * kAlign;

/// In a session on several nodes, each has one part more, for what comes from other nodes (WorkerPool::inbound).
int parts_of(const NodePlace& place) noexcept { return place.local_size + (place.nodes > 1 ? 1 : 0); }

/// The two halves of the segment (see prepare_control) are whole pages, and are large enough for what Syncrun itself
/// puts there.
Segment reserve_segment(std::size_t control_bytes, const NodePlace& place, std::size_t wanted) {
  const std::size_t bytes = wanted != 0 ? wanted : default_reservation_bytes();
  const std::size_t arena = place.nodes > 1 ? kLeastArenaBytesOfNodes : kLeastArenaBytes;
  const std::size_t least = 2 * (control_bytes + static_cast<std::size_t>(parts_of(place)) * arena);
  if (bytes < least) {
    throw_usage(std::string(environment::kReserveBytes) + " is at least " + std::to_string(least) + " for " +
                std::to_string(place.local_size) + " workers, got " + std::to_string(bytes));
  }
  return Segment::create(bytes / (2 * kAlign) * (2 * kAlign), std::max({least, wanted, Segment::kSmallestReservation}));
}

}  // namespace

LocalPool::LocalPool(const Settings& settings)
    : LocalPool(settings, NodePlace::alone(static_cast<int>(settings.devices.size()))) {}

LocalPool::LocalPool(const Settings& settings, const NodePlace& place, std::size_t segment_bytes)
    : settings_(settings), place_(place) {
  const int world_size = static_cast<int>(settings_.devices.size());
  const std::size_t control_bytes = round_up(ControlBlock::bytes(world_size));
  set_memory(reserve_segment(control_bytes, place_, segment_bytes), world_size);
  prepare_control(control_bytes);
  workers_.emplace(settings_, segment(), control());
}

void LocalPool::prepare_control(std::size_t control_bytes) {
  auto& header = control().header();
  header.magic = kMagic;
  header.world_size = static_cast<std::uint32_t>(world_size());
  header.place = place_;
  // One half is for the control block and the master's heap, the other half for the workers' arenas.
  header.heap_offset = control_bytes;
  header.heap_bytes = segment().bytes() / 2 - control_bytes;
  header.arenas_offset = segment().bytes() / 2;
  header.arena_bytes = segment().bytes() / 2 / static_cast<std::size_t>(parts_of(place_)) / kAlign * kAlign;
  header.seed = settings_.seed;
  header.spins = place_.local_size + 1 <= usable_cores();
  header.workers_spin = place_.local_size <= usable_cores();
  header.respawns = settings_.on_worker_lost == OnWorkerLost::respawn;
  const ImageAddress image = program_image();
  header.build_id_bytes = image.build_id_bytes;
  header.build_id = image.build_id;
  for (int rank = 0; rank < world_size(); ++rank) {
    initialise_life(control().worker(rank).life);
    control().worker(rank).device_kind = settings_.devices[static_cast<std::size_t>(rank)].kind;
  }
  for (const NodePlace& node : settings_.nodes) {
    for (int local_rank = 0; local_rank < node.local_size; ++local_rank)
      control().worker(node.rank(local_rank)).node = node.node;
  }
}

void LocalPool::start() {
  nursery_ = std::make_unique<Nursery>(*workers_, settings_.grace, supervisor_link());
  nursery_->spawn_all(settings_.start_timeout, kStartLimit);
}

void LocalPool::note_shared_memory(std::size_t used_bytes) {
  constexpr int kWhole = 1000;
  constexpr int kStep = 10;  // so that a large array is not announced again and again while it grows
  static const auto granted_bytes = static_cast<double>(granted_memory_bytes());
  const double part = static_cast<double>(used_bytes) / granted_bytes;
  const int thousandths = std::min(kWhole, kDiesEarlierBy + static_cast<int>(std::ceil(part * kWhole)));
  if (thousandths < workers_->dies_earlier_by() + kStep) return;
  workers_->set_dies_earlier_by(thousandths);
  if (nursery_) nursery_->set_oom_score(oom_score_after(thousandths));
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

ChildEnd LocalPool::await_end(int rank) { return await_child_end(*nursery_, place_.local_rank(rank)); }

std::optional<Error> LocalPool::watch_failure() const {
  if (!nursery_->has_lost_descriptors()) return std::nullopt;
  return nursery_->lost_descriptors();
}

bool LocalPool::is_debugged() const { return detail::is_debugged(*nursery_); }

int LocalPool::tracer(int rank) const { return tracer_of(pid(rank)); }

void LocalPool::take_stacks(std::vector<RankState>& states) { detail::take_stacks(states); }

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

}  // namespace syncrun::detail
