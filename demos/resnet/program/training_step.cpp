#include "demos/resnet/program/training_step.hpp"

#include <type_traits>

#include "demos/resnet/program/functions.hpp"

namespace resnet {
namespace {

/// The rule with the hyperparameters that the user has given.
template <sr::UpdateRule Rule>
Rule rule_of(const OptimizerOptions& options, double learning_rate) {
  Rule rule{};
  rule.learning_rate = learning_rate;
  if constexpr (requires { rule.momentum; }) rule.momentum = options.momentum;
  if (options.optimizer != Optimizer::kAdamW) rule.weight_decay = options.weight_decay;
  if constexpr (requires { rule.decoupled_weight_decay; }) {
    if (options.optimizer == Optimizer::kAdamW) rule.decoupled_weight_decay = options.weight_decay;
  }
  return rule;
}

template <sr::UpdateRule Rule, class Rows>
auto function_for(sr::Session& session, const sr::Replicated<Trainer>& trainer, const sr::Shared<float, 1>& params,
                  const sr::TrainStepOptions& options) {
  if constexpr (std::is_same_v<Rows, DeviceImages>)
    return device_step_function<Rule>(session, trainer, params, options);
  else return step_function<Rule>(session, trainer, params, options);
}

template <sr::UpdateRule Rule, class Rows>
class StepOf : public TrainingStep {
 public:
  StepOf(sr::Session& session, const sr::Replicated<Trainer>& trainer, const Rows& rows,
         const sr::Shared<float, 1>& statistics, const sr::Shared<float, 1>& params, const OptimizerOptions& options,
         const sr::TrainStepOptions& form)
      : options_(options),
        rows_(rows),
        statistics_(statistics),
        step_(function_for<Rule, Rows>(session, trainer, params, form)) {}

  sr::Future<Fit> launch(std::span<const std::int64_t> rows, std::int64_t slices, const StepInput& input,
                         double learning_rate) override {
    sr::CallOptions options{.slices = slices};
    if constexpr (!std::is_same_v<Rows, DeviceImages>) options.batch = rows;
    return step_.async(rows_.images, rows_.labels, rows_.ids, statistics_, input,
                       rule_of<Rule>(options_, learning_rate), options);
  }

  std::vector<std::pair<std::string, sr::Shared<float, 1>>> state() const override {
    std::vector<std::pair<std::string, sr::Shared<float, 1>>> named;
    const auto vectors = step_.state();
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      named.emplace_back("optimizer." + std::string(Rule::kState[i]), vectors[i]);
    }
    return named;
  }
  std::int64_t steps() const override { return step_.steps(); }
  void set_steps(std::int64_t steps) override { step_.set_steps(steps); }

 private:
  OptimizerOptions options_;
  Rows rows_;
  sr::Shared<float, 1> statistics_;
  decltype(function_for<Rule, Rows>(std::declval<sr::Session&>(), std::declval<const sr::Replicated<Trainer>&>(),
                                    std::declval<const sr::Shared<float, 1>&>(),
                                    std::declval<const sr::TrainStepOptions&>())) step_;
};

}  // namespace

std::unique_ptr<TrainingStep> make_training_step(sr::Session& session, const sr::Replicated<Trainer>& trainer,
                                                 const TrainingRows& rows, const sr::Shared<float, 1>& statistics,
                                                 const sr::Shared<float, 1>& params, const OptimizerOptions& options,
                                                 const sr::TrainStepOptions& form) {
  const auto make = [&]<class Rule>(std::type_identity<Rule>) {
    return std::visit(
        [&]<class Rows>(const Rows& of_them) -> std::unique_ptr<TrainingStep> {
          return std::make_unique<StepOf<Rule, Rows>>(session, trainer, of_them, statistics, params, options, form);
        },
        rows);
  };
  switch (options.optimizer) {
    case Optimizer::kSgd: return make(std::type_identity<sr::Sgd>());
    case Optimizer::kMomentum: return make(std::type_identity<sr::Momentum>());
    case Optimizer::kNesterov: return make(std::type_identity<sr::Nesterov>());
    case Optimizer::kAdagrad: return make(std::type_identity<sr::Adagrad>());
    case Optimizer::kRmsProp: return make(std::type_identity<sr::RmsProp>());
    case Optimizer::kAdadelta: return make(std::type_identity<sr::Adadelta>());
    case Optimizer::kAdam:
    case Optimizer::kAdamW: return make(std::type_identity<sr::Adam>());
    case Optimizer::kAdamax: return make(std::type_identity<sr::Adamax>());
  }
  throw UsageError("--optimizer: expected one of those that --help lists");
}

}  // namespace resnet
