#include "master/nodes/remote_queues.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "master/queues/queue_layout.hpp"

namespace syncrun::detail::master::nodes {

// ---- one queue ------------------------------------------------------------------------------------------------

RemoteQueue::RemoteQueue(std::uint64_t number, const protocol::QueueLayout& layout, std::size_t nodes)
    : number_(number),
      batches_(static_cast<std::size_t>(layout.capacity)),
      by_node_(nodes),
      running_(static_cast<int>(nodes)),
      processes_(nodes, {std::vector<int>(static_cast<std::size_t>(layout.producers), -1), false}) {
  freed_.reserve(batches_);
  for (Node& node : by_node_) {
    node.memory.resize(queues::block_bytes_of(layout));
    const auto address = reinterpret_cast<std::uintptr_t>(node.memory.data());
    node.block = queues::prepare_block(node.memory.data() + (queues::block_offset_in(address) - address), layout);
  }
}

std::vector<protocol::QueueBlock> RemoteQueue::blocks() const {
  std::vector<protocol::QueueBlock> blocks;
  for (const Node& node : by_node_) blocks.push_back(node.block);
  return blocks;
}

/// There is room for each batch: it is free again only after the other nodes were told of it.
void RemoteQueue::add(int batch) noexcept {
  const os::MutexLock lock(mutex_);
  if (freed_.size() < batches_) freed_.push_back(batch);
  has_freed_.store(true, std::memory_order_release);
}

std::vector<std::int32_t> RemoteQueue::take_freed() {
  std::vector<std::int32_t> freed;
  freed.reserve(batches_);
  const os::MutexLock lock(mutex_);
  has_freed_.store(false, std::memory_order_relaxed);
  freed.swap(freed_);
  return freed;
}

std::optional<RemoteQueue::Starting> RemoteQueue::first_starting() const noexcept {
  for (std::size_t node = 0; node < by_node_.size(); ++node) {
    const protocol::QueueBlock& block = by_node_[node].block;
    for (int producer = 0; producer < block.header().producers; ++producer) {
      if (block.producer(producer).state.load(std::memory_order_seq_cst) == protocol::ProducerState::starting)
        return Starting{static_cast<int>(node) + 1, producer};
    }
  }
  return std::nullopt;
}

std::optional<RemoteQueue::Loss> RemoteQueue::first_loss() const {
  const os::MutexLock lock(mutex_);
  return loss_;
}

std::optional<RemoteQueue::Loss> RemoteQueue::first_bad_end() const {
  const os::MutexLock lock(mutex_);
  return bad_end_;
}

std::optional<RemoteQueue::FailedStart> RemoteQueue::failed_start() const {
  const os::MutexLock lock(mutex_);
  return failed_start_;
}

int RemoteQueue::pid(int node, int producer) const {
  const os::MutexLock lock(mutex_);
  return processes_[index_of(node)].pids[static_cast<std::size_t>(producer)];
}

int RemoteQueue::first_running() const {
  const os::MutexLock lock(mutex_);
  for (std::size_t node = 0; node < processes_.size(); ++node) {
    if (!processes_[node].have_ended) return static_cast<int>(node) + 1;
  }
  return -1;
}

bool RemoteQueue::is_left() const {
  const os::MutexLock lock(mutex_);
  return is_left_ || running_.load() != 0;
}

void RemoteQueue::note_end(int node, bool is_left) {
  const os::MutexLock lock(mutex_);
  is_left_ = is_left_ || is_left;
  if (std::exchange(processes_[index_of(node)].have_ended, true)) return;
  running_.fetch_sub(1, std::memory_order_seq_cst);
}

void RemoteQueue::take(int node, MessageReader& message) {
  switch (message.kind()) {
    case MessageKind::queue_news:
      while (!message.is_at_end()) {
        const ProducerPid news = take_producer_news(message, by_node_[index_of(node)].block);
        const os::MutexLock lock(mutex_);
        processes_[index_of(node)].pids[static_cast<std::size_t>(news.producer)] = news.pid;
      }
      break;
    case MessageKind::queue_failed: {
      const auto kind = message.get<ErrorKind>();
      const auto native_code = message.get<std::int32_t>();
      Error error(kind, message.get_text(), native_code);
      const os::MutexLock lock(mutex_);
      if (!failed_start_) failed_start_ = FailedStart{node, std::move(error)};
      trouble_.store(Trouble::start, std::memory_order_seq_cst);
      break;
    }
    case MessageKind::producer_lost: {
      ProducerLoss loss = get_producer_loss(message);
      const os::MutexLock lock(mutex_);
      if (loss_) break;
      loss_ = Loss{node, std::move(loss)};
      if (!has_trouble()) trouble_.store(loss_->producer.was_starting ? Trouble::start : Trouble::later);
      break;
    }
    case MessageKind::queue_ended: {
      const bool is_left = message.get<bool>();
      ProducerLoss bad_end = get_producer_loss(message);
      if (bad_end.producer >= 0) {
        const os::MutexLock lock(mutex_);
        if (!bad_end_) bad_end_ = Loss{node, std::move(bad_end)};
      }
      note_end(node, is_left);
      break;
    }
    default: throw Error(ErrorKind::system, "an unexpected message about a queue");
  }
}

// ---- all queues -----------------------------------------------------------------------------------------------

std::shared_ptr<RemoteQueue> RemoteQueues::open(QueueStart start) {
  std::shared_ptr<RemoteQueue> queue;
  {
    const os::MutexLock lock(mutex_);
    start.queue = ++last_;
    queue = std::make_shared<RemoteQueue>(start.queue, start.layout, names_.size() - 1);
    queues_[start.queue] = queue;
    has_queues_.store(true, std::memory_order_release);
  }
  MessageWriter rest;
  put_queue_start(rest, start);
  remote_nodes_.tell_after_changes(MessageKind::open_queue, rest.take());
  return queue;
}

void RemoteQueues::end(const RemoteQueue& queue, QueueEnd how) noexcept {
  try {
    send_to_all_(MessageWriter(MessageKind::close_queue, queue.number(), how));
  } catch (const std::exception&) {
    // The transport has failed. Then the agents notice that nothing comes from this node any more.
  }
}

void RemoteQueues::forget(const RemoteQueue& queue) noexcept {
  const os::MutexLock lock(mutex_);
  queues_.erase(queue.number());
  if (queues_.empty()) has_queues_.store(false, std::memory_order_release);
}

std::shared_ptr<RemoteQueue> RemoteQueues::find(std::uint64_t number) {
  const os::MutexLock lock(mutex_);
  const auto found = queues_.find(number);
  return found == queues_.end() ? nullptr : found->second;
}

/// Messages about a queue may come after the program has dropped it.
void RemoteQueues::take(int node, MessageReader& message) {
  const auto queue = find(message.get<std::uint64_t>());
  if (!queue) return;
  queue->take(node, message);
  to_master_.ring();
}

bool RemoteQueues::look() {
  if (!has_queues_.load(std::memory_order_acquire)) return false;
  std::vector<std::shared_ptr<RemoteQueue>> queues;
  {
    const os::MutexLock lock(mutex_);
    for (const auto& [number, queue] : queues_) {
      if (queue->has_freed_.load(std::memory_order_acquire)) queues.push_back(queue);
    }
  }
  for (const auto& queue : queues) {
    MessageWriter message(MessageKind::free_batches, queue->number());
    message.put_list(std::span<const std::int32_t>(queue->take_freed()));
    send_to_all_(message);
  }
  return !queues.empty();
}

void RemoteQueues::lose(int node) noexcept {
  const os::MutexLock lock(mutex_);
  for (const auto& [number, queue] : queues_) {
    queue->note_end(node, true);
    queue->is_node_lost_.store(true, std::memory_order_seq_cst);
  }
  to_master_.ring();
}

}  // namespace syncrun::detail::master::nodes
