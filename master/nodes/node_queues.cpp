#include "master/nodes/node_queues.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/os/memory_limit.hpp"
#include "master/nodes/command_message.hpp"
#include "master/queues/queue_layout.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// A lost producer that has not ended after this time has called exec, perhaps. ProducerProcesses::await_end finds out.
constexpr os::Milliseconds kSlowProducerEnd{20};
/// How long killed producers may take to end, because the kernel first frees their memory.
constexpr os::Milliseconds kKilledLimit{5000};

}  // namespace

NodeQueues::Queue* NodeQueues::find(std::uint64_t number) noexcept {
  const auto found = std::ranges::find_if(queues_, [number](const auto& queue) { return queue->number == number; });
  return found == queues_.end() ? nullptr : found->get();
}

void NodeQueues::take(MessageReader& message, os::SharedHeap::Pages pages) {
  switch (message.kind()) {
    case MessageKind::open_queue: return open(message, pages);
    case MessageKind::free_batches: return free_batches(message);
    case MessageKind::close_queue: return close(message);
    default: throw Error(ErrorKind::system, "an unexpected message about a queue");
  }
}

/// The changes of the heap come first: the memory of the queue may have been part of something that the master has freed.
void NodeQueues::open(MessageReader& message, os::SharedHeap::Pages pages) {
  apply_heap_changes(message, segment_, pages);
  const QueueStart queue = get_queue_start(message);
  try {
    start(queue);
  } catch (const Error& error) {
    MessageWriter answer(MessageKind::queue_failed, queue.queue, error.kind(), std::int32_t{error.native_code()});
    answer.put_text(error.what());
    sender_.send(kMasterNode, answer.take());
  }
}

void NodeQueues::start(const QueueStart& start) {
  const protocol::QueueLayout& layout = start.layout;
  const std::size_t block_bytes = protocol::QueueBlock::bytes(layout.producers, layout.capacity);
  if (start.block + block_bytes > segment_.bytes() || layout.memory + layout.memory_bytes() > segment_.bytes())
    throw Error(ErrorKind::system, "a queue came for a place outside the shared memory");
  os::check_memory_available(layout.memory_bytes() + block_bytes,
                             "the queue of '" + start.producers.name + "' on this node");
  segment_.reserve(start.block, block_bytes, "a queue");
  segment_.reserve(layout.memory, layout.memory_bytes(), "a queue");
  auto queue = std::make_unique<Queue>();
  queue->number = start.queue;
  queue->block = queues::prepare_block(segment_.at(start.block), layout);
  queue->grace = start.producers.grace;
  queue->told.resize(static_cast<std::size_t>(layout.producers));
  queue->producers = starter_(start, queue->block);
  queues_.push_back(std::move(queue));
}

void NodeQueues::free_batches(MessageReader& message) {
  Queue* const queue = find(message.get<std::uint64_t>());
  if (queue == nullptr) return;  // its start has failed, and the master does not know it yet
  const protocol::QueueHeader& header = queue->block.header();
  for (const auto batch : message.get_list<std::int32_t>()) {
    if (batch < 0 || batch >= header.capacity)
      throw Error(ErrorKind::system, "batch " + std::to_string(batch) + " of a queue is free that does not exist");
    queue->block.note_freed(batch);
  }
  queue->block.header().to_producers.ring();
}

void NodeQueues::close(MessageReader& message) {
  const auto number = message.get<std::uint64_t>();
  const auto end = message.get<QueueEnd>();
  Queue* const queue = find(number);
  if (queue == nullptr) return tell_end(number, {}, false);  // its start has failed, or it is gone already
  if (queue->end && *queue->end >= end) return;
  queue->end = end;
  queue->producers->expect_ends();
  if (end == QueueEnd::close) {
    queue->block.header().closes.store(true, std::memory_order_seq_cst);
    queue->block.header().to_producers.wake();
    queue->until_end = queue->grace.count() == 0 ? os::Patience::none() : os::Patience(queue->grace);
  } else {
    queue->producers->kill_all();
    queue->until_end = os::Patience(kKilledLimit);
  }
}

// ---- reports --------------------------------------------------------------------------------------------------

bool NodeQueues::report() {
  bool has_reported = false;
  for (std::size_t i = 0; i < queues_.size();) {
    Queue& queue = *queues_[i];
    has_reported = report_news(queue) || has_reported;
    has_reported = report_loss(queue) || has_reported;
    if (report_end(queue)) {
      has_reported = true;
      queues_.erase(queues_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return has_reported;
}

bool NodeQueues::report_news(Queue& queue) {
  if (!has_news(queue)) return false;
  MessageWriter message(MessageKind::queue_news, queue.number);
  const int producers = queue.block.header().producers;
  for (int producer = 0; producer < producers; ++producer) {
    ToldOfProducer& told = queue.told[static_cast<std::size_t>(producer)];
    put_producer_news(message, queue.block, producer, queue.producers->pid(producer), told);
  }
  watch_when_started(queue);
  sender_.send(kMasterNode, message.take());
  return true;
}

void NodeQueues::watch_when_started(Queue& queue) {
  const bool have_started = std::ranges::all_of(
      queue.told, [](const ToldOfProducer& producer) { return producer.state != protocol::ProducerState::starting; });
  if (have_started && !std::exchange(queue.is_watched, true)) queue.producers->watch();
}

ProducerLoss NodeQueues::describe_end(Queue& queue, int producer, process::ChildEnd end) {
  return {.producer = producer,
          .pid = queue.producers->pid(producer),
          .cause = std::move(end.cause),
          .wait_status = end.wait_status.value_or(0),
          .was_starting = queue.told[static_cast<std::size_t>(producer)].state == protocol::ProducerState::starting,
          .last_stderr = queue.producers->last_stderr(producer),
          .crash = std::move(end.crash)};
}

/// What the producer had pushed comes before its loss.
bool NodeQueues::report_loss(Queue& queue) {
  const int producer = queue.producers->lost();
  if (producer < 0 || queue.has_told_loss) return false;
  if (!queue.lost_at) queue.lost_at = os::Clock::now();
  if (!queue.producers->end_status(producer) && os::Clock::now() - *queue.lost_at < kSlowProducerEnd) return false;
  queue.has_told_loss = true;
  MessageWriter message(MessageKind::producer_lost, queue.number);
  put_producer_loss(message, describe_end(queue, producer, queue.producers->await_end(producer)));
  sender_.send(kMasterNode, message.take());
  return true;
}

/// True once the queue is gone on this node.
bool NodeQueues::report_end(Queue& queue) {
  if (!queue.end) return false;
  const bool is_late = queue.until_end.is_over();
  bool is_left = false;
  for (int producer = 0; producer < queue.block.header().producers; ++producer) {
    const auto status = queue.producers->end_status(producer);
    is_left = is_left || !status;
    if (queue.bad_end || *queue.end == QueueEnd::kill) continue;
    if (!status && is_late)
      queue.bad_end = describe_end(queue, producer, {std::nullopt, process::killed_after(queue.grace)});
    else if (status && !process::ChildEnd{status, {}}.is_good())
      queue.bad_end = describe_end(queue, producer, queue.producers->await_end(producer));
  }
  if (is_left && is_late && *queue.end == QueueEnd::close) {
    queue.end = QueueEnd::kill;
    queue.until_end = os::Patience(kKilledLimit);
    queue.producers->kill_all();
    return false;
  }
  if (is_left && !is_late) return false;
  const std::uint64_t number = queue.number;
  const ProducerLoss bad_end = queue.bad_end.value_or(ProducerLoss{});
  queue.producers.reset();
  tell_end(number, bad_end, is_left);
  return true;
}

void NodeQueues::tell_end(std::uint64_t number, const ProducerLoss& bad_end, bool is_left) {
  MessageWriter message(MessageKind::queue_ended, number, is_left);
  put_producer_loss(message, bad_end);
  sender_.send(kMasterNode, message.take());
}

bool NodeQueues::has_news(const Queue& queue) noexcept {
  for (int producer = 0; producer < queue.block.header().producers; ++producer) {
    const protocol::ProducerSlot& slot = queue.block.producer(producer);
    const ToldOfProducer& told = queue.told[static_cast<std::size_t>(producer)];
    if (slot.pushed.load(std::memory_order_seq_cst) != told.pushed) return true;
    if (slot.state.load(std::memory_order_seq_cst) != told.state) return true;
    if (queue.producers->pid(producer) != told.pid) return true;
  }
  return false;
}

bool NodeQueues::has_news() const noexcept {
  return std::ranges::any_of(queues_, [](const auto& queue) {
    return (queue->producers->lost() >= 0 && !queue->has_told_loss) || has_news(*queue);
  });
}

void NodeQueues::end() noexcept {
  for (const auto& queue : queues_) {
    queue->producers->expect_ends();
    queue->producers->kill_all();
  }
  queues_.clear();
}

}  // namespace syncrun::detail::master::nodes
