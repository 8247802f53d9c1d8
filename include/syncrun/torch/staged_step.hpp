#pragma once

// StagedStep: one step that trains several networks, each with a rule and a gradient of its own. range_of(): the place of
// a network in the variable of all parameters. Called by the master.

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "syncrun/detail/names.hpp"
#include "syncrun/error.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/staged_loss.hpp"
#include "syncrun/torch/training.hpp"
#include "syncrun/train_step.hpp"

namespace syncrun::libtorch {

namespace detail {

/// The place of a network among these parameters. Errors begin with the caller.
inline ParameterRange range_among(const std::vector<ParameterPart>& parts, std::string_view network,
                                  std::string_view caller) {
  const std::string name(network);
  ParameterRange range{-1, -1};
  for (const ParameterPart& part : parts) {
    if (part.name != name && !part.name.starts_with(name + ".")) continue;
    if (range.begin == -1) range = {part.begin, part.begin};
    if (part.begin != range.end)
      throw Error(ErrorKind::usage, std::string(caller) + ": other parameters are between those of '" + name +
                                        "' and '" + part.name + "', expected them next to each other");
    range.end = part.end;
  }
  if (range.begin != -1) return range;
  throw Error(ErrorKind::usage, std::string(caller) + ": the module has no parameters '" + name + "' or '" + name +
                                    ".*' that require a gradient");
}

}  // namespace detail

/// Returns the place of a submodule, or of one parameter, in the variable that parameters() returns. The submodule
/// "generator" has all parameters "generator.*". TrainStepOptions::range takes the result. Throws Error (usage) if the
/// module has no such parameters, or if other parameters are registered between them.
template <class Net>
ParameterRange range_of(Session& session, const Replicated<Replica<Net>>& net, std::string_view network) {
  return detail::range_among(parts(session, net), network, "range_of");
}

/// A network that a staged step trains.
struct Stage {
  std::string_view network{};  ///< The name of the submodule. See range_of().
  /// As of any train step. `range` is that of the network, and `name` of the loss.
  TrainStepOptions options{};
};

/// A step that trains several networks. staged_step() makes it. `Steps` and `Rules` are tuples with the step and the rule
/// of each stage, and `Passed...` lists the parameters of the loss for which the caller passes an argument.
template <class Steps, class Rules, class... Passed>
class StagedStep {
 public:
  static constexpr std::size_t kStages = std::tuple_size_v<Rules>;  ///< The number of networks.

  /// Syncrun calls this. A program calls staged_step().
  StagedStep(Steps steps, std::array<std::string, kStages> networks, Function<void> release)
      : steps_(std::move(steps)), networks_(std::move(networks)), release_(std::move(release)) {}

  /// Trains all networks, in the order of the stages, and returns their losses, each reduced over all ranks. Each stage
  /// gets the rows of the call again. Blocks. Throws as a train step. If a stage fails, the stages before it have been
  /// done, and the networks of the others are as before. steps() of each part tells. What the stages have kept is released.
  std::array<double, kStages> operator()(typename syncrun::detail::Parameter<Passed>::Passed... arguments,
                                         const Rules& rules, const CallOptions& options = {}) try {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<double, kStages>{
          std::get<I>(steps_)(arguments..., std::get<I>(rules), options)...};  // in this order
    }(std::make_index_sequence<kStages>{});
  } catch (...) {
    release();
    throw;
  }
  /// The train step of a stage, for its state, its gradient and its number of steps. A program does not call it by itself.
  template <std::size_t kStage>
  auto& part() noexcept {
    return std::get<kStage>(steps_);
  }
  /// The name of the network of a stage.
  const std::string& network(std::size_t stage) const { return networks_.at(stage); }

 private:
  /// The stages that have run keep their graphs for those after them, which do not come.
  void release() const {
    try {
      release_();
    } catch (...) {  // the step throws what came first; restore() releases too
    }
  }

  Steps steps_;
  std::array<std::string, kStages> networks_;
  Function<void> release_;
};

/// Makes a step that trains several networks of one module, from a loss function that returns a StagedLoss:
///
///   auto step = lt::staged_step<gan_loss, sr::Adam, sr::Adam>(session, net, params, {{"discriminator"}, {"generator"}});
///   const auto [d, g] = step(images, noise, {sr::Adam{.learning_rate = 2e-4}, sr::Adam{.learning_rate = 1e-4}});
///
/// Each stage has a rule, and the name of its network. Only the gradient of this network is computed, averaged and kept.
/// Throws Error (usage) if the number of stages is not that of the rules, or as range_of() and train_step().
template <auto kLoss, UpdateRule... Rules, class Net, class T>
auto staged_step(Session& session, const Replicated<Replica<Net>>& net, const Shared<T, 1>& params,
                 std::initializer_list<Stage> stages) {
  constexpr std::size_t kStages = detail::kStagesOf<typename detail::LossTraits<decltype(kLoss)>::Returned>;
  static_assert(kStages != 0, "a staged step needs a loss function that returns a StagedLoss<N>");
  static_assert(kStages == sizeof...(Rules), "a staged step has as many rules as its StagedLoss<N> has stages: N");
  if (stages.size() != kStages)
    throw Error(ErrorKind::usage, "staged_step: " + std::to_string(stages.size()) + " networks, expected " +
                                      std::to_string(kStages) + ", one for each stage of the loss");
  std::vector<TrainStepOptions> options;
  std::array<std::string, kStages> networks;
  for (const Stage& stage : stages) {
    networks[options.size()] = stage.network;
    detail::check_not_fully_sharded(stage.options.form, "staged_step");
    options.push_back(stage.options);
    options.back().range = range_of(session, net, stage.network);
    if (options.back().name.empty()) options.back().name = syncrun::detail::function_name<kLoss>();
  }
  using Bodies = detail::BodiesOf<kLoss, Net, T>;
  auto steps = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple{syncrun::train_step<Rules>(session, Bodies::template stage<I, CpuWorker>(),
                                                 Bodies::template stage<I, CudaWorker>(), net, params, options[I])...};
  }(std::make_index_sequence<kStages>{});
  using Made = syncrun::detail::Listed<StagedStep, typename Bodies::Passed, decltype(steps), std::tuple<Rules...>>;
  return Made(std::move(steps), std::move(networks),
              session.function(&Replica<Net>::release_stages, net, "the end of a staged step"));
}

}  // namespace syncrun::libtorch
