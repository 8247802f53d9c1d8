#include "master/nodes/queue_messages.hpp"

#include <span>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

namespace {

auto fields_of_queue(auto& start) {
  auto& producers = start.producers;
  return std::tie(start.queue, start.block, start.layout, producers.name, producers.spec, producers.arguments,
                  producers.environment, producers.grace, producers.start_timeout);
}

auto fields_of_loss(auto& loss) {
  return std::tie(loss.producer, loss.pid, loss.cause, loss.wait_status, loss.was_starting, loss.last_stderr,
                  loss.crash.lines, loss.crash.problem);
}

}  // namespace

void put_queue_start(MessageWriter& to, const QueueStart& start) { to.put_fields(fields_of_queue(start)); }

QueueStart get_queue_start(MessageReader& from) {
  QueueStart start;
  from.get_fields(fields_of_queue(start));
  return start;
}

void put_producer_loss(MessageWriter& to, const ProducerLoss& loss) { to.put_fields(fields_of_loss(loss)); }

ProducerLoss get_producer_loss(MessageReader& from) {
  ProducerLoss loss;
  from.get_fields(fields_of_loss(loss));
  return loss;
}

void put_producer_news(MessageWriter& to, const protocol::QueueBlock& block, int producer, int pid,
                       ToldOfProducer& told) {
  const protocol::ProducerSlot& slot = block.producer(producer);
  const protocol::ProducerState state = slot.state.load(std::memory_order_seq_cst);  // before `pushed`
  const std::uint64_t pushed = slot.pushed.load(std::memory_order_seq_cst);
  if (state == told.state && pushed == told.pushed && pid == told.pid) return;
  to.put(std::int32_t{producer}, std::int32_t{pid}, pushed - told.pushed);
  for (; told.pushed < pushed; ++told.pushed) {
    const int batch = block.pushed_as(producer, told.pushed);
    to.put(std::int32_t{batch}, block.batch(batch).has_rows_here_only);
    to.put_all(std::span<const std::int64_t>(block.batch(batch).rows).first(block.header().arrays_count));
  }
  to.put(state);
  if (state == protocol::ProducerState::failed) {
    to.put(slot.error_kind, slot.native_code, slot.message);
  }
  told.state = state;
  told.pid = pid;
}

ProducerPid take_producer_news(MessageReader& from, const protocol::QueueBlock& copy) {
  const protocol::QueueHeader& header = copy.header();
  const ProducerPid whose{from.get<std::int32_t>(), from.get<std::int32_t>()};
  if (whose.producer < 0 || whose.producer >= header.producers)
    throw Error(ErrorKind::system, "news came of producer " + std::to_string(whose.producer));
  for (auto left = from.get<std::uint64_t>(); left != 0; --left) {
    const auto batch = from.get<std::int32_t>();
    if (batch < 0 || batch >= header.capacity || copy.producer_of(batch) != whose.producer)
      throw Error(ErrorKind::system, "news came of batch " + std::to_string(batch));
    copy.batch(batch).has_rows_here_only = from.get<bool>();
    from.get_all(std::span<std::int64_t>(copy.batch(batch).rows).first(header.arrays_count));
    copy.note_pushed(whose.producer, batch);
  }
  protocol::ProducerSlot& slot = copy.producer(whose.producer);
  const auto state = from.get<protocol::ProducerState>();
  if (state == protocol::ProducerState::failed) {
    from.get_to(slot.error_kind, slot.native_code, slot.message);
  }
  slot.state.store(state, std::memory_order_seq_cst);
  return whose;
}

}  // namespace syncrun::detail::master::nodes
