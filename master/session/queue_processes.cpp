#include "master/session/queue_processes.hpp"

#include <utility>

#include "common/protocol/supervisor_link.hpp"

namespace syncrun::detail::master::session {

namespace {

// How long killed producers may take to end, because the kernel first frees their memory.
constexpr os::Milliseconds kReapLimit = std::chrono::seconds(5);

}  // namespace

void QueueProcesses::start(const queues::ProducersStart& start, const protocol::QueueLayout& layout,
                           const protocol::QueueBlock& block, const std::string& node) {
  remote_ = are_on_every_node() ? other_queues_->open({.block = start.spec.queue, .layout = layout, .producers = start})
                                : std::make_shared<nodes::RemoteQueue>(0, layout, 0);
  watcher_.emplace(queues::plan_producers(start, block.header().producers, pool_.segment()), start.name, node, block,
                   pool_.control().header().to_master);
  nursery_ = std::make_unique<process::Nursery>(*watcher_, start.grace, protocol::supervisor_link());
  nursery_->spawn_all(start.start_timeout, queues::kProducerStartLimit);
}

bool QueueProcesses::await_remote(os::Milliseconds limit) noexcept {
  const auto have_ended = [this] { return remote_->have_ended(); };
  const auto is_lost = [this] { return is_node_lost(); };
  os::Patience patience(limit);
  return wait(patience, have_ended, is_lost) == os::Woken::ready && !remote_->is_left();
}

void QueueProcesses::end() noexcept {
  if (!are_here()) {  // only the process that created them has these threads
    static_cast<void>(nursery_.release());
    return;
  }
  const os::MutexLock lock(end_mutex_);
  const bool has_remote = are_on_every_node() && remote_ && !std::exchange(is_remote_over_, true);
  if (has_remote && !remote_->have_ended()) other_queues_->end(*remote_, nodes::QueueEnd::kill);
  if (nursery_) {
    nursery_->expect_ends();
    nursery_->kill_all();
    if (!nursery_->await_all_ends(kReapLimit)) may_write_ = true;
    nursery_.reset();
  }
  if (!has_remote) return;
  if (!await_remote(kRemoteEndLimit)) may_write_ = true;
  other_queues_->forget(*remote_);
}

}  // namespace syncrun::detail::master::session
