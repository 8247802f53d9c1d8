#pragma once

// The methods of a Trainer as functions of the serial program: the one place that says which body runs on
// which kind of device. Where the build has CUDA, CUDA devices get bodies of their own; the steps are captured
// once per shape and replayed. The program is the same.

#include "demos/mnist/trainer.hpp"

namespace mnist {

template <class T>
auto step_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer) {
  if constexpr (requires { &Trainer<T>::step_cuda; }) {
    return session.function(&Trainer<T>::step, sr::replayable(&Trainer<T>::step_cuda), trainer, "step");
  } else {
    return session.function(&Trainer<T>::step, trainer, "step");
  }
}

template <class T>
auto step_on_shards_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer) {
  if constexpr (requires { &Trainer<T>::step_on_shards_cuda; }) {
    return session.function(&Trainer<T>::step_on_shards, sr::replayable(&Trainer<T>::step_on_shards_cuda), trainer,
                            "step_on_shards");
  } else {
    return session.function(&Trainer<T>::step_on_shards, trainer, "step_on_shards");
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

}  // namespace mnist
