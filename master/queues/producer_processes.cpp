#include "master/queues/producer_processes.hpp"

#include "common/os/environment.hpp"

namespace syncrun::detail::master::queues {

/// A producer whose function has ended may die without a loss.
void ProducerWatcher::on_loss(int child) noexcept {
  const protocol::ProducerState state = block_.producer(child).state.load(std::memory_order_seq_cst);
  if (state == protocol::ProducerState::ended || state == protocol::ProducerState::failed) return;
  for (auto* first : {&lost_, state == protocol::ProducerState::starting ? &lost_at_start_ : &lost_}) {
    int none = -1;
    first->compare_exchange_strong(none, child, std::memory_order_seq_cst);
  }
  to_master_.wake();
}

helper_processes::HelperPlan plan_producers(const ProducersStart& start, int count, const os::Segment& segment) {
  helper_processes::HelperPlan plan;
  plan.count = count;
  plan.spec = protocol::write_spec(start.spec, start.arguments);
  plan.environment = start.environment;
  plan.variables = {{environment::kSegmentFd, std::to_string(segment.fd())},
                    {environment::kSegmentBytes, std::to_string(segment.bytes())}};
  plan.inherited = {segment.fd()};
  return plan;
}

LocalProducers::LocalProducers(const ProducersStart& start, const std::string& node, protocol::QueueBlock block,
                               const os::Segment& segment, os::Doorbell& to_master)
    : watcher_(plan_producers(start, block.header().producers, segment), start.name, node, block, to_master),
      nursery_(watcher_, start.grace, protocol::supervisor_link()) {
  nursery_.spawn_all(start.start_timeout, kProducerStartLimit);
}

}  // namespace syncrun::detail::master::queues
