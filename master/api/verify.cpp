// Session::verify: makes one call in several divisions of its rows, and compares. Between the calls, what they have
// changed is put back.

#include "syncrun/verify.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "common/arrays/extents.hpp"
#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"
#include "master/api/verified_values.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/detail/step_plan.hpp"

namespace syncrun::detail {

namespace {

using Kind = VerifiedRun::Kind;
// A session can have many ranks. So many of them make the call alone.
constexpr int kMostRanksAlone = 8;
// More parts are not told apart.
constexpr std::int64_t kMostParts = 1 << 20;

/// All values of one rank's copy.
struct Copy {
  Extents extents{};
  std::vector<std::byte> bytes;
  friend bool operator==(const Copy&, const Copy&) = default;
};

Copy copy_of(VariableRecord& variable, int rank) {
  Copy copy;
  std::pair<Copy*, const VariableRecord*> context{&copy, &variable};
  get_from_rank(variable, rank, {&context, [](void* of, const Extents& extents) -> void* {
                                   auto& [to, record] = *static_cast<std::pair<Copy*, const VariableRecord*>*>(of);
                                   to->extents = extents;
                                   to->bytes.resize(master::records::bytes_of(*record, extents));
                                   return to->bytes.data();
                                 }});
  return copy;
}

/// The copies of a variable on all ranks, to be put back later. Equal copies are kept once.
class KeptVariable {
 public:
  explicit KeptVariable(const std::shared_ptr<VariableRecord>& variable)
      : variable_(variable), is_replicated_(variable->is_replicated) {
    const int world_size = variable->session->world_size();
    for (int rank = 0; rank < world_size; ++rank) {
      const auto& facts = variable->copies(variable->session->commands().settled());
      if (!facts.assigned.has(static_cast<std::size_t>(rank))) {
        copies_.emplace_back();
        continue;
      }
      auto copy = std::make_shared<const Copy>(copy_of(*variable, rank));
      const auto same =
          std::ranges::find_if(copies_, [&](const auto& other) { return other != nullptr && *other == *copy; });
      copies_.push_back(same == copies_.end() ? std::move(copy) : *same);
    }
  }

  void put_back() const {
    const bool are_equal = copies_.front() != nullptr &&
                           std::ranges::all_of(copies_, [&](const auto& copy) { return copy == copies_.front(); });
    if (are_equal) broadcast_values(std::array{delivery_of(*copies_.front())});
    for (std::size_t rank = 0; rank < copies_.size() && !are_equal; ++rank) {
      if (copies_[rank]) set_on_rank(delivery_of(*copies_[rank]), static_cast<int>(rank), {});
    }
    variable_->is_replicated = is_replicated_;
  }

 private:
  Delivery delivery_of(const Copy& copy) const {
    return {.variable = variable_, .values = copy.bytes.data(), .extents = copy.extents};
  }

  std::shared_ptr<VariableRecord> variable_;
  std::vector<std::shared_ptr<const Copy>> copies_;  // by rank; null where the rank has no values
  bool is_replicated_;
};

class Verifying {
 public:
  Verifying(SessionCore& session, const VerifiedCall& call, const VerifyOptions& options)
      : session_(session), call_(call), parts_(call.parts()), options_(options) {
    check();
    weights_ = weights_of(session_);
    for (const auto* variables : {&parts_.updates, &parts_.written, &parts_.own}) {
      for (const auto& variable : *variables) kept_.emplace_back(variable);
    }
    if (parts_.gradient) kept_.emplace_back(parts_.gradient);
    call_.change_state(StateAction::keep);
  }
  /// Puts back what the last run has changed.
  void finish() {
    try {
      set_weights(session_, weights_);
      put_back(StateAction::restore);
    } catch (...) {
      call_.change_state(StateAction::drop);
      throw;
    }
    call_.change_state(StateAction::drop);
  }

  std::vector<VerifiedRun> runs() {
    set_weights(session_, {});
    add(run_on({Kind::one, ""}, 0));
    put_back(StateAction::restore);
    add(run_on({Kind::one_again, "on rank 0 again"}, 0));
    put_back(StateAction::restore_buffers);
    add(run_on({Kind::other_random_numbers, "on rank 0 with other random numbers"}, 0));
    const int world_size = session_.world_size();
    for (int rank = 1; rank < std::min(world_size, kMostRanksAlone); ++rank) {
      put_back(StateAction::restore);
      add(run_on({Kind::another_rank, "on rank " + std::to_string(rank)}, rank));
    }
    if (world_size > kMostRanksAlone)
      notes_.push_back("ranks from " + std::to_string(kMostRanksAlone) + " on did not make the call alone");
    if (world_size > 1) run_on_all_ranks(world_size);
    for (const int slices : {2, 3}) {
      put_back(StateAction::restore);
      run_in_slices(slices);
    }
    wait_all(session_);  // throws if a worker was lost and replaced meanwhile
    return std::move(runs_);
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes = notes_;
    for (const auto& variable : parts_.written)
      notes.push_back("variable '" + variable->name + "' is a Local: what ranks write there was not compared");
    for (const OutputType& output : parts_.function->signature.outputs) {
      if (output.is_kept) notes.emplace_back("a Keep was not compared");
    }
    return notes;
  }

  ModuleFacts facts() const { return module_facts_from(call_.change_state(StateAction::describe)); }

  bool reads_whole_arrays() const {
    const auto& arguments = parts_.function->signature.arguments;
    return std::ranges::any_of(arguments, [](const ArgumentType& argument) {
      return argument.kind == ArgumentKind::broadcast || argument.kind == ArgumentKind::local_read;
    });
  }

 private:
  void check() const {
    const std::string who = "verify: '" + parts_.function->name + "' ";
    if (parts_.function->session.get() != &session_) text::throw_usage(who + "is of another session");
    for (const ArgumentType& argument : parts_.function->signature.arguments) {
      if (argument.kind == ArgumentKind::sliced || argument.kind == ArgumentKind::per_worker)
        text::throw_usage(who + "has a Sliced or a PerWorker parameter, so one rank cannot compute what all compute");
    }
    for (const auto* variables : {&parts_.updates, &parts_.written}) {
      for (const auto& variable : *variables) {
        if (variable->value) text::throw_usage(who + "may write a Value, which cannot be put back: pass a Shared");
      }
    }
  }

  void put_back(StateAction action) const {
    for (const KeptVariable& variable : kept_) variable.put_back();
    call_.change_state(action);
  }
  /// One rank has all rows. A train step runs on all ranks, because it divides its state among them.
  VerifiedRun run_on(VerifiedRun run, int rank, int slices = 1) {
    std::vector<double> only(static_cast<std::size_t>(session_.world_size()), 0.0);
    only[static_cast<std::size_t>(rank)] = 1;
    if (parts_.gradient) {
      set_weights(session_, only);
      return made(std::move(run), {}, slices, rank);
    }
    return made(std::move(run), std::array{rank}, slices, rank);
  }
  void run_on_all_ranks(int world_size) {
    const std::string all = std::to_string(world_size) + " ranks";
    const int parts = static_cast<int>(std::min<std::int64_t>(world_size * parts_.slices, kMostParts));
    put_back(StateAction::restore);
    set_weights(session_, {});
    add(made({Kind::all, "on all " + all, parts}, {}, parts_.slices, 0));
    put_back(StateAction::restore);
    std::vector<double> falling(static_cast<std::size_t>(world_size));
    std::iota(falling.rbegin(), falling.rend(), 1.0);
    set_weights(session_, falling);
    add(made({Kind::other_shares, "on all " + all + " with unequal shares"}, {}, parts_.slices, 0));
    set_weights(session_, {});
  }

  /// Rank 0 in slices, unless the call has fewer rows.
  void run_in_slices(int slices) {
    const std::string text = "in " + std::to_string(slices) + " slices";
    try {
      add(run_on({Kind::slices, "on rank 0 " + text, slices}, 0, slices));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      notes_.push_back("the call was not made " + text + ": " + error.what());
    }
  }

  void add(VerifiedRun run) {
    if (!runs_.empty()) drop_same(runs_.front(), run, options_);
    runs_.push_back(std::move(run));
  }

  /// Makes the call. The first one may not fail. `rank` is one that has the results.
  VerifiedRun made(VerifiedRun run, std::span<const int> ranks, std::int64_t slices, int rank) {
    CallResult result;
    try {
      call_.run(result, ranks, slices);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::function || run.kind == Kind::one) throw;
      run.failure = error.what();
      return run;
    }
    add_outputs(run, result);
    for (const auto& variable : parts_.updates) {
      const Copy copy = copy_of(*variable, rank);
      run.values.push_back({"variable '" + variable->name + "'", copy.extents, numbers_in(*variable, copy)});
    }
    if (parts_.gradient) add_gradient(run);
    return run;
  }

  static std::vector<double> numbers_in(const VariableRecord& variable, const Copy& copy) {
    return numbers_of(variable.dtype, copy.bytes.data(), copy.bytes.size() / size_of(variable.dtype));
  }

  void add_outputs(VerifiedRun& run, const CallResult& result) const {
    const SignatureInfo& signature = parts_.function->signature;
    for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
      const OutputType& type = signature.outputs[i];
      const std::string_view name = i < signature.output_names.size() ? signature.output_names[i] : std::string_view();
      if (type.is_kept || (parts_.choice != nullptr && (parts_.choice->mask >> i & 1U) == 0)) continue;
      VerifiedValues values;
      if (!name.empty()) values.what = "output '" + std::string(name) + "'";
      else if (signature.outputs.size() == 1) values.what = "the result";
      else values.what = "output " + std::to_string(i);
      const RawOutput& output = result.outputs[i];
      values.is_gathered = type.reduction == Reduction::gather;
      values.extents = output.extents;
      const std::span shape(output.extents.data(), type.dimensions);
      const void* const elements = type.dimensions == 0 ? output.scalar.data() : output.buffer.data();
      values.numbers = numbers_of(type.dtype, elements, arrays::checked_bytes(type.dtype, shape) / size_of(type.dtype));
      run.values.push_back(std::move(values));
    }
  }

  /// The gradient of a sharded step is valid in each rank's share only.
  void add_gradient(VerifiedRun& run) const {
    VariableRecord& gradient = *parts_.gradient;
    const Copy whole = copy_of(gradient, 0);
    VerifiedValues values{"the gradient", whole.extents, numbers_in(gradient, whole), false, true};
    const int world_size = session_.world_size();
    for (int rank = 1; parts_.is_sharded && rank < world_size; ++rank) {
      const std::vector<double> numbers = numbers_in(gradient, copy_of(gradient, rank));
      const auto share = arrays::share_of(whole.extents[0], world_size, rank);
      std::copy(numbers.begin() + share.begin, numbers.begin() + share.end, values.numbers.begin() + share.begin);
    }
    if (parts_.clipping) undo_clipping(values.numbers);
    run.values.push_back(std::move(values));
  }
  /// A clipped gradient hides its length.
  void undo_clipping(std::vector<double>& gradient) const {
    const std::vector<double> numbers = numbers_in(*parts_.clipping, copy_of(*parts_.clipping, 0));
    const double factor = numbers[StepPlan::kNorm] / numbers[StepPlan::kClipNorm];
    for (double& each : gradient) each *= std::max(factor, 1.0);
  }

  SessionCore& session_;
  const VerifiedCall& call_;
  const VerifiedParts& parts_;
  const VerifyOptions& options_;
  std::vector<double> weights_;
  std::vector<KeptVariable> kept_;
  std::vector<VerifiedRun> runs_;
  std::vector<std::string> notes_;
};

}  // namespace

Verification verify_call(SessionCore& session, const VerifiedCall& call, const VerifyOptions& options) {
  wait_all(session);
  Verifying verifying(session, call, options);
  Verification found;
  try {
    const std::vector<VerifiedRun> runs = verifying.runs();
    found = compare_runs(runs, verifying.facts(), verifying.reads_whole_arrays(), options);
  } catch (...) {
    try {
      verifying.finish();
    } catch (const Error&) {  // the session is over, or lost a worker: the first error says why
    }
    throw;
  }
  verifying.finish();
  for (std::string& note : verifying.notes()) found.notes.push_back(std::move(note));
  found.has_several_ranks = session.world_size() > 1;
  return found;
}

}  // namespace syncrun::detail
