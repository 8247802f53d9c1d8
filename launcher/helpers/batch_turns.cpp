#include "launcher/helpers/batch_turns.hpp"

namespace syncrun::detail {

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
    const auto index = static_cast<std::size_t>(producer);
    if (is_over_[index]) continue;
    const ProducerSlot& slot = block_.producer(producer);
    const ProducerState state = slot.state.load(std::memory_order_seq_cst);  // before `pushed`
    if (slot.pushed.load(std::memory_order_seq_cst) > taken_[index]) {
      turn_ = producer;
      return Found::batch;
    }
    if (state == ProducerState::failed) {
      turn_ = producer;
      return Found::failure;
    }
    if (state == ProducerState::ended) {
      is_over_[index] = true;
      continue;
    }
    all_over = false;
    if (order_ == BatchOrder::arrival) continue;
    turn_ = producer;
    return Found::none;
  }
  return all_over ? Found::end : Found::none;
}

int BatchTurns::next_batch() const noexcept {
  const auto taken = taken_[static_cast<std::size_t>(turn_)];
  const auto place = static_cast<int>(taken % static_cast<std::uint64_t>(block_.batches_of(turn_)));
  return static_cast<int>(block_.batch(block_.first_batch(turn_) + place).pushed);
}

void BatchTurns::take_next_batch() noexcept {
  const auto index = static_cast<std::size_t>(turn_);
  held_[index].fetch_add(1);
  ++taken_[index];
  turn_ = (turn_ + 1) % producers_;
}

void BatchTurns::give_back(int batch) noexcept {
  held_[static_cast<std::size_t>(block_.producer_of(batch))].fetch_sub(1);
  block_.batch(batch).is_free.store(true, std::memory_order_seq_cst);
  block_.header().to_producers.ring();
}

bool BatchTurns::is_stuck(int producer) const noexcept {
  const int held = held_[static_cast<std::size_t>(producer)].load();
  return held == block_.batches_of(producer) && block_.producer(producer).waits.load();
}

bool BatchTurns::is_stuck() const noexcept {
  if (order_ == BatchOrder::round_robin) return is_stuck(turn_);
  for (int producer = 0; producer < producers_; ++producer) {
    if (!is_over_[static_cast<std::size_t>(producer)] && !is_stuck(producer)) return false;
  }
  return true;
}

}  // namespace syncrun::detail
