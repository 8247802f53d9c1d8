#pragma once

// How the master and the agents tell each other about the producers of a queue. The block of the queue has the same
// offset on each node. Each node writes its own.

#include <cstdint>
#include <string>
#include <vector>

#include "common/protocol/queue_block.hpp"
#include "master/nodes/messages.hpp"
#include "master/queues/producer_processes.hpp"

namespace syncrun::detail::master::nodes {

/// What an agent has to know to start the producers of a queue on its node.
struct QueueStart {
  std::uint64_t queue = 0;  // its number among the queues of the session
  std::uint64_t block = 0;  // offset of the block in the segment
  protocol::QueueLayout layout{};
  queues::ProducersStart producers;
};
void put_queue_start(MessageWriter& to, const QueueStart& start);
QueueStart get_queue_start(MessageReader& from);

/// How the producers of a queue have to end.
enum class QueueEnd : std::uint8_t {
  close,  ///< by themselves, within the grace period of the queue
  kill
};

/// How a producer has ended that was lost, or that did not end in order.
struct ProducerLoss {
  std::int32_t producer = -1;
  std::int32_t pid = -1;
  std::string cause;
  std::int32_t wait_status = 0;  // 0 if it is not known
  bool was_starting = false;     // its function had not begun
  std::vector<std::string> last_stderr;
  process::NativeStack crash{};  // see ChildEnd
};
void put_producer_loss(MessageWriter& to, const ProducerLoss& loss);
ProducerLoss get_producer_loss(MessageReader& from);

/// What an agent has told the master of a producer.
struct ToldOfProducer {
  protocol::ProducerState state = protocol::ProducerState::starting;
  std::int32_t pid = -1;
  std::uint64_t pushed = 0;
};
/// Adds what the producer has done since then, and notes it in `told`. Adds nothing if that is nothing.
void put_producer_news(MessageWriter& to, const protocol::QueueBlock& block, int producer, int pid,
                       ToldOfProducer& told);
/// Writes the news of one producer to the master's copy of the block. The caller rings. Returns the producer and its
/// pid. Throws Error (system).
struct ProducerPid {
  int producer;
  int pid;
};
ProducerPid take_producer_news(MessageReader& from, const protocol::QueueBlock& copy);

}  // namespace syncrun::detail::master::nodes
