#include "master/queues/batch_turns.hpp"

#include <algorithm>

namespace syncrun::detail::master::queues {

BatchTurns::BatchTurns(int producers, BatchOrder order)
    : producers_(producers),
      order_(order),
      taken_(static_cast<std::size_t>(producers)),
      is_over_(static_cast<std::size_t>(producers)),
      held_(static_cast<std::size_t>(producers)) {}

BatchTurns::Found BatchTurns::look() noexcept {
  bool all_over = true;
  for (int step = 0; step < producers_; ++step) {
    const int producer = (turn_ + step) % producers_;
    if (is_over_[static_cast<std::size_t>(producer)]) continue;
    const Found found = look_at(producer);
    if (found == Found::end) {
      is_over_[static_cast<std::size_t>(producer)] = true;
      continue;
    }
    all_over = false;
    if (found == Found::none && order_ == BatchOrder::arrival) continue;
    turn_ = producer;
    return found;
  }
  return all_over ? Found::end : Found::none;
}

/// What comes next of one producer. Its process on another node may be ahead of that on this node, or behind it.
BatchTurns::Found BatchTurns::look_at(int producer) noexcept {
  std::size_t have_pushed = 0;
  std::size_t have_ended = 0;
  int late = -1;             // the first node that has neither pushed the batch nor ended
  Difference first{-1, -1};  // a node that has pushed the batch, and one that has ended
  for (std::size_t node = 0; node < blocks_.size(); ++node) {
    const protocol::ProducerSlot& slot = blocks_[node].producer(producer);
    const protocol::ProducerState state = slot.state.load(std::memory_order_seq_cst);  // before `pushed`
    if (slot.pushed.load(std::memory_order_seq_cst) > taken(producer)) {
      if (have_pushed++ == 0) first.first = static_cast<int>(node);
      continue;
    }
    if (state == protocol::ProducerState::failed) {
      node_ = static_cast<int>(node);
      return Found::failure;
    }
    if (state != protocol::ProducerState::ended) {
      if (late < 0) late = static_cast<int>(node);
    } else if (have_ended++ == 0) {
      first.second = static_cast<int>(node);
    }
  }
  if (have_pushed == blocks_.size()) return blocks_.size() == 1 ? Found::batch : compare_batches(producer);
  if (have_ended == blocks_.size()) return Found::end;
  if (have_pushed != 0 && have_ended != 0) {
    difference_ = first;
    return Found::difference;
  }
  node_ = late;
  return Found::none;
}

BatchTurns::Found BatchTurns::compare_batches(int producer) noexcept {
  const std::uint64_t next = taken(producer);
  const int batch = own().pushed_as(producer, next);
  const protocol::QueueHeader& header = own().header();
  for (std::size_t node = 1; node < blocks_.size(); ++node) {
    const protocol::BatchSlot& expected = own().batch(batch);
    const protocol::BatchSlot& found = blocks_[node].batch(batch);
    const bool is_same =
        blocks_[node].pushed_as(producer, next) == batch && expected.has_rows_here_only == found.has_rows_here_only &&
        std::equal(expected.rows.begin(), expected.rows.begin() + header.arrays_count, found.rows.begin());
    if (is_same) continue;
    difference_ = {0, static_cast<int>(node)};
    return Found::difference;
  }
  return Found::batch;
}

int BatchTurns::next_batch() const noexcept { return own().pushed_as(turn_, taken(turn_)); }

std::string BatchTurns::describe_next(int node) const {
  const protocol::QueueBlock& block = blocks_[static_cast<std::size_t>(node)];
  const std::uint64_t next = taken(turn_);
  if (block.producer(turn_).pushed.load() <= next) return "returned after " + std::to_string(next) + " batches";
  const int batch = block.pushed_as(turn_, next);
  std::string text = "pushed ";
  for (std::uint32_t i = 0; i < block.header().arrays_count; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(block.batch(batch).rows[i]);
  text += " rows as its batch " + std::to_string(next) + " in place " + std::to_string(batch);
  return block.batch(batch).has_rows_here_only ? text + " with push_here" : text;
}

void BatchTurns::take_next_batch() noexcept {
  const auto index = static_cast<std::size_t>(turn_);
  held_[index].fetch_add(1);
  ++taken_[index];
  turn_ = (turn_ + 1) % producers_;
}

void BatchTurns::give_back(int batch) noexcept {
  held_[static_cast<std::size_t>(own().producer_of(batch))].fetch_sub(1);
  {
    const os::MutexLock lock(freeing_);
    own().note_freed(batch);
    if (freed_ != nullptr) freed_->add(batch);
  }
  own().header().to_producers.ring();
}

bool BatchTurns::is_stuck(int producer) const noexcept {
  const int held = held_[static_cast<std::size_t>(producer)].load();
  return held == own().batches_of(producer) && own().producer(producer).waits.load();
}

bool BatchTurns::is_stuck() const noexcept {
  if (order_ == BatchOrder::round_robin) return is_stuck(turn_);
  for (int producer = 0; producer < producers_; ++producer) {
    if (!is_over_[static_cast<std::size_t>(producer)] && !is_stuck(producer)) return false;
  }
  return true;
}

}  // namespace syncrun::detail::master::queues
