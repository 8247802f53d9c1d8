#pragma once

// One random program, which runs in a session and in the oracle at the same time. This header has what does not depend on
// the operations: the arrays with what they may contain, the calls in flight, and the failures.
//
// The oracle knows the contents of every copy, except after a failure. Then a copy may contain one of several states,
// element by element: what it had before, and what each call that failed would have written (docs/failures.md). As soon as
// the program has seen the failure, it takes all results, reads all copies that are not certain, checks them, and goes on
// with what they contain.

#include <sys/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/random/functions.hpp"
#include "tests/random/numbers.hpp"

namespace random_test {

/// A call in flight, or a collective.
struct Call {
  std::string text;
  std::vector<int> ranks;
  std::set<int> faults;      // it may fail with one of these
  bool meets_fault = false;  // it fails with one of them for certain
  int source = -1;           // a copy of a variable only reads on this rank, so calls there need not notice its failure
  bool fails_itself = false;     // and not because of another call
  bool dies = false;             // it kills a worker
  bool is_master = false;        // not a call of a function: the master itself moves values, and may not notice a fault
  bool is_doubtful = false;      // it may fail
  bool may_lack_values = false;  // a copy that it needs may have no values
  bool has_ended = false;
  bool has_failed = false;
  std::set<int> sources;  // ranks that hold Values that it reads
  std::vector<std::shared_ptr<Call>> depends_on;

  /// Throws Difference if it must fail.
  void require_success() const;
  bool must_fail() const { return (meets_fault || dies) && !is_master; }
  /// Whether the loss of this rank may make it fail.
  bool may_be_lost_with(int rank) const;
};

/// What a copy may contain after a call.
struct State {
  Numbers numbers;
  std::shared_ptr<Call> by{};  // null: for certain
  bool is_wild = false;        // if the call fails, the contents may be any
  bool may_vanish = false;     // if the call fails, there may be no values

  bool is_settled() const { return by == nullptr || (by->has_ended && !by->has_failed); }
  bool is_doubtful() const { return !is_settled() && by->is_doubtful; }
};

/// A copy of a variable or of a Value.
struct Copy {
  bool is_assigned = false;
  bool is_wild = false;  // any contents of the last shape
  bool may_have_no_values = false;
  std::vector<State> states;  // what it may contain, the newest last
  std::vector<Numbers> past;  // what it contained earlier, since all results were last taken

  bool is_certain() const {
    return !is_wild &&
           std::none_of(states.begin(), states.end(), [](const State& state) { return state.is_doubtful(); });
  }
  const Numbers& newest() const { return states.back().numbers; }
  void set(Numbers numbers) {
    is_assigned = true;
    is_wild = may_have_no_values = false;
    for (State& state : states) past.push_back(std::move(state.numbers));
    states.clear();
    states.push_back({.numbers = std::move(numbers), .by = nullptr});
  }
  void add(State state) {
    while (states.size() > 1 && states[1].is_settled()) {
      past.push_back(std::move(states.front().numbers));
      states.erase(states.begin());
    }
    if (!is_assigned) {
      may_have_no_values = true;
      states.push_back({.numbers = state.numbers, .by = nullptr});
    }
    is_assigned = true;
    states.push_back(std::move(state));
  }
};

/// A Shared or a Value.
class Array {
 public:
  Array(std::string name, bool is_value, int copies) : name(std::move(name)), is_value(is_value) {
    this->copies.resize(static_cast<std::size_t>(copies));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  virtual ~Array() = default;

  /// Reads one copy (that of the Value) in the session.
  virtual Numbers fetch(int rank) = 0;
  /// Asks a function on this rank to read the copy.
  virtual void read_on(int rank) = 0;
  /// Of a Value: asks the session who has a copy.
  virtual void find_holders() {}

  Copy& copy(int rank) { return copies[is_value ? 0 : static_cast<std::size_t>(rank)]; }
  bool is_certain() const {
    for (const Copy& each : copies) {
      if (!each.is_certain()) return false;
    }
    return true;
  }

  std::string name;
  bool is_value;
  std::vector<Copy> copies;
  std::vector<std::shared_ptr<Call>> writers;  // calls in flight that may write it
  bool is_used_since_kill = false;

  // Of a Shared: whether a lost copy is restored from another one. Nothing: the pages do not say.
  std::optional<bool> is_replicated = true;
  // Of a Value: the ranks that have a copy for certain, and whether the host has one.
  /// A copy to a rank, or to the host (-1), begins to move. What was there before may be lost with its rank meanwhile.
  void begin_move(int to) {
    if (to >= 0 ? holders.contains(to) : is_on_host) return;
    moved_among.insert(holders.begin(), holders.end());
    if (to >= 0) moved_among.insert(to);
  }
  std::set<int> moved_among;  // ranks between which copies have begun to move since all results were last taken
  std::set<int> holders;
  bool is_on_host = false;
  int pinned_to = -1;
  std::shared_ptr<Call> made_by;  // the call that makes it
};

/// A result that the program has not taken yet.
class Result {
 public:
  explicit Result(std::shared_ptr<Call> call) : call(std::move(call)) {}
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  virtual ~Result() = default;
  virtual bool is_ready() = 0;
  /// Gets it and checks it.
  virtual void take() = 0;

  std::shared_ptr<Call> call;
};

/// What the driver counts.
struct Counts {
  int operations = 0;
  int kills = 0;
  int double_losses = 0;  // kills that took a second worker along
  int throws = 0;
};

struct Options {
  std::string devices;
  bool replaces_workers = false;
};

/// Data of the program.
struct Input {
  virtual ~Input() = default;
  std::string name;
  Numbers numbers;
};

class Program {
 public:
  Program(sr::Session& session, const Options& options, const AllFunctions& functions,
          const RanksOfRows& ranks_of_rows);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Runs the operations with these numbers. Throws Difference.
  void run(std::uint64_t seed, const std::vector<int>& operations);

  const std::vector<std::string>& text() const { return text_; }
  const Counts& counts() const { return counts_; }

  // The rest is for the operations.

  // ---- the plan of an operation ---------------------------------------------------------------------------------

  void say(const std::string& line);
  int ranks() const { return session_.world_size(); }
  std::vector<int> all_ranks() const;
  std::vector<int> some_ranks(Choices& choices);
  bool is_gpu(int rank) const { return session_.devices()[static_cast<std::size_t>(rank)].starts_with("cuda"); }
  /// The rows that each of these ranks gets of a call with this many rows.
  std::vector<std::int64_t> division(const std::vector<int>& ranks, std::int64_t rows);
  /// A fault for a call on these ranks, often none. Only `ranks_with_rows` run the body.
  Fault choose_fault(Choices& choices, const std::vector<int>& ranks_with_rows, bool can_fail);

  // ---- calls ----------------------------------------------------------------------------------------------------

  std::shared_ptr<Call> begin_call(const std::string& text, const std::vector<int>& ranks, const Fault& fault = {});
  /// A collective or a transfer of the master.
  std::shared_ptr<Call> begin_transfer(const std::string& text, const std::vector<int>& ranks);
  /// The call uses the array on its ranks. If it depends on a failed call, it fails too.
  void use(Call& call, Array& array);
  /// The call writes `numbers` to one copy. Call it for all copies after all use().
  void write(const std::shared_ptr<Call>& call, Array& array, int rank, State state);
  /// The same for an Update: a call that fails by itself does not write it.
  void update(const std::shared_ptr<Call>& call, Array& array, int rank, Numbers numbers);
  /// The call may write the array. Call it after all write().
  void wrote(const std::shared_ptr<Call>& call, Array& array);
  /// A worker is dying or dead, and the program has not seen it yet.
  bool may_lose() const { return lost_rank_ >= 0; }

  /// True if a call on these ranks may find a new worker that has another rank's values, because functions had given the
  /// ranks different ones.
  bool is_ambiguous(Array& array, const std::vector<int>& ranks);

  /// Runs a statement that belongs to the call, and explains what it throws. Returns whether it threw nothing.
  bool attempt(Call& call, const std::function<void()>& statement);
  void take(std::size_t index);

  // ---- failures -------------------------------------------------------------------------------------------------

  /// A rank may die if no other one does, and if no call may fail before it gets there.
  bool can_be_killed() const { return has_faults && has_kills && lost_rank_ < 0 && faults_in_flight_.empty(); }
  Fault deadly_fault(Choices& choices, int rank);
  /// Kills a worker, and may stop another one for some time before that.
  void kill(int rank, int delay_us, int stopped_rank);
  /// Waits for all calls, or for those of a rank. This may throw any failure whose future was dropped.
  void wait_in(Call& call, int rank);
  /// After an error: takes all results and checks all copies that are not certain.
  void settle();
  void settle_if_needed();
  /// Makes the copies of this array certain.
  void make_certain(Array& array);

  sr::Session& session() { return session_; }
  template <class T>
  const Functions<T>& functions() const {
    return std::get<Functions<T>>(functions_);
  }
  /// Makes a name that no array of the session has.
  std::string new_name(const std::string& kind);

  std::vector<std::shared_ptr<Array>> arrays;
  std::vector<std::shared_ptr<Input>> inputs;
  std::vector<std::unique_ptr<Result>> results;
  std::vector<double> weights;
  bool has_faults = false;
  bool has_kills = false;

 private:
  void run_one(Choices& choices);
  void explain(const sr::Error& error, const Call* call);
  void expect_loss_of(int rank);
  void take_all();
  void wait_for_all();
  void see_loss();
  void check_faults_were_seen() const;
  void check_copy(Array& array, int rank);
  /// Those of the same kind as the lost rank, if there are any. Else those of the kind of the first one.
  std::vector<int> comparable_survivors() const;
  /// What the worker from which a new one takes its values may have had until now.
  Copy copy_of_survivor(Array& array) const;
  void check_new_worker(Array& array, const Copy& of_survivor);
  bool check_value(Array& array);
  /// Whether another GPU's worker was lost too, because NCCL connected it to the lost one (worker/comm/end_if_stuck.hpp).
  bool has_lost_two() const;
  /// Takes what it now has, whatever that is. False if a Value has nothing.
  bool learn_anew(Array& array);
  void end_failures();

  sr::Session& session_;
  Options options_;
  const AllFunctions& functions_;
  const RanksOfRows& ranks_of_rows_;
  std::vector<std::string> text_;
  Counts counts_;
  int names_ = 0;
  int faults_ = 0;
  std::set<int> faults_in_flight_;
  std::set<int> seen_faults_;
  std::set<int> optional_faults_;           // of calls that may fail before they get there
  std::set<std::string> may_be_undefined_;  // what failed calls may have written
  std::set<std::string> undefined_;         // what errors have named
  std::set<std::string> restored_;
  std::vector<std::shared_ptr<Call>> calls_;  // since the last time that all was certain
  int lost_rank_ = -1;
  int lost_pid_ = 0;
  std::vector<int> pids_;  // of all ranks before the loss
  bool has_told_loss_ = false;
  bool has_error_ = false;
  std::jthread killer_;
};

/// The number in "fault #N.", or -1.
int fault_in(const std::string& text);

}  // namespace random_test
