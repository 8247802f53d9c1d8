#pragma once

// Makes functions that the serial program calls from the methods of a Trainer. Only this file says which body runs on
// which kind of device. If the build has CUDA, CUDA devices get bodies of their own. Workers capture the work of a step
// once per shape into a CUDA graph and replay it. The program is the same for both kinds of devices.

#include "demos/resnet/program/trainer.hpp"

namespace resnet {

/// T is Trainer. It is a template parameter so that the code compiles in builds where Trainer has no body for CUDA.
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

/// The same for rows that are already on the devices.
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
