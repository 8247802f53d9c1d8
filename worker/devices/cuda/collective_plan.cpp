#include "worker/devices/cuda/collective_plan.hpp"

#include <algorithm>
#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail::worker::devices::cuda {

std::uint64_t CollectivePlan::Standing::word() const noexcept {
  return part << 24U | std::min(count, kMostCounted) << 2U | static_cast<std::uint64_t>(state);
}

void CollectivePlan::enter_command() noexcept {
  const std::uint64_t command = attachment_.command_in_progress();
  if (command_ == command) return;
  command_ = command;
  is_after_vote_ = false;
  restart();
}

void CollectivePlan::restart() noexcept {
  hash_ = 0;
  count_ = 0;
}

void CollectivePlan::begin_after_vote() noexcept {
  enter_command();
  is_after_vote_ = true;
}

void CollectivePlan::add(std::initializer_list<std::uint64_t> collective) noexcept {
  enter_command();
  for (const std::uint64_t word : collective) {
    hash_ = (hash_ ^ (word + 1)) * 0x9e3779b97f4a7c15ULL;
    hash_ ^= hash_ >> 29U;
  }
  ++count_;
}

void CollectivePlan::publish(State state) noexcept {
  enter_command();
  protocol::WorkerSlot& slot = attachment_.slot();
  slot.plan_wait.store(0, std::memory_order_seq_cst);  // so that a hash is only read with its own standing
  slot.plan.store(hash_, std::memory_order_seq_cst);
  slot.plan_wait.store(Standing{own_part(), count_, state}.word(), std::memory_order_seq_cst);
}

void CollectivePlan::publish_waiting(Wait wait) noexcept {
  wait_ = wait;
  astray_since_ = {};
  publish(wait == Wait::midway ? State::waits_midway : State::waits_last);
}

void CollectivePlan::end_setting_up() const noexcept {
  attachment_.slot().plan_wait.store(0, std::memory_order_seq_cst);
}

/// Whether the peer and this rank, which is waiting, cannot be in the same collectives any more.
bool CollectivePlan::disagrees(const Standing& peer, std::uint64_t its_hash, Clock::time_point now,
                               Clock::duration grace) {
  const bool is_last = wait_ == Wait::last;
  if (peer.state != State::setting_up) {
    if (peer.count == count_) return its_hash != hash_;
    return peer.count < count_ ? peer.state == State::waits_last : is_last;
  }
  if (peer.count >= count_) return is_last;  // the peer sets up something that this rank has not reached
  // This rank has passed what the peer sets up. If it did so together with the peer, the peer will soon publish that it
  // is done. If not, the ranks differ.
  if (astray_since_ == Clock::time_point{}) astray_since_ = now;
  return now - astray_since_ >= grace;
}

void CollectivePlan::check_peers(Clock::time_point now) {
  if (count_ >= Standing::kMostCounted) return;
  for (int other = 0; other < attachment_.world_size; ++other) {
    const protocol::WorkerSlot& slot = attachment_.control.worker(other);
    const std::uint64_t word = slot.plan_wait.load(std::memory_order_acquire);
    const Standing peer = Standing::from(word);
    if (other == attachment_.rank || peer.part != own_part() || peer.state == State::unknown) continue;
    const std::uint64_t hash = slot.plan.load(std::memory_order_acquire);
    const Clock::duration grace = is_elsewhere(other) ? kSetUpGraceOfNodes : kSetUpGrace;
    if (slot.plan_wait.load(std::memory_order_acquire) != word || !disagrees(peer, hash, now, grace)) continue;
    const std::string own = "rank " + std::to_string(attachment_.rank);
    const std::string its = "rank " + std::to_string(other);
    text::throw_usage("ranks disagree in a collective: " + own + " and " + its +
                      " have called different ones, or in another order, or of other lengths (in this call, " + own +
                      " has called " + std::to_string(count_) + " so far, and " + its + " has called " +
                      std::to_string(peer.count) + ")");
  }
}

}  // namespace syncrun::detail::worker::devices::cuda
