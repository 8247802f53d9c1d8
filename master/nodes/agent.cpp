#include "master/nodes/agent.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "master/nodes/command_message.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// How long a report waits for the other ranks of the node.
constexpr std::chrono::microseconds kLongestHold{50};

}  // namespace

Agent::Agent(Mailbox& mailbox, const protocol::ControlBlock& control, const os::Segment& segment,
             NodeExchange* exchange, NodeMoves* moves, Relay* relay)
    : mailbox_(mailbox),
      control_(control),
      segment_(segment),
      exchange_(exchange),
      moves_(moves),
      relay_(relay),
      timelines_(control, segment),
      given_(static_cast<std::size_t>(control.place().local_size)) {}

bool Agent::has_to_report(const std::deque<Given>& commands, std::uint64_t id) noexcept {
  return std::any_of(commands.begin(), commands.end(), [id](const Given& given) { return given.id == id; });
}

bool Agent::is_busy() const noexcept {
  return std::any_of(given_.begin(), given_.end(), [](const auto& commands) { return !commands.empty(); });
}

void Agent::take(MessageReader& message) {
  if (message.kind() == MessageKind::command) take_command(message);
  else take_spoil(message);
}

void Agent::take_command(MessageReader& from) {
  apply_heap_changes(from, segment_, protocol::pages_of(control_.kinds_here()));
  std::vector<Mailbox::Ticket> rows;
  take_rows(from, segment_, [&](std::span<std::byte> to) { rows.push_back(mailbox_.receive_bulk(kMasterNode, to)); });
  const std::size_t slot = detail::master::nodes::take_command(from, control_, segment_);
  const protocol::Command& command = control_.command_in(slot);
  const protocol::NodePlace& here = control_.place();
  if (exchange_ != nullptr) exchange_->add(slot);
  if (moves_ != nullptr) moves_->add(slot);
  for (const int rank : here.ranks_of(command.ranks))
    control_.worker(rank).consumed.store(from.get<std::uint64_t>(), std::memory_order_release);
  if (rows.empty() && waiting_.empty()) begin(slot);
  else waiting_.push_back({slot, std::move(rows)});
}

bool Agent::begin_ready() {
  bool has_begun = false;
  while (!waiting_.empty()) {
    auto& rows = waiting_.front().rows;
    while (!rows.empty() && mailbox_.is_over(rows.back())) rows.pop_back();
    if (!rows.empty()) break;
    if (const auto slot = waiting_.front().slot) begin(*slot);
    waiting_.pop_front();
    has_begun = true;
  }
  return has_begun;
}

void Agent::forget_unfinished() noexcept {
  for (auto& commands : given_) commands.clear();
  for (Waiting& waiting : waiting_) waiting.slot.reset();
}

bool Agent::has_all_rows() {
  forget_unfinished();
  begin_ready();
  return waiting_.empty();
}

/// Gives a command to the workers.
void Agent::begin(std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  const protocol::NodePlace& here = control_.place();
  for (const int rank : here.ranks_of(command.ranks)) {
    given_[static_cast<std::size_t>(here.local_rank(rank))].push_back({command.id, slot});
    const std::size_t place = command.places[static_cast<std::size_t>(rank)];
    // Some commands leave the outbox as it is. Then it still has the vote of an earlier command, which must not be reported.
    control_.outbox_at(rank, place).vote = protocol::Vote::none;
    control_.inbox(rank, place).store(protocol::InboxEntry(command.id, slot).word(), std::memory_order_release);
  }
  control_.header().to_workers.ring_after_release();
}

/// If the master has collected the command in the meantime, the slot may contain another one by now. It then has another
/// number, so a worker does not take this for its own.
void Agent::take_spoil(MessageReader& from) {
  const auto slot = from.get<std::size_t>();
  if (slot >= control_.slots()) throw Error(ErrorKind::system, "slot " + std::to_string(slot) + " was to be spoiled");
  control_.command_in(slot).spoiled.store(from.get<std::uint64_t>(), std::memory_order_seq_cst);
}

bool Agent::has_news() const noexcept {
  const protocol::NodePlace& here = control_.place();
  for (int local_rank = 0; local_rank < here.local_size; ++local_rank) {
    const auto& commands = given_[static_cast<std::size_t>(local_rank)];
    if (commands.empty()) continue;
    if (commands.front().id <= control_.worker(here.rank(local_rank)).done.load(std::memory_order_seq_cst)) return true;
  }
  return false;
}

/// If the workers of this node have reduced outputs of the call, the first rank that had rows holds the results. Each
/// worker has reduced a part. So the report of the last of these ranks brings the results, and gets the outbox of the
/// first rank here. Other reports get null.
const protocol::Outbox* Agent::reduced_outbox(const protocol::Command& command, int rank) const noexcept {
  const protocol::Outbox& own = control_.outbox(command, rank);
  if (command.kind != protocol::CommandKind::call || own.vote != protocol::Vote::ok || own.reduced_outputs == 0)
    return nullptr;
  const protocol::NodePlace& here = control_.place();
  const protocol::Outbox* first = nullptr;
  for (const int other : here.ranks_of(command.ranks)) {
    const protocol::Outbox& outbox = control_.outbox(command, other);
    if (outbox.is_empty) continue;
    if (first == nullptr) first = &outbox;
    if (other != rank && has_to_report(given_[static_cast<std::size_t>(here.local_rank(other))], command.id))
      return nullptr;
  }
  return first;
}

/// True if no rank of this node has the command still to finish.
bool Agent::is_over_here(const protocol::Command& command) const noexcept {
  const auto ranks = control_.place().ranks_of(command.ranks);
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return control_.worker(rank).done.load(std::memory_order_seq_cst) >= command.id;
  });
}

/// The ranks of a node mostly finish a command at about the same time. One message about all of them takes half of the
/// time of two. So the first rank waits for the others, but not for long: the master may need to know who is late.
bool Agent::report() {
  const bool has_begun = begin_ready();
  const bool is_patient = !held_since_ || os::Clock::now() - *held_since_ < kLongestHold;
  return send_reports(is_patient ? Wait::for_the_node : Wait::none) || has_begun;
}

bool Agent::report_all() { return send_reports(Wait::none); }

bool Agent::send_reports(Wait wait) {
  const protocol::NodePlace& here = control_.place();
  std::optional<MessageWriter> message;
  std::vector<std::uint64_t> reported;  // for a relay
  auto urgency = Relay::Urgency::may_wait;
  bool holds = false;
  for (int local_rank = 0; local_rank < here.local_size; ++local_rank) {
    auto& commands = given_[static_cast<std::size_t>(local_rank)];
    const int rank = here.rank(local_rank);
    const std::uint64_t done = control_.worker(rank).done.load(std::memory_order_seq_cst);
    while (!commands.empty() && commands.front().id <= done) {
      const Given& given = commands.front();
      const protocol::Command& command = control_.command_in(given.slot);
      const protocol::Outbox& outbox = control_.outbox(command, rank);
      if (wait == Wait::for_the_node && outbox.vote != protocol::Vote::failed && !is_over_here(command)) {
        holds = true;
        break;  // reports of a rank keep their order
      }
      if (!message) message.emplace(MessageKind::done);
      message->put(static_cast<std::int32_t>(rank), given.id, given.slot);
      timelines_.put(*message, rank);
      put_report(*message, segment_, command, rank, outbox, reduced_outbox(command, rank));
      if (relay_ != nullptr) reported.push_back(given.id);
      if (outbox.vote == protocol::Vote::failed) urgency = Relay::Urgency::at_once;
      commands.pop_front();
    }
  }
  if (!holds) held_since_.reset();
  else if (!held_since_) held_since_ = os::Clock::now();
  if (!message) return false;
  if (moves_ != nullptr) moves_->look();
  if (relay_ != nullptr) send_by_relay(message->take(), std::move(reported), urgency);
  else mailbox_.send(kMasterNode, message->take());
  return true;
}

/// A command is over on this node if no rank has still to report it.
void Agent::send_by_relay(std::vector<std::byte> message, std::vector<std::uint64_t> reported, Relay::Urgency urgency) {
  std::sort(reported.begin(), reported.end());
  reported.erase(std::unique(reported.begin(), reported.end()), reported.end());
  std::erase_if(reported, [&](std::uint64_t id) {
    return std::any_of(given_.begin(), given_.end(), [&](const auto& commands) { return has_to_report(commands, id); });
  });
  relay_->report(std::move(message), reported, urgency);
}

}  // namespace syncrun::detail::master::nodes
