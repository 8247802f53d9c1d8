#pragma once

// Makes functions that the serial program calls from the methods of a Trainer. Only this file says which body runs on
// which kind of device. If the build has CUDA, CUDA devices get bodies of their own. Workers capture the work of a step
// once per shape into a CUDA graph and replay it. The program is the same for both kinds of devices.

#include <cstdint>
#include <span>
#include <utility>

#include "demos/mnist/rows.hpp"
#include "demos/mnist/trainer.hpp"

namespace mnist {

/// A training step on batches from shared memory. Every device computes the loss and the gradient of its rows. The step
/// averages both over all rows, and updates the parameters by Nesterov's method. The parameters are the same on every
/// device.
template <class T>
auto step_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer, const sr::Shared<T, 1>& params) {
  using Body = Trainer<T>;
  constexpr sr::TrainStepOptions kOptions{.name = "step"};
  if constexpr (requires { &Body::loss_and_gradient_cuda; }) {
    return sr::train_step<sr::Nesterov>(session, &Body::loss_and_gradient,
                                        sr::replayable(&Body::loss_and_gradient_cuda), trainer, params, kOptions);
  } else {
    return sr::train_step<sr::Nesterov>(session, &Body::loss_and_gradient, trainer, params, kOptions);
  }
}

/// The same on batches that the devices already hold.
template <class T>
auto step_on_shards_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer,
                             const sr::Shared<T, 1>& params) {
  using Body = Trainer<T>;
  constexpr sr::TrainStepOptions kOptions{.name = "step_on_shards"};
  if constexpr (requires { &Body::loss_and_gradient_of_shards_cuda; }) {
    return sr::train_step<sr::Nesterov>(session, &Body::loss_and_gradient_of_shards,
                                        sr::replayable(&Body::loss_and_gradient_of_shards_cuda), trainer, params,
                                        kOptions);
  } else {
    return sr::train_step<sr::Nesterov>(session, &Body::loss_and_gradient_of_shards, trainer, params, kOptions);
  }
}

template <class T>
auto evaluate_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer) {
  if constexpr (requires { &Trainer<T>::evaluate_cuda; }) {
    return session.function(&Trainer<T>::evaluate, &Trainer<T>::evaluate_cuda, trainer, "evaluate");
  } else {
    return session.function(&Trainer<T>::evaluate, trainer, "evaluate");
  }
}

/// The step for --input host: the workers pick the rows of a batch from shared memory.
template <class T>
class StepOnRows {
 public:
  StepOnRows(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer, const sr::Shared<T, 1>& params,
             const SharedRows<T>& training)
      : training_(training), step_(step_function(session, trainer, params)) {}

  /// Trains on these rows. Returns their mean loss before the update.
  double operator()(std::span<const std::int64_t> batch, const demos::StepKey& dropout, const sr::Nesterov& rule) {
    return step_(training_.images, training_.labels, training_.ids, dropout, rule, {.batch = batch});
  }
  sr::Shared<T, 1> velocity() const { return step_.state()[0]; }

 private:
  const SharedRows<T>& training_;
  decltype(step_function(std::declval<sr::Session&>(), std::declval<const sr::Replicated<Trainer<T>>&>(),
                         std::declval<const sr::Shared<T, 1>&>())) step_;
};

/// The step for --input device: the rows are scattered once, and each worker picks the rows of a batch that its device
/// holds.
template <class T>
class StepOnShards {
 public:
  StepOnShards(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer, const sr::Shared<T, 1>& params,
               const SharedRows<T>& training)
      : shards_(session, training), step_(step_on_shards_function(session, trainer, params)) {}

  double operator()(std::span<const std::int64_t> batch, const demos::StepKey& dropout, const sr::Nesterov& rule) {
    return step_(shards_.images, shards_.labels, shards_.ids, dropout, rule, {.batch_s = shards_.select(batch)});
  }
  sr::Shared<T, 1> velocity() const { return step_.state()[0]; }

 private:
  Shards<T> shards_;
  decltype(step_on_shards_function(std::declval<sr::Session&>(), std::declval<const sr::Replicated<Trainer<T>>&>(),
                                   std::declval<const sr::Shared<T, 1>&>())) step_;
};

}  // namespace mnist
