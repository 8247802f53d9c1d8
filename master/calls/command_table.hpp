#pragma once

// The commands in flight: their numbers and slots, when each is complete, what each depends on, which have failed, and
// how long each may take. Pure bookkeeping over the control block. This class never waits, and does not know processes.
//
//   filled in --publish--> in flight --its ranks are done--> complete --release--> slot free
//
// Results may be collected in any order, except that a command comes after those on which it depends.

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "master/calls/call_clocks.hpp"
#include "master/calls/in_flight.hpp"
#include "master/calls/inbox_places.hpp"
#include "master/records/unseen_failures.hpp"

namespace syncrun::detail::master::calls {

class CommandTable {
 public:
  /// Checks whether all ranks of a command are done with it. Each check continues at the rank that was not done last
  /// time.
  class Completion {
   public:
    Completion(const protocol::ControlBlock& control, const protocol::Command& command, std::uint64_t id) noexcept
        : control_(control), id_(id), behind_(command.ranks.begin()), end_(command.ranks.end()) {}
    bool operator()() noexcept {
      while (behind_ != end_ && control_.worker(*behind_).done.load(std::memory_order_seq_cst) >= id_) ++behind_;
      return behind_ == end_;
    }

   private:
    const protocol::ControlBlock& control_;
    std::uint64_t id_;
    protocol::RankSet::Iterator behind_;  // all ranks before this one are done
    protocol::RankSet::Iterator end_;
  };
  /// A command in flight.
  struct Entry {
    std::uint64_t id;
    std::size_t slot;
  };

  CommandTable() = default;
  CommandTable(const CommandTable&) = delete;
  CommandTable& operator=(const CommandTable&) = delete;
  /// Called once, before anything else. `control` is the control block with the commands.
  void attach(protocol::ControlBlock control);

  const protocol::RankSet& all_ranks() const noexcept { return all_ranks_; }
  /// The number of the node of a rank. 0 is the master's node.
  int node_of(int rank) const noexcept { return control_.worker(rank).node; }
  const protocol::NodePlace& place() const noexcept { return control_.place(); }
  /// The last command that was published, or 0.
  std::uint64_t last_published() const noexcept { return next_ - 1; }
  bool is_idle() const noexcept { return entries_.empty(); }
  /// The commands in flight, in the order in which they were published.
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  bool is_in_flight(std::uint64_t id) const noexcept { return find(id) != nullptr; }
  /// The command whose result goes there, if it is in flight.
  std::optional<std::uint64_t> command_of(const CallResult& result) const noexcept;
  // These require a command in flight.
  std::size_t slot_of(std::uint64_t id) const noexcept { return find(id)->slot; }
  protocol::Command& command(std::uint64_t id) const noexcept { return control_.command_in(slot_of(id)); }
  protocol::Outbox& outbox(std::uint64_t id, int rank) const noexcept { return control_.outbox(command(id), rank); }
  InFlight& in_flight(std::uint64_t id) noexcept { return *in_flight_[slot_of(id)]; }
  const InFlight& in_flight(std::uint64_t id) const noexcept { return *in_flight_[slot_of(id)]; }

  // ---- the next command
  /// The command that has to be collected before another one for these ranks: one of the ranks has a full inbox.
  std::optional<std::uint64_t> blocker(const protocol::RankSet& ranks) const noexcept {
    return entries_.empty() ? std::nullopt : first_in_full_inboxes(ranks);
  }
  /// The head of the next command, initialised for these ranks and with this limit (0: none). No rank may have a full
  /// inbox. The head is a draft: publish() copies it into the slot.
  protocol::CommandHead& next(const protocol::RankSet& ranks, os::Milliseconds timeout);
  const protocol::RankSet& next_ranks() const noexcept { return draft_.ranks; }
  /// The rest of the next command, which only calls use.
  protocol::Command& next_slot() noexcept { return control_.command_in(next_slot_); }
  InFlight& next_in_flight() noexcept { return *in_flight_[next_slot_]; }
  /// The next command fails if this one fails. Nothing happens if it is not in flight, has no rank in common with the
  /// next command, or is known to fail: what it should have written then stays as it was.
  void depend_on(std::uint64_t id);
  /// The next command begins only after `rank` is done with this one. If this one must succeed and is not known to fail
  /// yet, the next command also fails if this one fails. Nothing happens if it is not in flight.
  void wait_for(std::uint64_t id, int rank, Requirement requirement);
  /// Where the dependencies of the next command are in the segment, as Dependency, for its ranks.
  void set_dependencies(std::uint64_t offset, std::size_t count) noexcept {
    draft_.dependencies = offset;
    draft_.dependencies_count = static_cast<std::uint32_t>(count);
  }
  /// Makes the command visible to its ranks. Returns its id.
  std::uint64_t publish() noexcept;

  /// A command that was begun but not published.
  struct Aside {
    protocol::CommandHead draft;
    std::size_t slot;
  };
  /// Puts the next command aside. Until take_up(), other commands can be begun and published.
  Aside set_aside() noexcept;
  /// The next command is this one again. Drops a command that was begun in the meantime and not published.
  void take_up(const Aside& aside) noexcept;

  /// A call in flight writes this.
  void note_write(records::WriteLog& writes, std::uint64_t id);

  // ---- completion
  Completion completion_of(std::uint64_t id) const noexcept { return {control_, command(id), id}; }
  bool is_complete(std::uint64_t id) const noexcept { return completion_of(id)(); }
  /// True if the command can be collected now, since those on which it depends are complete too. False if survivors of a
  /// loss have given one of them up.
  bool is_collectable(std::uint64_t id) const;
  /// The first command in flight that can be collected now, without collecting another one before.
  std::optional<std::uint64_t> first_collectable() const;
  /// True if each rank whose worker was not lost is done with all of its commands.
  bool are_survivors_done() const noexcept;
  /// True if all commands on which it depends have been collected.
  bool is_independent(std::uint64_t id) const noexcept;
  /// True if the command has not begun, because a rank is not done with an earlier command on which it depends.
  bool is_held_back(const Entry& entry) const noexcept;
  /// The number of calls up to the command `last` that this rank is not done with.
  std::size_t unfinished_calls_on(int rank, std::uint64_t last) const noexcept;
  /// The first command in flight that this rank runs.
  std::optional<std::uint64_t> first_on(int rank) const noexcept;
  /// The first command in flight that uses this: a Data, a variable or a replicated object.
  std::optional<std::uint64_t> first_user(const void* record) const noexcept;
  /// The first call in flight after this one that makes Values.
  std::optional<std::uint64_t> maker_after(std::uint64_t id) const noexcept;
  /// Whether a call in flight makes Values.
  bool has_makers() const noexcept { return makers_ != 0; }
  /// The result of the command has been handed out. Lets the workers use its memory again, releases the objects that it
  /// kept alive, and passes a failure on to the commands that depend on it.
  void release(std::uint64_t id, const std::shared_ptr<records::CallFailure>& failure) noexcept;
  /// Calls `visit(value, destination)` for what the command makes: new Values, or a copy of one.
  template <class Visit>
  static void for_each_value(const InFlight& call, Visit&& visit) {
    for (const auto& made : call.made) visit(made, records::Destination::new_value());
    if (call.brings_to.is_none()) return;
    visit(call.arguments[0].variable, call.brings_to);
  }
  /// A call that failed together with all others that were in flight.
  struct UnfinishedCall {
    CallResult* result;
    std::shared_ptr<CallResult> kept;  // null if the call has no future
  };
  /// A Value that a call has not made, or a copy of it that a command has not brought.
  struct UnfinishedValue {
    std::shared_ptr<records::VariableRecord> value;
    records::Destination destination;
    std::uint64_t command;
  };
  /// Something that a call may have written only in part.
  struct UnfinishedWrite {
    std::shared_ptr<records::WriteLog> log;
    protocol::RankSet ranks;  // of the call
    std::uint64_t command;
  };
  /// Ends everything in flight without a result. Every rank has passed it. Calls `free` with each temporary.
  struct Unfinished {
    std::vector<UnfinishedCall> calls;
    std::vector<UnfinishedValue> values;
    std::vector<UnfinishedWrite> writes;
    std::vector<std::shared_ptr<records::ObjectRecord>> objects;  // that should have been constructed
  };
  template <class Free>
  Unfinished take_unfinished(Free&& free);
  /// Gives this error to every call in flight. For the end of the session: nothing is published any more.
  void fail_all(const std::exception_ptr& cause) noexcept;
  void forget_all() noexcept;
  /// How many commands the rank has got so far.
  std::uint64_t received(int rank) const noexcept { return inboxes_[static_cast<std::size_t>(rank)].received(); }

  // ---- failures
  /// True if the command has failed on a rank, or if one on which it depends has failed.
  bool has_failed(std::uint64_t id) const noexcept { return has_failed(command(id), in_flight(id)); }
  /// True if the command has failed only because its ranks have given it up: another worker was lost.
  bool was_given_up(std::uint64_t id) const noexcept {
    return has_failed(id) && !in_flight(id).inherited && !first_failed_rank(id);
  }
  static bool has_failed(const protocol::Command& command, const InFlight& call) noexcept {
    return command.failed.load(std::memory_order_acquire) == command.id || call.inherited != nullptr;
  }
  /// The rank that was the first to fail by itself in a command. Empty if no rank failed by itself.
  std::optional<int> first_failed_rank(std::uint64_t id) const noexcept;
  /// True if a rank failed in such a way that its device can no longer be used.
  bool has_lost_device(std::uint64_t id) const noexcept;
  records::UnseenFailures& failures() noexcept { return failures_; }

  // ---- deadlines
  CallClocks& clocks() noexcept { return clocks_; }
  /// Sets the clock of a call to zero.
  void restart_clock(std::uint64_t id) noexcept { clocks_.restart(slot_of(id)); }
  /// The master has waited for this long. Returns the first call whose limit is used up.
  std::optional<std::uint64_t> count_waited(os::Clock::duration waited) noexcept;

  // ---- words
  std::string name_of(std::uint64_t id) const { return in_flight(id).name(); }
  /// The shared variables that the command, and those that depend on it, may have written only in part. A body may have
  /// written to its Local copies without finishing. An Update is committed on all ranks or on none. What only the update of
  /// a train step writes is as before if no rank of the call has begun it.
  std::vector<std::string> half_written_by(std::uint64_t id) const;
  /// The same for everything in flight after a loss. If all ranks had voted ok, those that are left have committed the
  /// updates of the call.
  std::vector<std::string> half_written() const;

 private:
  bool are_all_before_update(const Entry& entry) const;
  bool may_all_have_voted_ok(const Entry& entry) const;
  void pass_on(std::uint64_t id, const std::shared_ptr<records::CallFailure>& failure) noexcept;
  const Entry* find(std::uint64_t id) const noexcept {
    if (entries_.empty()) return nullptr;
    if (entries_.back().id == id) return &entries_.back();  // the usual case
    return search(id);
  }
  const Entry* search(std::uint64_t id) const noexcept;
  std::optional<std::uint64_t> first_in_full_inboxes(const protocol::RankSet& ranks) const noexcept;
  std::size_t take_slot();
  void add_slot();
  std::size_t take_place(protocol::Command& command, int rank, std::uint64_t id) noexcept;
  void note_consumed(const protocol::Command& command) noexcept;
  void tell_consumed(int rank) noexcept;

  protocol::ControlBlock control_;
  protocol::CommandHead draft_;  // of the next command
  protocol::RankSet all_ranks_;
  std::uint64_t next_ = 1;
  bool has_next_slot_ = false;
  std::size_t next_slot_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::size_t> free_slots_;               // the last one is used next, since its memory is in the caches
  std::vector<std::unique_ptr<InFlight>> in_flight_;  // by slot, for the slots that were used so far
  std::vector<InboxPlaces> inboxes_;                  // by rank
  std::size_t makers_ = 0;                            // the number of calls in flight that make Values
  int unconsumed_ = 0;                                // the number of ranks with InboxPlaces::unconsumed
  records::UnseenFailures failures_;
  CallClocks clocks_;
};

template <class Free>
CommandTable::Unfinished CommandTable::take_unfinished(Free&& free) {
  Unfinished unfinished;
  for (const Entry& entry : entries_) {
    InFlight& call = *in_flight_[entry.slot];
    for_each_value(call, [&](const std::shared_ptr<records::VariableRecord>& value, records::Destination to) {
      unfinished.values.push_back({value, to, entry.id});
    });
    for (auto& log : call.written())
      unfinished.writes.push_back({std::move(log), control_.command_in(entry.slot).ranks, entry.id});
    if (call.constructed) unfinished.objects.push_back(call.constructed);
    if (call.result != nullptr) {
      call.result->finished = true;
      unfinished.calls.push_back({call.result, call.kept_result});
    }
    for (const auto offset : call.temporaries) free(offset);
    call.reset();
    free_slots_.push_back(entry.slot);
  }
  entries_.clear();
  makers_ = 0;
  for (const int rank : all_ranks_) {
    inboxes_[static_cast<std::size_t>(rank)].unconsumed = 0;
    control_.worker(rank).consumed.store(last_published(), std::memory_order_release);
  }
  unconsumed_ = 0;
  return unfinished;
}

}  // namespace syncrun::detail::master::calls
