// The process of a producer: its part of the queue, and how it reports the end of its function.

#include "syncrun/producer.hpp"

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/queue_block.hpp"
#include "common/protocol/row_shares.hpp"
#include "common/text/errors.hpp"
#include "worker/helper_processes/helper.hpp"
#include "worker/process/failure.hpp"
#include "worker/process/parent_link.hpp"
#include "worker/process/parentage.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail {

class ProducerCore {
 public:
  ProducerCore(const os::Segment& segment, const protocol::HelperSpec& spec, int index)
      : segment_(segment),
        block_(segment.at(spec.queue)),
        session_(*segment.at<protocol::ControlHeader>(0)),
        to_master_(segment.at<protocol::ControlHeader>(0)->to_master),
        has_rows_here_only_(spec.is_on_every_node && session_.place.has_others()),
        index_(index),
        count_(block_.batches_of(index)) {
    dropped_.reserve(static_cast<std::size_t>(count_));
    std::seed_seq seed{static_cast<std::uint32_t>(spec.seed), static_cast<std::uint32_t>(spec.seed >> 32U),
                       static_cast<std::uint32_t>(index), std::uint32_t{0x70726f64}};  // differs from a rank's seed
    rng_.seed(seed);
  }

  protocol::ProducerSlot& slot() const noexcept { return block_.producer(index_); }
  int index() const noexcept { return index_; }
  int count() const noexcept { return block_.header().producers; }
  int node() const noexcept { return session_.place.node; }
  std::mt19937_64& rng() noexcept { return rng_; }

  void set_state(protocol::ProducerState state) const noexcept {
    slot().state.store(state, std::memory_order_seq_cst);
    to_master_.ring();
  }
  RawDraft next();
  void push(int batch, std::span<const std::int64_t> rows, FilledRows filled);
  Slice rows_here(std::int64_t rows) const;
  void drop(int batch) noexcept {
    dropped_.push_back(batch);
    --drafts_;
  }

 private:
  std::optional<int> take_free() noexcept;
  void check_rows(std::span<const std::int64_t> rows) const;

  const os::Segment& segment_;
  protocol::QueueBlock block_;
  const protocol::ControlHeader& session_;
  os::Doorbell& to_master_;
  bool has_rows_here_only_;  // rows_here() are not all rows
  int index_;
  int count_;
  int drafts_ = 0;                                      // number of drafts that the function holds
  std::uint64_t taken_ = 0;                             // number of batches taken from those that were freed
  std::vector<int> dropped_;                            // batches that were not pushed, for the next drafts
  os::WaitPolicy policy_ = os::WaitPolicy::yielding();  // does not spin: processes that compute need the cores more
  std::mt19937_64 rng_;
};

/// The order depends on what the function does and on the order of `freed`, and not on when a batch became free.
std::optional<int> ProducerCore::take_free() noexcept {
  if (!dropped_.empty()) {
    const int batch = dropped_.back();
    dropped_.pop_back();
    return batch;
  }
  if (taken_ == slot().freed.load(std::memory_order_seq_cst)) return std::nullopt;
  return block_.freed_as(index_, taken_++);
}

RawDraft ProducerCore::next() {
  if (drafts_ == count_) {
    text::throw_usage("the producer's function holds all of the " + std::to_string(count_) +
                      " batches it can have, and requires one more: push or drop one first");
  }
  auto& header = block_.header();
  std::optional<int> batch;
  const auto is_free = [&] { return batch || (batch = take_free()); };
  const auto closes = [&] { return header.closes.load(std::memory_order_seq_cst); };
  if (closes()) return {};
  os::Patience endless{os::Milliseconds(0)};  // the consumer may take any time. If it dies, this process ends too
  slot().waits.store(true, std::memory_order_relaxed);
  const os::Woken woken = os::wait_until(header.to_producers, policy_, endless, is_free, closes);
  slot().waits.store(false, std::memory_order_relaxed);
  if (woken != os::Woken::ready) return {};
  ++drafts_;
  RawDraft draft;
  draft.batch = *batch;
  for (std::size_t i = 0; i < header.arrays_count; ++i) {
    draft.arrays[i] = {segment_.at(block_.memory_of(*batch, i)), header.arrays[i].extents};
  }
  return draft;
}

void ProducerCore::check_rows(std::span<const std::int64_t> rows) const {
  const auto& header = block_.header();
  for (std::size_t i = 0; !rows.empty() && i < header.arrays_count; ++i) {
    const std::int64_t wanted = rows.size() == 1 ? rows[0] : rows[i];
    if (wanted >= 0 && wanted <= header.arrays[i].extents[0]) continue;
    text::throw_usage("push: array " + std::to_string(i) + " of a batch has 0 to " +
                      std::to_string(header.arrays[i].extents[0]) + " rows, got " + std::to_string(wanted));
  }
}

Slice ProducerCore::rows_here(std::int64_t rows) const {
  if (rows < 0) text::throw_usage("rows_here requires a number of rows from 0, got " + std::to_string(rows));
  if (!has_rows_here_only_) return {0, rows};
  const arrays::RowRange here = protocol::rows_of_node(rows, static_cast<int>(session_.world_size), session_.place);
  return {here.begin, here.end};
}

void ProducerCore::push(int batch, std::span<const std::int64_t> rows, FilledRows filled) {
  if (batch < 0) text::throw_usage("push: this Draft was already pushed or moved from, or is empty");
  check_rows(rows);
  const auto& header = block_.header();
  auto& slot_of_batch = block_.batch(batch);
  for (std::size_t i = 0; i < header.arrays_count; ++i) {
    slot_of_batch.rows[i] = rows.empty() ? header.arrays[i].extents[0] : rows.size() == 1 ? rows[0] : rows[i];
  }
  slot_of_batch.has_rows_here_only = filled == FilledRows::rows_here && has_rows_here_only_;
  --drafts_;
  block_.note_pushed(index_, batch);
  to_master_.ring();
}

RawDraft next_draft(ProducerCore& producer) {
  worker::process::end_if_forked();
  return producer.next();
}
void push_draft(ProducerCore& producer, int batch, std::span<const std::int64_t> rows, FilledRows filled) {
  worker::process::end_if_forked();
  producer.push(batch, rows, filled);
}
Slice rows_here_of(const ProducerCore& producer, std::int64_t rows) { return producer.rows_here(rows); }
void drop_draft(ProducerCore& producer, int batch) noexcept {
  worker::process::end_if_forked();
  producer.drop(batch);
}
int index_of(const ProducerCore& producer) noexcept { return producer.index(); }
int count_of(const ProducerCore& producer) noexcept { return producer.count(); }
int node_of(const ProducerCore& producer) noexcept { return producer.node(); }
std::mt19937_64& rng_of(ProducerCore& producer) noexcept { return producer.rng(); }

}  // namespace syncrun::detail

namespace syncrun::detail::worker::helper_processes {

int serve_producer(const protocol::ReceivedSpec& received, int index, os::FileDescriptor socket) {
  // Never destroyed: the sign of life must stay mapped until the kernel has marked it. The pointer is static, so that
  // leak checkers do not report it.
  static os::Segment* segment = nullptr;
  segment = new os::Segment(worker::process::take_segment());
  ProducerCore producer(*segment, received.spec, index);
  protocol::ProducerSlot& slot = producer.slot();
  worker::process::live_while_open(std::move(socket), &slot.life);
  producer.set_state(protocol::ProducerState::running);
  try {
    HelperCall call(received.arguments, &producer, nullptr);
    worker::helper_processes::run_function(received, call);
    std::fflush(stdout);
    producer.set_state(protocol::ProducerState::ended);
  } catch (...) {
    const worker::process::CaughtFailure failure =
        worker::process::current_failure(worker::process::ThrownThrough::user_code);
    slot.error_kind = failure.kind;
    slot.native_code = failure.native_code;
    text::put_text(slot.message, failure.text);
    std::fflush(stdout);
    producer.set_state(protocol::ProducerState::failed);
  }
  worker::process::end_if_forked();  // the destructor of the function's exception may have forked
  return 0;
}

}  // namespace syncrun::detail::worker::helper_processes
