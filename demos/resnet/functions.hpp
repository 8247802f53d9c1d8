#pragma once

// The methods of a Trainer as functions of the serial program: the one place that says which body runs on which kind of
// device. Where the build has CUDA, CUDA devices get bodies of their own; steps are captured once per shape and replayed.
// The program is the same.

#include "demos/resnet/trainer.hpp"

namespace resnet {

/// T is Trainer; a parameter, so that a body may be missing.
template <sr::UpdateRule Rule, class T>
auto step_function(sr::Session& session, const sr::Replicated<T>& trainer, const sr::Shared<float, 1>& params,
                   const sr::TrainStepOptions& options = {.name = "step"}) {
  if constexpr (requires { &T::loss_and_gradient_cuda; }) {
    return sr::train_step<Rule>(session, &T::loss_and_gradient, sr::replayable(&T::loss_and_gradient_cuda), trainer,
                                params, options);
  } else {
    return sr::train_step<Rule>(session, &T::loss_and_gradient, trainer, params, options);
  }
}

/// The same of rows that are on the devices already.
template <sr::UpdateRule Rule, class T>
auto device_step_function(sr::Session& session, const sr::Replicated<T>& trainer, const sr::Shared<float, 1>& params,
                          const sr::TrainStepOptions& options = {.name = "step"}) {
  if constexpr (requires { &T::device_loss_and_gradient_cuda; }) {
    return sr::train_step<Rule>(session, &T::device_loss_and_gradient,
                                sr::replayable(&T::device_loss_and_gradient_cuda), trainer, params, options);
  } else {
    return sr::train_step<Rule>(session, &T::device_loss_and_gradient, trainer, params, options);
  }
}

template <class T>
auto evaluate_function(sr::Session& session, const sr::Replicated<T>& trainer) {
  if constexpr (requires { &T::evaluate_cuda; }) {
    return session.function(&T::evaluate, &T::evaluate_cuda, trainer, "evaluate");
  } else {
    return session.function(&T::evaluate, trainer, "evaluate");
  }
}

}  // namespace resnet
