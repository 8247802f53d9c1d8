#include "launcher/queue_core.hpp"

#include <algorithm>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/extents.hpp"
#include "common/helper_order.hpp"
#include "common/life.hpp"
#include "launcher/body_entry.hpp"
#include "launcher/call_limits.hpp"
#include "launcher/child_end.hpp"
#include "launcher/debugger.hpp"
#include "launcher/lost_child.hpp"

namespace syncrun::detail {

namespace {

constexpr int kMostProducers = 256;
constexpr int kMostBatches = 1 << 16;
constexpr std::size_t kArrayAlignment = 64;
// How long killed producers may take to go: the kernel first frees their memory.
constexpr Milliseconds kProducersReapLimit = std::chrono::seconds(5);

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

int checked_producers(int producers) {
  if (producers >= 1 && producers <= kMostProducers) return producers;
  throw_usage("a queue wants 1 to " + std::to_string(kMostProducers) + " producers, got " + std::to_string(producers));
}

int checked_capacity(const std::optional<int>& capacity, int producers) {
  const int chosen = capacity.value_or(2 * producers);
  if (chosen >= producers && chosen <= kMostBatches) return chosen;
  throw_usage("QueueOptions::capacity is at least one batch for each of the " + std::to_string(producers) +
              " producers and at most " + std::to_string(kMostBatches) + ", got " + std::to_string(chosen));
}

/// A batch in the program's hands, or in a call's: the records of its arrays share it.
class Lease {
 public:
  Lease(std::shared_ptr<QueueCore> queue, int batch) noexcept : queue_(std::move(queue)), batch_(batch) {}
  ~Lease() { queue_->give_back(batch_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  std::shared_ptr<QueueCore> queue_;
  int batch_;
};

}  // namespace

/// One that has come to the end of its function may go.
void ProducerBrood::on_loss(int child) noexcept {
  const ProducerState state = block_.producer(child).state.load(std::memory_order_seq_cst);
  if (state == ProducerState::ended || state == ProducerState::failed) return;
  for (auto* first : {&lost_, state == ProducerState::starting ? &lost_at_start_ : &lost_}) {
    int none = -1;
    first->compare_exchange_strong(none, child, std::memory_order_seq_cst);
  }
  to_master_.wake();
}

// ---- opening --------------------------------------------------------------------------------------------------

QueueCore::QueueCore(std::shared_ptr<SessionCore> session, const HelperBody& body, int producers,
                     const QueueOptions& options)
    : session_(std::move(session)),
      name_(choose_name(options.name, body.pointer, "a queue")),
      producers_(checked_producers(producers)),
      capacity_(checked_capacity(options.capacity, producers)),
      order_(options.order),
      timeout_(options.timeout ? check_timeout(*options.timeout, "QueueOptions::timeout")
                               : session_->settings().call_timeout),
      grace_(check_timeout(options.grace, "QueueOptions::grace")),
      taken_(static_cast<std::size_t>(producers)),
      is_over_(static_cast<std::size_t>(producers)),
      held_(static_cast<std::size_t>(producers)) {
  check_name(options.name, "QueueOptions::name");
  check_variables(options.environment, "QueueOptions::environment");
}

QueueCore::~QueueCore() {
  abandon();
  if (!fork_guard_.is_here() || !session_->is_open()) return;
  for (const std::uint64_t offset : {block_offset_, memory_offset_}) {
    if (offset != 0) session_->give_up(offset, SharedHeap::Giveback::now);
  }
}

std::uint64_t QueueCore::allocate(std::size_t bytes, SharedHeap::Contents contents) const {
  return session_->allocate(bytes, contents, "the queue of '" + name_ + "'");
}

void QueueCore::lay_out(std::span<const BatchArrayType> types, std::span<const std::span<const std::int64_t>> shapes) {
  std::array<BatchArray, kMaxBatchArrays> arrays{};
  std::size_t batch_bytes = 0;
  for (std::size_t i = 0; i < types.size(); ++i) {
    BatchArray& array = arrays[i];
    array.type = types[i];
    array.bytes = checked_bytes(types[i].dtype, shapes[i]);
    array.offset = batch_bytes;
    std::copy(shapes[i].begin(), shapes[i].end(), array.extents.begin());
    if (__builtin_add_overflow(batch_bytes, round_up(array.bytes, kArrayAlignment), &batch_bytes)) {
      throw_usage("the size of a batch of '" + name_ + "' overflows");
    }
  }
  std::size_t memory_bytes = 0;
  if (__builtin_mul_overflow(batch_bytes, static_cast<std::size_t>(capacity_), &memory_bytes)) {
    throw_usage("the size of the queue of '" + name_ + "' overflows");
  }
  block_offset_ = allocate(QueueBlock::bytes(producers_, capacity_) + kArrayAlignment, SharedHeap::Contents::zero);
  memory_offset_ = allocate(memory_bytes, SharedHeap::Contents::any);
  block_ = QueueBlock(session_->segment().at(round_up(block_offset_, 2 * kArrayAlignment)));
  QueueHeader& header = block_.header();
  header.producers = producers_;
  header.capacity = capacity_;
  header.arrays_count = static_cast<std::uint32_t>(types.size());
  header.arrays = arrays;
  header.memory = memory_offset_;
  header.batch_bytes = batch_bytes;
  for (int producer = 0; producer < producers_; ++producer) initialise_life(slot(producer).life);
  for (int batch = 0; batch < capacity_; ++batch) block_.batch(batch).is_free.store(true);
}

void QueueCore::open(const HelperBody& body, std::span<const std::byte> arguments,
                     std::span<const BatchArrayType> types, std::span<const std::span<const std::int64_t>> shapes,
                     const QueueOptions& options) {
  lay_out(types, shapes);
  const Segment& segment = session_->segment();
  HelperOrder order{};
  order.kind = HelperKind::producer;
  order.body = describe_body(reinterpret_cast<const void*>(body.thunk), body.pointer);
  put_text(order.name, name_);
  order.queue = segment.offset_of(reinterpret_cast<const std::byte*>(&block_.header()));
  order.seed = session_->settings().seed;
  HelperPlan plan;
  plan.count = producers_;
  plan.order = write_order(order, arguments);
  plan.environment = options.environment;
  plan.variables = {{environment::kSegmentFd, std::to_string(segment.fd())},
                    {environment::kSegmentBytes, std::to_string(segment.bytes())}};
  plan.inherited = {segment.fd()};
  brood_.emplace(std::move(plan), name_, block_, session_->control().header().to_master);
  nursery_ = std::make_unique<Nursery>(*brood_, grace_, supervisor_link());
  const Milliseconds limit = session_->settings().start_timeout;
  nursery_->spawn_all(limit, "--start-timeout or SessionOptions::start_timeout");
  await_start(limit);
  nursery_->watch_lives();
}

void QueueCore::await_start(Milliseconds limit) {
  int starting = 0;
  const auto all_run = [&] {
    while (starting < producers_ && slot(starting).state.load(std::memory_order_seq_cst) != ProducerState::starting) {
      ++starting;
    }
    return starting == producers_;
  };
  const auto lost = [&] { return brood_->lost_at_start() >= 0; };  // of others it comes in their turn
  Patience patience(limit);
  const Woken woken = wait_until(session_->control().header().to_master, policy_, patience, all_run, lost);
  if (woken == Woken::ready) return;
  if (woken == Woken::interrupted) throw lost_error(brood_->lost_at_start(), "while starting");
  Failure failure = blame(starting);
  failure.phase = "start";
  failure.cause = "deadline";
  throw Error(ErrorKind::timeout,
              describe(starting) + " did not start within " + std::to_string(limit.count()) +
                  " ms (--start-timeout or SessionOptions::start_timeout sets another limit)",
              std::move(failure));
}

// ---- taking ---------------------------------------------------------------------------------------------------

void QueueCore::check_usable() const {
  if (state_ == State::closed) throw_usage("the queue of '" + name_ + "' was closed");
  if (state_ == State::failed) throw_usage("the queue of '" + name_ + "' is over: " + error_->what());
}

/// Sets turn_ to the producer whose batch or failure comes next, or is waited for. Called while waiting.
QueueCore::Found QueueCore::look() noexcept {
  bool all_over = true;
  for (int step = 0; step < producers_; ++step) {
    const int producer = (turn_ + step) % producers_;
    const auto index = static_cast<std::size_t>(producer);
    if (is_over_[index]) continue;
    const ProducerState state = slot(producer).state.load(std::memory_order_seq_cst);  // before `pushed`
    if (slot(producer).pushed.load(std::memory_order_seq_cst) > taken_[index]) {
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

/// Calls whose results are there, or never come, hold batches that producers may be waiting for.
bool QueueCore::has_calls_to_collect() const {
  const CallRing& ring = session_->ring();
  return !ring.is_idle() && (ring.is_complete(ring.oldest()) || session_->has_lost_worker());
}

/// Nothing can come where a producer waits for a batch to be free and the program has all of its batches itself.
bool QueueCore::is_stuck() const noexcept {
  if (!session_->ring().is_idle()) return false;
  const auto is_stuck = [this](int producer) {
    const auto index = static_cast<std::size_t>(producer);
    return held_[index].load() == block_.batches_of(producer) && slot(producer).waits.load();
  };
  if (order_ == BatchOrder::round_robin) return is_stuck(turn_);
  for (int producer = 0; producer < producers_; ++producer) {
    if (!is_over_[static_cast<std::size_t>(producer)] && !is_stuck(producer)) return false;
  }
  return true;
}

/// The limit of a wait for a batch: the queue's own, and those of the calls in flight, whose clocks run meanwhile.
class QueueCore::Limits {
 public:
  Limits(SessionCore& session, Milliseconds timeout) : own_(timeout), calls_(session.ring()) {}
  bool is_over(Clock::time_point now) {
    const bool is_call_late = calls_.is_over(now);
    return own_.is_over(now) || is_call_late;
  }
  Clock::duration nap(Clock::duration longest) const noexcept { return calls_.nap(own_.nap(longest)); }
  const std::optional<std::uint64_t>& late_call() const noexcept { return calls_.expired(); }
  void restart(Milliseconds timeout) noexcept { own_ = Patience(timeout); }

 private:
  Patience own_;
  CallLimits calls_;
};

/// Collects results of calls that are over by the way: they hold batches that producers may be waiting for.
QueueCore::Found QueueCore::await_batch() {
  Limits patience(*session_, timeout_);
  for (;;) {
    Found found = Found::none;
    const auto is_ready = [&] { return (found = look()) != Found::none || has_calls_to_collect(); };
    const auto is_over = [&] { return brood_->lost() >= 0 || is_stuck(); };
    const Woken woken = wait_until(session_->control().header().to_master, policy_, patience, is_ready, is_over);
    if (found != Found::none) return found;
    if (woken == Woken::ready) {
      session_->drain(session_->ring().oldest());
    } else if (const int lost = brood_->lost(); lost >= 0) {
      fail(lost_error(lost, "while the program waited for a batch"));
    } else if (woken == Woken::interrupted) {
      throw_usage("the queue of '" + name_ + "' has nothing to give: the program holds all of the " +
                  std::to_string(block_.batches_of(turn_)) + " batches of " + describe(turn_) +
                  ", which waits for one to be free (QueueOptions::capacity gives it more)");
    } else if (patience.late_call()) {
      session_->expire(*patience.late_call());
    } else if (is_debugged(*nursery_)) {
      patience.restart(timeout_);
    } else {
      throw timeout_error(timeout_);
    }
  }
}

std::vector<std::shared_ptr<DataRecord>> QueueCore::next() {
  const SessionCore::Entry entry(*session_);
  check_usable();
  if (state_ == State::finished) return {};
  switch (await_batch()) {
    case Found::batch: return take();
    case Found::failure: fail(failure_error(turn_));
    case Found::end: finish(); return {};
    case Found::none: break;
  }
  throw Error(ErrorKind::system, "the queue of '" + name_ + "' has waited for nothing");
}

std::vector<std::shared_ptr<DataRecord>> QueueCore::take() {
  const int producer = turn_;
  const auto index = static_cast<std::size_t>(producer);
  const auto place = static_cast<int>(taken_[index] % static_cast<std::uint64_t>(block_.batches_of(producer)));
  const int batch = static_cast<int>(block_.batch(block_.first_batch(producer) + place).pushed);
  const auto lease = std::make_shared<Lease>(shared_from_this(), batch);
  held_[index].fetch_add(1);
  ++taken_[index];
  turn_ = (producer + 1) % producers_;

  const QueueHeader& header = block_.header();
  std::vector<std::shared_ptr<DataRecord>> records;
  for (std::size_t i = 0; i < header.arrays_count; ++i) {
    auto record = std::make_shared<DataRecord>();
    record->session = session_;
    record->dtype = header.arrays[i].type.dtype;
    record->dimensions = header.arrays[i].type.dimensions;
    record->extents = header.arrays[i].extents;
    record->extents[0] = block_.batch(batch).rows[i];
    record->offset = block_.memory_of(batch, i);
    record->capacity_bytes = header.arrays[i].bytes;
    record->lease = lease;
    records.push_back(std::move(record));
  }
  return records;
}

void QueueCore::give_back(int batch) noexcept {
  if (!fork_guard_.is_here()) return;  // the copy that a fork has made of a handle
  held_[static_cast<std::size_t>(block_.producer_of(batch))].fetch_sub(1);
  block_.batch(batch).is_free.store(true, std::memory_order_seq_cst);
  block_.header().to_producers.ring();
}

// ---- ends -----------------------------------------------------------------------------------------------------

/// Waits for the producers' ends; kills those that take too long. What to say about it: the first that did not end well.
std::optional<Error> QueueCore::await_ends() {
  const bool in_time = nursery_->await_all_ends(grace_);
  std::optional<Error> error;
  for (int producer = 0; producer < producers_; ++producer) {
    const auto status = nursery_->await_end(producer, Milliseconds(0));
    if (status && (*status == 0 || *status == kUnknownStatus)) continue;
    const std::string cause = status ? describe_status(*status) : killed_after(grace_);
    if (!error) error = lost_error(producer, "while closing", cause);
  }
  if (!in_time) nursery_->kill_all();
  return error;
}

/// All functions have returned.
void QueueCore::finish() {
  const auto error = await_ends();
  if (error) fail(*error);
  state_ = State::finished;
  nursery_.reset();
}

void QueueCore::close() {
  const SessionCore::Entry entry(*session_);
  if (state_ == State::closed) return;
  std::optional<Error> error;
  if (state_ == State::open) {
    nursery_->expect_ends();
    block_.header().closes.store(true, std::memory_order_seq_cst);
    block_.header().to_producers.wake();
    error = await_ends();
  }
  abandon();
  if (error) throw *error;
}

void QueueCore::fail(const Error& error) {
  error_ = error;
  state_ = State::failed;
  end_producers();
  throw error;
}

void QueueCore::abandon() noexcept {
  state_ = State::closed;
  end_producers();
}

/// Kills what is left. Producers that cannot be reaped yet may still write: their memory is not given to anybody else.
void QueueCore::end_producers() noexcept {
  if (!nursery_) return;
  if (!fork_guard_.is_here()) return static_cast<void>(nursery_.release());  // its threads are elsewhere
  nursery_->expect_ends();
  nursery_->kill_all();
  if (!nursery_->await_all_ends(kProducersReapLimit)) block_offset_ = memory_offset_ = 0;
  nursery_.reset();
}

std::vector<int> QueueCore::producer_pids() const {
  std::vector<int> pids;
  for (int producer = 0; producer < producers_; ++producer) pids.push_back(brood_->pid(producer));
  return pids;
}

// ---- failures -------------------------------------------------------------------------------------------------

std::string QueueCore::describe(int producer) const {
  return "producer " + std::to_string(producer) + " (pid " + std::to_string(brood_->pid(producer)) + ") of '" + name_ +
         "'";
}

Failure QueueCore::blame(int producer) const {
  Failure failure;
  failure.producer = producer;
  failure.pid = brood_->pid(producer);
  failure.call = name_;
  failure.phase = "producer";
  return failure;
}

Error QueueCore::lost_error(int producer, const std::string& where, std::optional<std::string> known_cause) {
  return lost_helper(*nursery_, producer,
                     {.who = describe(producer),
                      .tag = "producer " + std::to_string(producer),
                      .where = where,
                      .failure = blame(producer)},
                     std::move(known_cause));
}

Error QueueCore::failure_error(int producer) const {
  Failure failure = blame(producer);
  failure.cause = get_text(slot(producer).message);
  const std::string message = describe(producer) + " failed: " + failure.cause;
  return {slot(producer).error_kind, message, std::move(failure), slot(producer).native_code};
}

Error QueueCore::timeout_error(Milliseconds limit) const {
  Failure failure = blame(turn_);
  failure.cause = "deadline";
  std::string message = "no batch of '" + name_ + "' came within " + std::to_string(limit.count()) +
                        " ms: " + describe(turn_) + " has pushed " + std::to_string(slot(turn_).pushed.load()) +
                        (slot(turn_).waits.load() ? " and waits for one to be free" : " and is in its function");
  if (const int signal = nursery_->stop_signal(turn_)) message += ", stopped by " + signal_name(signal);
  return {ErrorKind::timeout, message + " (QueueOptions::timeout sets another limit)", std::move(failure)};
}

// ---- the seam -------------------------------------------------------------------------------------------------

std::shared_ptr<QueueCore> open_queue(const std::shared_ptr<SessionCore>& session, const HelperBody& body,
                                      std::span<const std::byte> arguments, int producers,
                                      std::span<const BatchArrayType> types,
                                      std::span<const std::span<const std::int64_t>> shapes,
                                      const QueueOptions& options) {
  const SessionCore::Entry entry(*session);
  auto queue = std::make_shared<QueueCore>(session, body, producers, options);
  queue->open(body, arguments, types, shapes, options);
  session->registry().add(queue);
  return queue;
}

void abandon_queue(QueueCore& queue) noexcept { queue.abandon(); }
void close_queue(QueueCore& queue) { queue.close(); }
std::vector<std::shared_ptr<DataRecord>> next_batch(QueueCore& queue) { return queue.next(); }
const std::string& name_of(const QueueCore& queue) noexcept { return queue.name(); }
int capacity_of(const QueueCore& queue) noexcept { return queue.capacity(); }
std::vector<int> producer_pids_of(const QueueCore& queue) { return queue.producer_pids(); }

}  // namespace syncrun::detail
