#include "worker/comm/node_link.hpp"

namespace syncrun::detail::worker::comm {

void NodeLink::await_taken(const process::WaitLimits& limits) {
  const std::uint64_t last = request().asked.load(std::memory_order_relaxed);
  meetings_.await([&] { return request().taken.load(std::memory_order_seq_cst) == last; }, limits);
}

void NodeLink::begin_exchange(const protocol::Command& command, std::uint64_t table,
                              const process::WaitLimits& limits) {
  await_taken(limits);
  protocol::NodeRequest& own = request();
  own.command = command.id;
  own.step = step_++;
  own.blocks = table;
  own.asked.store(own.asked.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  attachment_.control.header().to_master.ring();
}

void NodeLink::end_exchange(const process::WaitLimits& limits) {
  const protocol::NodeRequest& own = request();
  const std::uint64_t number = own.asked.load(std::memory_order_relaxed);
  meetings_.await([&] { return own.answered.load(std::memory_order_seq_cst) >= number; }, limits);
  if (own.left_rank_plus_one == 0) return;
  limits.interruption.check();  // it has left because it or another rank failed
  throw_has_left(own.left_rank_plus_one - 1, attachment_.rank);
}

}  // namespace syncrun::detail::worker::comm
