#include "worker/comm/node_link.hpp"

namespace syncrun::detail::worker::comm {

void NodeLink::begin(LeaderLinks* links, const protocol::RankSet& ranks) {
  step_ = 0;
  links_ = links;
  if (links == nullptr) return;
  nodes_ = static_cast<std::size_t>(ranks.count());
  links->begin(ranks, attachment_.rank);
}

void NodeLink::await_taken(const process::WaitLimits& limits) {
  const std::uint64_t last = request().asked.load(std::memory_order_relaxed);
  meetings_.await([&] { return request().taken.load(std::memory_order_seq_cst) == last; }, limits);
}

/// The carrier has taken the request before.
void NodeLink::ask(std::uint64_t command, std::uint64_t step, protocol::NodeRequest::Kind kind) {
  protocol::NodeRequest& own = request();
  own.command = command;
  own.step = step;
  own.kind = kind;
  own.blocks = table_;
  own.asked.store(own.asked.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  attachment_.control.header().to_master.ring();
}

void NodeLink::begin_exchange(const protocol::Command& command, std::uint64_t table,
                              const process::WaitLimits& limits) {
  await_taken(limits);
  table_ = table;
  meetings_.note_exchange();
  if (links_ == nullptr) return ask(command.id, step_++, protocol::NodeRequest::Kind::exchange);
  watch_ = 0;
  const auto* const blocks = attachment_.segment.at<const protocol::NodeBlock>(table);
  links_->begin_exchange(command.id, step_++, {blocks, nodes_}, attachment_.segment.at(0));
}

/// With links of its own, the leader asks the carrier only in a long wait: the carrier watches the nodes that are missing, and
/// hears if one of them takes part no more.
void NodeLink::end_exchange(const process::WaitLimits& limits) {
  if (links_ == nullptr) {
    const std::uint64_t number = request().asked.load(std::memory_order_relaxed);
    meetings_.await([&] { return request().answered.load(std::memory_order_seq_cst) >= number; }, limits);
    return check_answer(limits);
  }
  links_->end_exchange(policy_, limits, *this);
  if (watch_ == 0) return;
  if (is_over()) check_answer(limits);
  request().withdrawn.store(watch_, std::memory_order_seq_cst);
  attachment_.control.header().to_master.ring();
}

void NodeLink::check_answer(const process::WaitLimits& limits) const {
  const std::int32_t left_rank_plus_one = request().left_rank_plus_one;
  if (left_rank_plus_one == 0) return;
  limits.interruption.check();  // it has left because it or another rank failed
  throw_has_left(left_rank_plus_one - 1, attachment_.rank);
}

/// Asks again when other nodes are missing than before: a carrier watches a limited number of them at a time.
void NodeLink::note_long_wait(const std::vector<bool>& is_missing) {
  const bool was_taken =
      request().taken.load(std::memory_order_seq_cst) == request().asked.load(std::memory_order_relaxed);
  if (!was_taken || (watch_ != 0 && is_missing == is_watched_)) return;
  is_watched_ = is_missing;
  auto* const table = attachment_.segment.at<protocol::NodeBlock>(table_);
  for (std::size_t node = 0; node < nodes_; ++node)
    table[node].to_bytes = is_missing[node] ? protocol::NodeRequest::kMissing : 0;
  ask(meetings_.command().id, step_ - 1, protocol::NodeRequest::Kind::watch);
  watch_ = request().asked.load(std::memory_order_relaxed);
}

bool NodeLink::is_over() const { return watch_ != 0 && request().answered.load(std::memory_order_seq_cst) >= watch_; }

}  // namespace syncrun::detail::worker::comm
