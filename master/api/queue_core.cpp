#include "master/api/queue_core.hpp"

#include <algorithm>

#include "common/arrays/extents.hpp"
#include "common/protocol/helper_spec.hpp"
#include "common/protocol/row_shares.hpp"
#include "common/text/errors.hpp"
#include "master/calls/body_entry.hpp"
#include "master/dispatch/call_limits.hpp"
#include "master/process/child_end.hpp"
#include "master/process/debugger.hpp"
#include "master/queues/queue_layout.hpp"

namespace syncrun::detail {

namespace {

constexpr int kMostProducers = 256;
constexpr int kMostBatches = 1 << 16;

int checked_producers(int producers) {
  if (producers >= 1 && producers <= kMostProducers) return producers;
  text::throw_usage("a queue requires 1 to " + std::to_string(kMostProducers) + " producers, got " +
                    std::to_string(producers));
}

int checked_capacity(const std::optional<int>& capacity, int producers) {
  const int chosen = capacity.value_or(2 * producers);
  if (chosen >= producers && chosen <= kMostBatches) return chosen;
  text::throw_usage("QueueOptions::capacity is at least one batch for each of the " + std::to_string(producers) +
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

// ---- opening --------------------------------------------------------------------------------------------------

QueueCore::QueueCore(std::shared_ptr<master::session::SessionCore> session, const HelperBody& body, int producers,
                     const QueueOptions& options)
    : session_(std::move(session)),
      name_(master::calls::choose_name(options.name, body.pointer, "a queue")),
      producers_(checked_producers(producers)),
      capacity_(checked_capacity(options.capacity, producers)),
      turns_(producers_, options.order),
      timeout_(options.timeout ? master::settings::check_timeout(*options.timeout, "QueueOptions::timeout")
                               : session_->settings().call_timeout),
      grace_(master::settings::check_timeout(options.grace, "QueueOptions::grace")),
      processes_(std::make_shared<master::session::QueueProcesses>(
          session_->pool(), options.places == ProducerPlaces::every_node ? session_->pool().other_queues() : nullptr)) {
  master::helper_processes::check_name(options.name, "QueueOptions::name");
  master::helper_processes::check_variables(options.environment, "QueueOptions::environment");
}

QueueCore::~QueueCore() {
  abandon();
  if (!processes_->are_here() || processes_->may_write() || !session_->is_open()) return;
  for (const std::uint64_t offset : {block_offset_, memory_offset_}) {
    if (offset != 0) session_->give_up(offset, os::SharedHeap::Giveback::now);
  }
}

std::uint64_t QueueCore::allocate(std::size_t bytes, os::SharedHeap::Contents contents) const {
  const std::uint64_t offset = session_->commands().allocate(bytes, contents, "the queue of '" + name_ + "'");
  if (processes_->are_on_every_node()) session_->heap().leave_to_nodes(offset);
  return offset;
}

protocol::QueueLayout QueueCore::lay_out(std::span<const BatchArrayType> types,
                                         std::span<const std::span<const std::int64_t>> shapes) {
  protocol::QueueLayout layout = master::queues::lay_out_batches(types, shapes, producers_, capacity_, name_);
  block_offset_ = allocate(master::queues::block_bytes_of(layout), os::SharedHeap::Contents::any);
  memory_offset_ = allocate(layout.memory_bytes(), os::SharedHeap::Contents::any);
  if (!processes_->are_on_every_node()) session_->heap().send_by_rows(memory_offset_);
  layout.memory = memory_offset_;
  block_ =
      master::queues::prepare_block(session_->segment().at(master::queues::block_offset_in(block_offset_)), layout);
  return layout;
}

void QueueCore::open(const HelperBody& body, std::span<const std::byte> arguments,
                     std::span<const BatchArrayType> types, std::span<const std::span<const std::int64_t>> shapes,
                     const QueueOptions& options) {
  const protocol::QueueLayout layout = lay_out(types, shapes);
  master::queues::ProducersStart producers{.name = name_,
                                           .arguments = {arguments.begin(), arguments.end()},
                                           .environment = options.environment,
                                           .grace = grace_,
                                           .start_timeout = session_->settings().start_timeout};
  protocol::HelperSpec& spec = producers.spec;
  spec.kind = protocol::HelperKind::producer;
  spec.body = master::calls::describe_body(reinterpret_cast<const void*>(body.thunk), body.pointer);
  text::put_text(spec.name, name_);
  spec.queue = session_->segment().offset_of(reinterpret_cast<const std::byte*>(&block_.header()));
  spec.seed = session_->settings().seed;
  spec.is_on_every_node = processes_->are_on_every_node();
  start(producers, layout);
}

void QueueCore::start(const master::queues::ProducersStart& producers, const protocol::QueueLayout& layout) {
  processes_->start(producers, layout, block_, host_of(kOwnNode));
  std::vector<protocol::QueueBlock> blocks{block_};
  remote_blocks_ = processes_->remote().blocks();
  blocks.insert(blocks.end(), remote_blocks_.begin(), remote_blocks_.end());
  turns_.attach(std::move(blocks), &processes_->remote());
  await_start(producers.start_timeout);
  processes_->nursery().watch_lives();
}

void QueueCore::await_start(os::Milliseconds limit) {
  int starting = 0;
  const master::nodes::RemoteQueue& remote = processes_->remote();
  std::optional<master::nodes::RemoteQueue::Starting> remote_starting;
  const auto all_run = [&] {
    while (starting < producers_ &&
           slot(starting).state.load(std::memory_order_seq_cst) != protocol::ProducerState::starting) {
      ++starting;
    }
    if (starting < producers_) return false;
    return !(remote_starting = remote.first_starting());
  };
  // other losses are reported when a batch is requested
  const auto lost = [&] { return processes_->watcher().lost_at_start() >= 0 || remote.has_failed_start(); };
  os::Patience patience(limit);
  const os::Woken woken = processes_->wait(patience, all_run, lost);
  if (woken == os::Woken::ready) return;
  if (woken == os::Woken::interrupted) throw start_error();
  if (starting < producers_) throw late_start_error(starting, kOwnNode, limit);
  throw late_start_error(remote_starting->producer, remote_starting->node, limit);
}

// ---- taking ---------------------------------------------------------------------------------------------------

void QueueCore::check_usable() const {
  if (state_ == State::closed) text::throw_usage("the queue of '" + name_ + "' was closed");
  if (state_ == State::failed) text::throw_usage("the queue of '" + name_ + "' is over: " + error_->what());
}

/// True if a call has finished, or will never finish because a worker was lost. Calls hold batches that
/// producers may be waiting for.
bool QueueCore::has_calls_to_collect() const {
  const master::calls::CommandTable& calls = session_->calls();
  return calls.first_collectable() || (!calls.is_idle() && session_->commands().has_lost_worker());
}

bool QueueCore::has_lost_producer() const {
  return processes_->watcher().lost() >= 0 || processes_->remote().has_trouble();
}

/// The limit of a wait for a batch. It combines the limit of the queue and those of the calls in flight, whose clocks
/// run during the wait.
class QueueCore::Limits {
 public:
  Limits(master::calls::CommandTable& calls, os::Milliseconds timeout) : own_(timeout), calls_(calls) {}
  bool is_over(os::Clock::time_point now) {
    const bool is_call_late = calls_.is_over(now);
    return own_.is_over(now) || is_call_late;
  }
  os::Clock::duration nap(os::Clock::duration longest) const noexcept { return calls_.nap(own_.nap(longest)); }
  const std::optional<std::uint64_t>& late_call() const noexcept { return calls_.expired(); }
  void restart(os::Milliseconds timeout) noexcept { own_ = os::Patience(timeout); }

 private:
  os::Patience own_;
  master::dispatch::CallLimits calls_;
};

/// Waits for a batch. Meanwhile collects the results of finished calls, which hold batches that producers may be
/// waiting for.
master::queues::BatchTurns::Found QueueCore::await_batch() {
  Limits patience(session_->calls(), timeout_);
  for (;;) {
    Found found = Found::none;
    const auto is_ready = [&] { return (found = turns_.look()) != Found::none || has_calls_to_collect(); };
    const auto is_over = [&] {
      return has_lost_producer() || processes_->is_node_lost() || (session_->calls().is_idle() && turns_.is_stuck());
    };
    const os::Woken woken = processes_->wait(patience, is_ready, is_over);
    if (found != Found::none) return found;
    if (woken == os::Woken::ready) {
      if (session_->commands().has_lost_worker()) session_->commands().await(session_->calls().entries().front().id);
      else session_->commands().collect_complete();
    } else if (processes_->is_node_lost()) {
      session_->commands().check_nodes();
      throw Error(ErrorKind::system, "a node of the queue of '" + name_ + "' is lost");
    } else if (has_lost_producer()) {
      fail(first_lost_error("while the program waited for a batch"));
    } else if (woken == os::Woken::interrupted) {
      throw stuck_error();
    } else if (patience.late_call()) {
      session_->commands().expire(*patience.late_call());
    } else if (master::process::is_debugged(processes_->nursery())) {
      patience.restart(timeout_);
    } else {
      throw timeout_error(timeout_);
    }
  }
}

std::vector<std::shared_ptr<master::records::DataRecord>> QueueCore::next() {
  const master::session::SessionCore::Entry entry(*session_);
  check_usable();
  if (state_ == State::finished) return {};
  session_->pool().progress();  // tells the other nodes at once which batches are free
  switch (await_batch()) {
    case Found::batch: return take();
    case Found::failure: fail(failure_error(turns_.turn(), turns_.node()));
    case Found::difference: fail(difference_error());
    case Found::end: finish(); return {};
    case Found::none: break;
  }
  throw Error(ErrorKind::system, "the queue of '" + name_ + "' has waited for nothing");
}

std::vector<std::shared_ptr<master::records::DataRecord>> QueueCore::take() {
  const int batch = turns_.next_batch();
  const auto lease = std::make_shared<Lease>(shared_from_this(), batch);
  turns_.take_next_batch();

  const protocol::QueueHeader& header = block_.header();
  std::vector<std::shared_ptr<master::records::DataRecord>> records;
  for (std::size_t i = 0; i < header.arrays_count; ++i) {
    auto record = std::make_shared<master::records::DataRecord>();
    record->session = session_;
    record->dtype = header.arrays[i].type.dtype;
    record->dimensions = header.arrays[i].type.dimensions;
    record->extents = header.arrays[i].extents;
    record->extents[0] = block_.batch(batch).rows[i];
    record->offset = block_.memory_of(batch, i);
    record->capacity_bytes = header.arrays[i].bytes;
    record->lease = lease;
    note_rows(*record, block_.batch(batch).has_rows_here_only);
    records.push_back(std::move(record));
  }
  return records;
}

/// Notes which nodes have the rows of an array that producers have filled.
void QueueCore::note_rows(master::records::DataRecord& record, bool has_rows_here_only) {
  os::SharedHeap& heap = session_->heap();
  const bool is_on_every_node = processes_->are_on_every_node();
  if (is_on_every_node && !has_rows_here_only) return heap.note_rows_there(record.offset, record.capacity_bytes);
  heap.note_rows_written(record.offset, record.capacity_bytes);
  if (!is_on_every_node) return;
  const std::size_t row_bytes = arrays::row_bytes_of(record.dtype, {record.extents.data(), record.dimensions});
  for (const protocol::NodePlace& node : session_->settings().nodes) {
    const arrays::RowRange rows = protocol::rows_of_node(record.extents[0], session_->world_size(), node);
    record.rows_on_nodes.push_back(rows);
    const auto bytes = static_cast<std::size_t>(rows.count()) * row_bytes;
    if (node.node == kOwnNode || bytes == 0) continue;
    heap.note_rows_there(record.offset + static_cast<std::size_t>(rows.begin) * row_bytes, bytes, node.node);
  }
}

void QueueCore::give_back(int batch) noexcept {
  if (!processes_->are_here()) return;  // this handle is a copy that a fork has made
  turns_.give_back(batch);
}

// ---- ends -----------------------------------------------------------------------------------------------------

/// Waits until the producers have ended, and kills those that take too long. Returns the error about the first one that
/// did not end well.
std::optional<Error> QueueCore::await_ends() {
  const auto bad = master::process::await_expected_ends(processes_->nursery(), grace_);
  const auto remote_error = await_remote_ends();
  if (!bad) return remote_error;
  return lost_error(bad->child, "while closing", bad->cause);
}

/// The other nodes were told to end their producers. They kill those that take too long.
std::optional<Error> QueueCore::await_remote_ends() {
  const os::Milliseconds limit = grace_ + master::session::QueueProcesses::kRemoteEndLimit;
  if (!processes_->await_remote(limit)) {
    if (processes_->is_node_lost()) return std::nullopt;  // the next call says it
    return late_end_error(processes_->remote().first_running(), limit);
  }
  if (const auto bad = processes_->remote().first_bad_end()) return lost_error(*bad, "while closing");
  return std::nullopt;
}

/// All functions have returned, so the queue is finished.
void QueueCore::finish() {
  processes_->close_remote();
  const auto error = await_ends();
  if (error) fail(*error);
  state_ = State::finished;
  processes_->end();
}

void QueueCore::close() {
  const master::session::SessionCore::Entry entry(*session_);
  if (state_ == State::closed) return;
  std::optional<Error> error;
  if (state_ == State::open) {
    processes_->nursery().expect_ends();
    processes_->close_remote();
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
  processes_->end();
  throw error;
}

void QueueCore::abandon() noexcept {
  state_ = State::closed;
  processes_->end();
}

/// What concerns other nodes goes through the session, so only a thread that is inside it may do this.
void QueueCore::abandon_handle() noexcept {
  if (!processes_->are_on_every_node() || !session_->is_open()) return abandon();
  session_->release([queue = shared_from_this()] { queue->abandon(); });
}

std::vector<int> QueueCore::producer_pids() const {
  std::vector<int> pids;
  for (int producer = 0; producer < producers_; ++producer) pids.push_back(processes_->watcher().pid(producer));
  return pids;
}

// ---- the interface -------------------------------------------------------------------------------------------------

std::shared_ptr<QueueCore> open_queue(const std::shared_ptr<master::session::SessionCore>& session,
                                      const HelperBody& body, std::span<const std::byte> arguments, int producers,
                                      std::span<const BatchArrayType> types,
                                      std::span<const std::span<const std::int64_t>> shapes,
                                      const QueueOptions& options) {
  const master::session::SessionCore::Entry entry(*session);
  auto queue = std::make_shared<QueueCore>(session, body, producers, options);
  queue->open(body, arguments, types, shapes, options);
  session->add_queue(queue->processes());
  return queue;
}

void abandon_queue(QueueCore& queue) noexcept { queue.abandon_handle(); }
void close_queue(QueueCore& queue) { queue.close(); }
std::vector<std::shared_ptr<master::records::DataRecord>> next_batch(QueueCore& queue) { return queue.next(); }
const std::string& name_of(const QueueCore& queue) noexcept { return queue.name(); }
int capacity_of(const QueueCore& queue) noexcept { return queue.capacity(); }
std::vector<int> producer_pids_of(const QueueCore& queue) { return queue.producer_pids(); }

}  // namespace syncrun::detail
