#pragma once

// change(): models that change between steps. restore(): the model of a worker that replaces a lost one. Called by the
// master.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/detail/construct.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/step_layout.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/scaled_step.hpp"
#include "syncrun/torch/staged_step.hpp"
#include "syncrun/torch/training.hpp"
#include "syncrun/train_step.hpp"

namespace syncrun::libtorch {

namespace detail {

/// The bodies for a function that changes a module.
template <auto kChange, class Net, class T, class F>
struct ChangeBodies {
  static_assert(sizeof(F) == 0,
                "change() needs a function of the module and of the arguments of a body: void unfreeze(Net& net, ...)");
};
template <auto kChange, class Net, class T, class... P>
struct ChangeBodies<kChange, Net, T, void (*)(Net&, P...)> {
  template <class Worker>
  static constexpr auto body() {
    using Change = ReplicaDescription (Replica<Net>::*)(Worker&, P..., Local<const T, 1>);
    return Change(&Replica<Net>::template change<kChange, Worker, T, P...>);
  }
  template <class Worker>
  static constexpr auto again() {
    using Repeat = void (Replica<Net>::*)(Worker&, std::int64_t, P...);
    return Repeat(&Replica<Net>::template repeat_change<kChange, Worker, P...>);
  }
};

inline std::vector<syncrun::detail::StepPart> step_parts(const Gather<std::int64_t, 2>& places) {
  std::vector<syncrun::detail::StepPart> parts;
  for (std::int64_t i = 0; i < places.rows(); ++i) parts.push_back({places[i][0], places[i][1], places[i][2]});
  return parts;
}

/// A train step that goes on after a change, and the name of the network that it trains. Empty: all parameters.
template <class Step>
struct MovingStep {
  Step& step;
  std::string network;
};

/// The train steps of what a program passes to change().
template <UpdateRule Rule, class T, class R, class Inner, class... P>
auto train_steps_of(TrainStep<Rule, T, R, Inner, P...>& step) {
  return std::tuple(MovingStep<TrainStep<Rule, T, R, Inner, P...>>{step, {}});
}
template <class Step, class Rule, class... P>
auto train_steps_of(ScaledStep<Step, Rule, P...>& step) {
  return train_steps_of(step.inner());
}
template <class Steps, class Rules, class... P>
auto train_steps_of(StagedStep<Steps, Rules, P...>& step) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple(MovingStep<std::tuple_element_t<I, Steps>>{step.template part<I>(), step.network(I)}...);
  }(std::make_index_sequence<std::tuple_size_v<Rules>>{});
}

/// The changes of a module since its construction, for workers that replace lost ones.
template <class Net>
struct ChangeHistory : syncrun::detail::ObjectHistory {
  ChangeHistory() : ObjectHistory("Call restore(session, net), which repeats the changes of the module there") {}

  using Repeat = std::function<void(Session& session, const Replicated<Replica<Net>>& net, int rank)>;
  std::vector<Repeat> changes;
  bool is_ending = false;  // the last one was laid out, but not ended on all ranks
};
template <class Net>
std::shared_ptr<ChangeHistory<Net>> history_of(const Replicated<Replica<Net>>& net) {
  return std::static_pointer_cast<ChangeHistory<Net>>(syncrun::detail::history_of(*net.record()));
}

/// Whether an argument of a change can be kept for a worker that comes later.
template <class T>
inline constexpr bool kCanKeep = std::is_same_v<T, std::string>;
template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !requires(const T& value) { value.data(); })
inline constexpr bool kCanKeep<T> = true;

template <class Net>
void end_change(Session& session, const Replicated<Replica<Net>>& net) {
  session.function(&Replica<Net>::end_change, net, "change")();
}

/// The ranks that have a new module. Repeats the changes there. Unless done() is called, the ranks remain new.
template <class Net>
class RenewedRanks {
 public:
  RenewedRanks(Session& session, const Replicated<Replica<Net>>& net)
      : object_(net.record()), ranks_(syncrun::detail::take_renewed(*object_)) {
    try {
      repeat(session, net);
    } catch (...) {
      syncrun::detail::put_back_renewed(*object_, ranks_);
      throw;
    }
  }
  ~RenewedRanks() {
    if (!is_done_) syncrun::detail::put_back_renewed(*object_, ranks_);
  }
  RenewedRanks(const RenewedRanks&) = delete;
  RenewedRanks& operator=(const RenewedRanks&) = delete;

  bool is_empty() const noexcept { return ranks_.empty(); }
  void done() noexcept { is_done_ = true; }
  /// The first rank that has kept its module, or -1.
  int source(int world_size) const {
    for (int rank = 0; rank < world_size; ++rank) {
      if (std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end()) return rank;
    }
    return -1;
  }

 private:
  void repeat(Session& session, const Replicated<Replica<Net>>& net) const {
    const auto history = history_of(net);
    if (!history) return;
    for (const int rank : ranks_) {
      for (const auto& change : history->changes) change(session, net, rank);
    }
    if (!history->is_ending) return;
    end_change(session, net);
    history->is_ending = false;
  }

  std::shared_ptr<syncrun::detail::ObjectRecord> object_;
  std::vector<int> ranks_;
  bool is_done_ = false;
};

template <class Net>
void sync_from(Session& session, const Replicated<Replica<Net>>& net, int rank) {
  session.function(&Replica<Net>::template sync_buffers<CpuWorker>, &Replica<Net>::template sync_buffers<CudaWorker>,
                   net, "sync_buffers")(BufferSync::rank0, rank);
}

}  // namespace detail

/// Changes the module between steps: freezes or unfreezes parts, or replaces, adds or removes layers or parameters. Every
/// worker calls the function with its module:
///
///   void unfreeze(Net& net) {
///     for (auto& each : net.backbone->parameters()) each.requires_grad_(true);
///   }
///   sr::libtorch::change<unfreeze>(session, net, params, std::tie(step));
///
/// `steps` are all train steps of `params` that go on afterwards, also scaled and staged ones. In a staged step, each stage
/// trains the parameters that its network has then. The function may take further arguments, as a body. New values come
/// from LibTorch's generator of the CPU with a seed that is the same on all ranks. On a GPU, the module is there, and
/// Syncrun then moves what the function has added.
///
/// `params` then has the parameters that require a gradient now, and has another length. Steps and evaluations go on with
/// it. In a step, a parameter that stays keeps the state of the rule and its group. A new one, also with the name of an
/// old one, has the state zero and no group. A frozen one keeps its state until it is unfrozen. As in PyTorch, rules with
/// a number of steps (such as Adam) count for each parameter the steps in which it was trained. A checkpoint does not
/// contain these differences. TrainStep::gradient() is zero. Each rank has the values of the first rank that
/// has kept its module, which is rank 0 unless it was replaced, also in buffers.
///
/// Throws Error (usage) before the function is called, if a step has another variable, or a range without being a stage of a
/// staged step, or if the state of a step or `params` is undefined. Throws Error (usage) also if the modules then differ
/// between ranks, or have no parameters, or none in the network of a stage, and Error (function) for an error of the
/// function. After that, `params` and the steps are as before, but the modules may be changed: all calls with them are errors
/// until another change() succeeds. A step of `params` that is not in `steps` is an error from then on, and so is a step with
/// a range.
///
/// In a session that replaces lost workers (OnWorkerLost::respawn), the changes that succeeded are repeated on new workers,
/// see restore(). So the arguments are values or texts, and a function that fails must leave the module as it was. If a
/// worker is lost in change(), call it again: then the function runs a second time on the ranks that it has already
/// changed, so it must see whether it has. If the worker was lost after all modules were laid out, the steps are errors
/// that say to make them again.
template <auto kChange, class Net, class T, class... Steps, class... Arguments>
void change(Session& session, const Replicated<Replica<Net>>& net, Shared<T, 1>& params, std::tuple<Steps&...> steps,
            const Arguments&... arguments) {
  using Access = syncrun::detail::HandleAccess;
  syncrun::detail::VariableRecord& record = *syncrun::detail::record_of(params);
  auto moving = std::apply([](Steps&... each) { return std::tuple_cat(detail::train_steps_of(each)...); }, steps);
  std::apply(
      [&](const auto&... each) {
        (Access::check_may_move(each.step, syncrun::detail::MovingParams{record, each.network}), ...);
      },
      moving);
  detail::RenewedRanks renewed(session, net);
  const int source = std::max(renewed.source(session.world_size()), 0);
  auto history = detail::history_of(net);
  if (history && renewed.source(session.world_size()) == -1)
    throw Error(ErrorKind::usage,
                "change: no rank has kept its module, so frozen parameters and buffers have the values of the "
                "constructor. Call restore(session, net), and read them from a file with load()");
  const bool is_kept = syncrun::detail::replaces_lost_workers(*Access::core(session));
  if (is_kept && !(detail::kCanKeep<syncrun::detail::Stored<Arguments>> && ...))
    throw Error(ErrorKind::usage,
                "change: the session replaces lost workers (OnWorkerLost::respawn), and repeats the change on them, "
                "expected arguments that are numbers, other values without pointers, or texts");
  constexpr std::size_t kSteps = std::tuple_size_v<decltype(moving)>;
  const auto vectors_before = std::apply(
      [](const auto&... each) {
        return std::array<syncrun::detail::StepVectors, kSteps>{Access::vectors(each.step)...};
      },
      moving);
  const std::vector<T> old = params.get(source).to_vector();
  using Bodies = detail::ChangeBodies<kChange, Net, T, decltype(kChange)>;
  const auto changed = session.function(Bodies::template body<CpuWorker>(), Bodies::template body<CudaWorker>(), net,
                                        "change")(arguments..., params);
  detail::check_layouts("change", changed.layouts.span());
  const auto described = session.function(&Replica<Net>::describe_change, net, "change").on_rank(0)();
  const auto before = detail::step_parts(described.before);
  const auto after = detail::step_parts(described.after);
  const auto parts = detail::parts_of(session, net, detail::Layout::proposed);
  std::size_t at = 0;
  const auto move = [&](std::int64_t made, const std::string& network) {
    const ParameterRange range =
        network.empty() ? ParameterRange{0, changed.elements.value()} : detail::range_among(parts, network, "change");
    return syncrun::detail::move_parts(vectors_before[at++], {before, after, described.ids.span(), range}, made);
  };
  const auto vectors = std::apply(
      [&](const auto&... each) {
        return std::array<syncrun::detail::StepVectors, kSteps>{move(each.step.steps(), each.network)...};
      },
      moving);
  try {
    params.broadcast(std::vector<T>(static_cast<std::size_t>(changed.elements.value())));
    session.function(&Replica<Net>::template lay_out<CpuWorker, T>, &Replica<Net>::template lay_out<CudaWorker, T>, net,
                     "change")(params);
    params.broadcast(source);
  } catch (...) {
    params.broadcast(old);
    throw;
  }
  syncrun::detail::raise_layout(record);  // a step that is not laid out below is an error from now on
  if (is_kept) {
    if (!history) syncrun::detail::history_of(*net.record()) = history = std::make_shared<detail::ChangeHistory<Net>>();
    const auto number = static_cast<std::int64_t>(history->changes.size());
    history->changes.push_back([number, kept = std::tuple<syncrun::detail::Stored<Arguments>...>(arguments...)](
                                   Session& own_session, const Replicated<Replica<Net>>& own_net, int rank) {
      const auto again = own_session.function(Bodies::template again<CpuWorker>(), Bodies::template again<CudaWorker>(),
                                              own_net, "change");
      std::apply([&](const auto&... each) { again.on_rank(rank)(number, each...); }, kept);
    });
    history->is_ending = true;
  }
  detail::end_change(session, net);
  if (history) history->is_ending = false;
  if (changed.has_buffers.value() != 0) detail::sync_from(session, net, source);
  at = 0;
  std::apply([&](auto&... each) { (Access::lay_out(each.step, vectors[at++]), ...); }, moving);
  renewed.done();
}

/// The source of the buffers and frozen parameters that restore() gives to new modules.
enum class Restored : std::uint8_t {
  nothing,         ///< No worker was replaced since the last call.
  from_a_rank,     ///< All ranks have those of the first rank that has kept its module.
  as_constructed,  ///< No rank has kept its module. They are those of the constructor: load() can read others.
};

/// After a worker was lost and replaced (OnWorkerLost::respawn): repeats on the new worker the changes of the module, in
/// their order and with their arguments, and gives it the buffers and frozen parameters of a rank that has kept its module.
/// `params` and the state of steps are variables, which Failure::restored and Failure::undefined list.
///
///   } catch (const sr::Error& error) {
///     if (error.kind() != sr::ErrorKind::worker_lost) throw;
///     lt::restore(session, net);
///     params.broadcast(kept);
///   }
///
/// Without a change, a new worker's module has the buffers of the constructor until restore() or sync_buffers(). After a
/// change, all calls with the module are errors until restore(). Throws Error (usage) if the modules then differ between
/// ranks, and the errors of the functions.
template <class Net>
Restored restore(Session& session, const Replicated<Replica<Net>>& net) {
  detail::RenewedRanks renewed(session, net);
  if (renewed.is_empty()) return Restored::nothing;
  const auto description = session.function(&Replica<Net>::template describe<double>, net, "restore")();
  detail::check_layouts("restore", description.layouts.span());
  session.function(&Replica<Net>::release_stages, net, "restore")();  // a staged step could not reach new modules
  const int source = renewed.source(session.world_size());
  if (source != -1 && description.has_buffers.value() != 0) detail::sync_from(session, net, source);
  renewed.done();
  return source == -1 ? Restored::as_constructed : Restored::from_a_rank;
}

}  // namespace syncrun::libtorch
