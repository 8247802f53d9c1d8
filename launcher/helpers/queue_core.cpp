#include "launcher/helpers/queue_core.hpp"

#include <algorithm>

#include "common/arrays/extents.hpp"
#include "common/os/life.hpp"
#include "common/protocol/environment.hpp"
#include "common/protocol/helper_spec.hpp"
#include "common/text/errors.hpp"
#include "launcher/calls/body_entry.hpp"
#include "launcher/calls/call_limits.hpp"
#include "launcher/failures/lost_child.hpp"
#include "launcher/process/child_end.hpp"
#include "launcher/process/debugger.hpp"

namespace syncrun::detail {

namespace {

constexpr int kMostProducers = 256;
constexpr int kMostBatches = 1 << 16;
constexpr std::size_t kArrayAlignment = 64;
// How long killed producers may take to end, because the kernel first frees their memory.
constexpr Milliseconds kProducersReapLimit = std::chrono::seconds(5);

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

int checked_producers(int producers) {
  if (producers >= 1 && producers <= kMostProducers) return producers;
  throw_usage("a queue requires 1 to " + std::to_string(kMostProducers) + " producers, got " +
              std::to_string(producers));
}

int checked_capacity(const std::optional<int>& capacity, int producers) {
  const int chosen = capacity.value_or(2 * producers);
  if (chosen >= producers && chosen <= kMostBatches) return chosen;
  throw_usage("QueueOptions::capacity is at least one batch for each of the " + std::to_string(producers) +
              " producers and at most " + std::to_string(kMostBatches) + ", got " + std::to_string(chosen));
}

/// A batch that the program or a call uses. The records of its arrays share the lease.
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

/// A producer whose function has ended may die without a loss.
void ProducerWatcher::on_loss(int child) noexcept {
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
      turns_(producers_, options.order),
      timeout_(options.timeout ? check_timeout(*options.timeout, "QueueOptions::timeout")
                               : session_->settings().call_timeout),
      grace_(check_timeout(options.grace, "QueueOptions::grace")) {
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
  return session_->commands().allocate(bytes, contents, "the queue of '" + name_ + "'");
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
  session_->heap().send_by_rows(memory_offset_);
  block_ = QueueBlock(session_->segment().at(round_up(block_offset_, 2 * kArrayAlignment)));
  turns_.attach(block_);
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
  HelperSpec spec{};
  spec.kind = HelperKind::producer;
  spec.body = describe_body(reinterpret_cast<const void*>(body.thunk), body.pointer);
  put_text(spec.name, name_);
  spec.queue = segment.offset_of(reinterpret_cast<const std::byte*>(&block_.header()));
  spec.seed = session_->settings().seed;
  HelperPlan plan;
  plan.count = producers_;
  plan.spec = write_spec(spec, arguments);
  plan.environment = options.environment;
  plan.variables = {{environment::kSegmentFd, std::to_string(segment.fd())},
                    {environment::kSegmentBytes, std::to_string(segment.bytes())}};
  plan.inherited = {segment.fd()};
  watcher_.emplace(std::move(plan), name_, block_, session_->control().header().to_master);
  nursery_ = std::make_unique<Nursery>(*watcher_, grace_, supervisor_link());
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
  // other losses are reported when a batch is requested
  const auto lost = [&] { return watcher_->lost_at_start() >= 0; };
  Patience patience(limit);
  const Woken woken = wait_until(session_->control().header().to_master, policy_, patience, all_run, lost);
  if (woken == Woken::ready) return;
  if (woken == Woken::interrupted) throw lost_error(watcher_->lost_at_start(), "while starting");
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

/// True if a call has finished, or will never finish because a worker was lost. Calls hold batches that
/// producers may be waiting for.
bool QueueCore::has_calls_to_collect() const {
  const CallTable& calls = session_->calls();
  return calls.first_collectable() || (!calls.is_idle() && session_->commands().has_lost_worker());
}

/// The limit of a wait for a batch. It combines the limit of the queue and those of the calls in flight, whose clocks
/// run during the wait.
class QueueCore::Limits {
 public:
  Limits(CallTable& calls, Milliseconds timeout) : own_(timeout), calls_(calls) {}
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

/// Waits for a batch. Meanwhile collects the results of finished calls, which hold batches that producers may be
/// waiting for.
BatchTurns::Found QueueCore::await_batch() {
  Limits patience(session_->calls(), timeout_);
  for (;;) {
    Found found = Found::none;
    const auto is_ready = [&] { return (found = turns_.look()) != Found::none || has_calls_to_collect(); };
    const auto is_over = [&] { return watcher_->lost() >= 0 || (session_->calls().is_idle() && turns_.is_stuck()); };
    const Woken woken = wait_until(session_->control().header().to_master, policy_, patience, is_ready, is_over);
    if (found != Found::none) return found;
    if (woken == Woken::ready) {
      if (session_->commands().has_lost_worker()) session_->commands().await(session_->calls().entries().front().id);
      else session_->commands().collect_complete();
    } else if (const int lost = watcher_->lost(); lost >= 0) {
      fail(lost_error(lost, "while the program waited for a batch"));
    } else if (woken == Woken::interrupted) {
      throw_usage("the queue of '" + name_ + "' has nothing to give: the program holds all of the " +
                  std::to_string(block_.batches_of(turns_.turn())) + " batches of " + describe(turns_.turn()) +
                  ", which waits for one to be free (QueueOptions::capacity gives it more)");
    } else if (patience.late_call()) {
      session_->commands().expire(*patience.late_call());
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
    case Found::failure: fail(failure_error(turns_.turn()));
    case Found::end: finish(); return {};
    case Found::none: break;
  }
  throw Error(ErrorKind::system, "the queue of '" + name_ + "' has waited for nothing");
}

std::vector<std::shared_ptr<DataRecord>> QueueCore::take() {
  const int batch = turns_.next_batch();
  const auto lease = std::make_shared<Lease>(shared_from_this(), batch);
  turns_.take_next_batch();

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
    session_->heap().note_rows_written(record->offset, record->capacity_bytes);
    records.push_back(std::move(record));
  }
  return records;
}

void QueueCore::give_back(int batch) noexcept {
  if (!fork_guard_.is_here()) return;  // this handle is a copy that a fork has made
  turns_.give_back(batch);
}

// ---- ends -----------------------------------------------------------------------------------------------------

/// Waits until the producers have ended, and kills those that take too long. Returns the error about the first one that
/// did not end well.
std::optional<Error> QueueCore::await_ends() {
  const auto bad = await_expected_ends(*nursery_, grace_);
  if (!bad) return std::nullopt;
  return lost_error(bad->child, "while closing", bad->cause);
}

/// All functions have returned, so the queue is finished.
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

/// Kills the producers that are left. Producers that cannot be reaped yet may still write, so their memory is not used
/// again.
void QueueCore::end_producers() noexcept {
  if (!nursery_) return;
  // only the process that created them has these threads
  if (!fork_guard_.is_here()) return static_cast<void>(nursery_.release());
  nursery_->expect_ends();
  nursery_->kill_all();
  if (!nursery_->await_all_ends(kProducersReapLimit)) block_offset_ = memory_offset_ = 0;
  nursery_.reset();
}

std::vector<int> QueueCore::producer_pids() const {
  std::vector<int> pids;
  for (int producer = 0; producer < producers_; ++producer) pids.push_back(watcher_->pid(producer));
  return pids;
}

// ---- failures -------------------------------------------------------------------------------------------------

std::string QueueCore::describe(int producer) const {
  return "producer " + std::to_string(producer) + " (pid " + std::to_string(watcher_->pid(producer)) + ") of '" +
         name_ + "'";
}

Failure QueueCore::blame(int producer) const {
  Failure failure;
  failure.producer = producer;
  failure.pid = watcher_->pid(producer);
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
  Failure failure = blame(turns_.turn());
  failure.cause = "deadline";
  std::string message =
      "no batch of '" + name_ + "' came within " + std::to_string(limit.count()) + " ms: " + describe(turns_.turn()) +
      " has pushed " + std::to_string(slot(turns_.turn()).pushed.load()) +
      (slot(turns_.turn()).waits.load() ? " and waits for one to be free" : " and is in its function");
  if (const int signal = nursery_->stop_signal(turns_.turn())) message += ", stopped by " + signal_name(signal);
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
