#include "tests/random/program.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace random_test {
namespace {

bool meet(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int rank) { return std::find(b.begin(), b.end(), rank) != b.end(); });
}

bool has(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

}  // namespace

int fault_in(const std::string& text) {
  const auto at = text.find("fault #");
  return at == std::string::npos ? -1 : std::stoi(text.substr(at + 7));
}

bool Call::may_be_lost_with(int rank) const {
  return has(ranks, rank) || sources.contains(rank) ||
         std::any_of(depends_on.begin(), depends_on.end(),
                     [&](const auto& call) { return call->may_be_lost_with(rank); });
}

void Call::require_success() const {
  if (!must_fail()) return;
  throw Difference("'" + text + "' has not failed" +
                   (dies ? ", although a worker died" : ": expected fault #" + std::to_string(*faults.begin())));
}

Program::Program(sr::Session& session, const Options& options, const AllFunctions& functions,
                 const RanksOfRows& ranks_of_rows)
    : session_(session), options_(options), functions_(functions), ranks_of_rows_(ranks_of_rows) {}

Program::~Program() = default;

std::string Program::new_name(const std::string& kind) { return kind + std::to_string(++names_); }

void Program::say(const std::string& line) { text_.push_back(line); }

std::vector<int> Program::all_ranks() const {
  std::vector<int> all;
  for (int rank = 0; rank < ranks(); ++rank) all.push_back(rank);
  return all;
}

std::vector<int> Program::some_ranks(Choices& choices) {
  if (choices.chance(40)) return all_ranks();
  if (choices.chance(50)) return {choices.index(static_cast<std::size_t>(ranks()))};
  std::vector<int> some;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (choices.chance(50)) some.push_back(rank);
  }
  if (some.empty()) some.push_back(ranks() - 1);
  return some;
}

std::vector<std::int64_t> Program::division(const std::vector<int>& ranks, std::int64_t rows) {
  std::vector<std::int64_t> counts(ranks.size(), 0);
  const auto parts = static_cast<std::int64_t>(ranks.size());
  if (weights.empty()) {
    for (std::int64_t part = 0; part < parts; ++part)
      counts[static_cast<std::size_t>(part)] = rows / parts + (part < rows % parts ? 1 : 0);
    return counts;
  }
  // The pages promise proportions only, so the program is asked.
  if (may_lose()) settle();
  std::vector<sr::Device> devices;
  double all = 0;
  for (const int rank : ranks) {
    devices.push_back(session_.device(rank));
    all += weights[static_cast<std::size_t>(rank)];
  }
  const auto owners = ranks_of_rows_.on(devices)({.rows = rows});
  if (owners.rows() != rows || !std::is_sorted(owners.begin(), owners.end()))
    throw Difference("a wrong division of rows");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    counts[i] = std::count(owners.begin(), owners.end(), ranks[i]);
    const double right = static_cast<double>(rows) * weights[static_cast<std::size_t>(ranks[i])] / all;
    if (std::abs(static_cast<double>(counts[i]) - right) >= 1.001)
      throw Difference("rows are not divided by the weights");
  }
  return counts;
}

Fault Program::choose_fault(Choices& choices, const std::vector<int>& ranks_with_rows, bool can_fail) {
  Fault fault;
  if (choices.chance(35)) {
    fault.spin_us = static_cast<int>(choices.number(1, choices.chance(10) ? 6000 : 600));
    fault.spin_rank = choices.chance(50) ? Fault::kAll : choices.one_of(ranks_with_rows);
  }
  const bool fails = choices.chance(12);
  const bool dies = choices.chance(40);
  const int rank = choices.one_of(ranks_with_rows);
  const bool all = choices.chance(15);
  const Stage stage = choices.one_of({Stage::before, Stage::half, Stage::after});
  if (!has_faults || !can_fail || !fails || ranks_with_rows.empty()) return fault;
  if (dies && can_be_killed()) {
    fault.how = How::dies;
    fault.rank = rank;
  } else {
    fault.rank = all ? Fault::kAll : rank;
  }
  fault.stage = stage;
  fault.number = ++faults_;
  return fault;
}

void Program::run(std::uint64_t seed, const std::vector<int>& operations) {
  Choices plan(seed);
  has_faults = plan.chance(60);
  has_kills = plan.chance(60) && options_.replaces_workers;
  for (const int operation : operations) {
    // Each operation has random numbers of its own, so the others stay the same when one is left out.
    Choices choices(seed * 1000 + static_cast<std::uint64_t>(operation) + 1);
    run_one(choices);
    ++counts_.operations;
    settle_if_needed();
  }
  while (!results.empty() && !has_error_) take(static_cast<std::size_t>(plan.index(results.size())));
  settle();
  for (const auto& array : arrays) {
    for (int rank = 0; rank < static_cast<int>(array->copies.size()); ++rank) {
      if (!array->copy(rank).is_assigned) continue;
      if (array->copy(rank).is_wild) continue;
      compare(array->fetch(rank), array->copy(rank).newest(),
              "at the end, '" + array->name + "' on rank " + std::to_string(rank));
    }
  }
  session_.set_weights({});
}

Fault Program::deadly_fault(Choices& choices, int rank) {
  Fault fault;
  fault.how = How::dies;
  fault.rank = rank;
  fault.stage = choices.one_of({Stage::half, Stage::after});
  fault.spin_us = static_cast<int>(choices.number(0, choices.chance(70) ? 500 : 4000));
  fault.spin_rank = rank;
  fault.number = ++faults_;
  return fault;
}

// ---- calls --------------------------------------------------------------------------------------------------------

std::shared_ptr<Call> Program::begin_call(const std::string& text, const std::vector<int>& ranks, const Fault& fault) {
  auto call = std::make_shared<Call>();
  call->text = text;
  call->ranks = ranks;
  std::string line = text;
  if (fault.spin_us != 0) {
    line += ", takes " + std::to_string(fault.spin_us) + " us";
    if (fault.spin_rank != Fault::kAll) line += " on rank " + std::to_string(fault.spin_rank);
  }
  if (fault.rank != Fault::kNobody) {
    const char* const stage = fault.stage == Stage::before ? "before"
                              : fault.stage == Stage::half ? "half-way in"
                                                           : "after";
    line += std::string(fault.how == How::dies ? ", dies " : ", throws ") + stage + " its work, fault #" +
            std::to_string(fault.number) + ", on " +
            (fault.rank == Fault::kAll ? "all ranks" : "rank " + std::to_string(fault.rank));
    call->fails_itself = call->is_doubtful = true;
    if (fault.how == How::dies) {
      call->dies = true;
      expect_loss_of(fault.rank);
    } else {
      call->faults.insert(fault.number);
      call->meets_fault = true;
      faults_in_flight_.insert(fault.number);
    }
  }
  if (may_lose()) call->is_doubtful = true;
  if (!line.empty()) say(line);
  calls_.push_back(call);
  return call;
}

std::shared_ptr<Call> Program::begin_transfer(const std::string& text, const std::vector<int>& ranks) {
  auto call = begin_call(text, ranks);
  call->is_master = true;
  return call;
}

void Program::use(Call& call, Array& array) {
  for (const auto& writer : array.writers) {
    if (!array.is_value && !meet(writer->ranks, call.ranks)) continue;
    call.depends_on.push_back(writer);
    if (!writer->faults.empty() && call.fails_itself) optional_faults_.insert(call.faults.begin(), call.faults.end());
    call.faults.insert(writer->faults.begin(), writer->faults.end());
    const bool is_at_source = call.ranks == std::vector{writer->source};
    const bool has_to_notice = writer->is_master ? !writer->faults.empty() : writer->meets_fault;
    call.meets_fault = call.meets_fault || (has_to_notice && !is_at_source);
    call.is_doubtful = call.is_doubtful || writer->is_doubtful;
  }
  for (const int rank : call.ranks) {
    const Copy& copy = array.copy(rank);
    call.may_lack_values = call.may_lack_values || copy.may_have_no_values ||
                           std::any_of(copy.states.begin(), copy.states.end(),
                                       [](const State& state) { return state.may_vanish && state.is_doubtful(); });
  }
  if (array.is_value) {
    for (const int rank : call.ranks) {
      if (!array.holders.contains(rank)) call.sources.insert(array.holders.begin(), array.holders.end());
    }
    // A move may still be in flight. This call waits for it, and fails if one of its ranks is lost.
    call.sources.insert(array.moved_among.begin(), array.moved_among.end());
  }
  if (may_lose()) array.is_used_since_kill = true;
}

void Program::write(const std::shared_ptr<Call>& call, Array& array, int rank, State state) {
  state.by = call;
  array.copy(rank).add(std::move(state));
}

void Program::update(const std::shared_ptr<Call>& call, Array& array, int rank, Numbers numbers) {
  if (!call->fails_itself) write(call, array, rank, {.numbers = std::move(numbers), .by = nullptr});
}

bool Program::is_ambiguous(Array& array, const std::vector<int>& ranks) {
  if (!may_lose() || array.is_value || array.is_replicated == false || !has(ranks, lost_rank_)) return false;
  const Copy& own = array.copy(lost_rank_);
  for (const int rank : comparable_survivors()) {
    const Copy& other = array.copy(rank);
    if (!own.is_assigned || !other.is_assigned) return false;
    return own.newest().values != other.newest().values || own.newest().slack != 0;
  }
  return false;
}

void Program::wrote(const std::shared_ptr<Call>& call, Array& array) {
  array.writers.push_back(call);
  if (!call->faults.empty()) may_be_undefined_.insert(array.name);
}

bool Program::attempt(Call& call, const std::function<void()>& statement) {
  try {
    statement();
    return true;
  } catch (const sr::Error& error) {
    call.has_ended = call.has_failed = call.is_doubtful = true;
    has_error_ = true;
    explain(error, &call);
    return false;
  }
}

void Program::take(std::size_t index) {
  const std::unique_ptr<Result> result = std::move(results[index]);
  results.erase(results.begin() + static_cast<std::ptrdiff_t>(index));
  Call& call = *result->call;
  attempt(call, [&] {
    result->take();
    call.has_ended = true;
  });
}

// ---- failures -----------------------------------------------------------------------------------------------------

void Program::expect_loss_of(int rank) {
  lost_rank_ = rank;
  pids_ = session_.worker_pids();
  lost_pid_ = pids_[static_cast<std::size_t>(rank)];
  has_told_loss_ = false;
  for (const auto& call : calls_) {
    if (!call->has_ended && call->may_be_lost_with(rank)) call->is_doubtful = true;
  }
  for (const auto& array : arrays) array->is_used_since_kill = !array->writers.empty() || !array->is_certain();
}

void Program::kill(int rank, int delay_us, int stopped_rank) {
  const std::chrono::microseconds delay(delay_us);
  expect_loss_of(rank);
  const int stopped_pid = stopped_rank < 0 ? 0 : session_.worker_pids()[static_cast<std::size_t>(stopped_rank)];
  killer_ = std::jthread([pid = lost_pid_, delay, stopped_pid] {
    if (stopped_pid != 0) ::kill(stopped_pid, SIGSTOP);
    std::this_thread::sleep_for(delay);
    ::kill(pid, SIGKILL);
    if (stopped_pid == 0) return;
    std::this_thread::sleep_for(delay);
    ::kill(stopped_pid, SIGCONT);
  });
}

void Program::wait_in(Call& call, int rank) {
  call.faults = faults_in_flight_;
  attempt(call, [&] {
    if (rank < 0) session_.wait();
    else session_.synchronize(session_.device(rank));
  });
  call.has_ended = true;
}

void Program::explain(const sr::Error& error, const Call* call) {
  const sr::Failure& failure = error.failure();
  const std::string text = error.what();
  const std::string of = call == nullptr ? "" : "'" + call->text + "': ";
  std::string line = "  error";
  if (call != nullptr) line += " of '" + call->text + "'";
  line += ": " + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  say(line);
  undefined_.insert(failure.undefined.begin(), failure.undefined.end());
  restored_.insert(failure.restored.begin(), failure.restored.end());
  has_error_ = true;
  if (const int fault = fault_in(text); fault >= 0) {
    const bool is_expected = call == nullptr ? faults_in_flight_.contains(fault) : call->faults.contains(fault);
    if (!is_expected) throw Difference(of + "does not depend on this fault: " + text);
    if (error.kind() != sr::ErrorKind::function) throw Difference(of + "the error has another kind: " + text);
    seen_faults_.insert(fault);
    if (may_lose()) return;
    for (const std::string& name : failure.undefined) {
      if (!may_be_undefined_.contains(name))
        throw Difference(of + "names '" + name + "', which no failed call writes: " + text);
    }
    return;
  }
  if (may_lose() && error.kind() == sr::ErrorKind::worker_lost) {
    if (call != nullptr && !call->is_master && !call->may_be_lost_with(lost_rank_)) {
      throw Difference(of + "does not depend on rank " + std::to_string(lost_rank_) + ": " + text);
    }
    if (failure.rank == lost_rank_ && failure.respawned_pid != 0) has_told_loss_ = true;
    return;
  }
  // A call that was made after the loss requires values of the new worker, or those that a copy should have brought.
  if (error.kind() == sr::ErrorKind::usage && call != nullptr && (may_lose() || call->may_lack_values)) return;
  throw Difference(of + "unexpected error: " + text);
}

void Program::take_all() {
  while (!results.empty()) take(results.size() - 1);
}

void Program::wait_for_all() {
  for (std::size_t i = 0; i <= calls_.size() + 2; ++i) {
    try {
      return session_.wait();
    } catch (const sr::Error& error) {
      explain(error, nullptr);
    }
  }
  throw Difference("wait() throws more failures than there were calls");
}

void Program::see_loss() {
  if (killer_.joinable()) killer_.join();
  for (int i = 0; i < 4; ++i) {
    try {
      static_cast<void>(ranks_of_rows_());
      break;
    } catch (const sr::Error& error) {
      explain(error, nullptr);
    }
  }
  const std::string rank = "rank " + std::to_string(lost_rank_);
  if (session_.worker_pids()[static_cast<std::size_t>(lost_rank_)] == lost_pid_) {
    throw Difference(rank + " was killed, and calls go on as if it had not");
  }
  ++counts_.kills;
  if (!has_told_loss_) throw Difference("no error told that " + rank + " was replaced");
}

void Program::check_faults_were_seen() const {
  if (may_lose()) return;
  for (const int fault : faults_in_flight_) {
    if (!seen_faults_.contains(fault) && !optional_faults_.contains(fault))
      throw Difference("no error told of fault #" + std::to_string(fault));
  }
}

void Program::settle() {
  say("  all results are taken");
  if (killer_.joinable()) killer_.join();
  take_all();
  wait_for_all();
  if (may_lose()) see_loss();
  check_faults_were_seen();
  // Calls whose results were dropped.
  for (const auto& call : calls_) {
    if (call->has_ended) continue;
    if (may_lose() && call->may_be_lost_with(lost_rank_)) continue;
    call->has_ended = true;
    call->has_failed = call->must_fail();
  }
  const bool has_lost_two = this->has_lost_two();
  if (has_lost_two) ++counts_.double_losses;
  for (std::size_t i = 0; i < arrays.size();) {
    Array& array = *arrays[i];
    bool is_alive = true;
    if (has_lost_two) {
      is_alive = learn_anew(array);
    } else if (array.is_value) {
      is_alive = check_value(array);
    } else {
      const Copy of_survivor = may_lose() ? copy_of_survivor(array) : Copy();
      for (int rank = 0; rank < ranks(); ++rank) {
        if (rank != lost_rank_) check_copy(array, rank);
      }
      if (may_lose()) check_new_worker(array, of_survivor);
    }
    for (Copy& copy : array.copies) copy.past.clear();
    array.moved_among.clear();
    if (is_alive) ++i;
    else arrays.erase(arrays.begin() + static_cast<std::ptrdiff_t>(i));
  }
  end_failures();
}

void Program::end_failures() {
  counts_.throws += static_cast<int>(faults_in_flight_.size());
  for (const auto& array : arrays) array->writers.clear();
  faults_in_flight_.clear();
  seen_faults_.clear();
  optional_faults_.clear();
  may_be_undefined_.clear();
  undefined_.clear();
  restored_.clear();
  calls_.clear();
  lost_rank_ = -1;
  has_error_ = false;
}

void Program::settle_if_needed() {
  if (has_error_ || (may_lose() && session_.worker_pids()[static_cast<std::size_t>(lost_rank_)] != lost_pid_)) settle();
}

}  // namespace random_test
