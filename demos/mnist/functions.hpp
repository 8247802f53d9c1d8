#pragma once

// The methods of a Trainer as functions of the serial program: the one place that says which body runs on
// which kind of device. A body for another kind goes beside the CPU's here, session.function(&cpu_method,
// &other_method, trainer), and the program stays as it is.

#include "demos/mnist/trainer.hpp"

namespace mnist {

template <class T>
auto step_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer) {
  return session.function(&Trainer<T>::step, trainer, "step");
}

template <class T>
auto step_on_shards_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer) {
  return session.function(&Trainer<T>::step_on_shards, trainer, "step_on_shards");
}

template <class T>
auto evaluate_function(sr::Session& session, const sr::Replicated<Trainer<T>>& trainer) {
  return session.function(&Trainer<T>::evaluate, trainer, "evaluate");
}

}  // namespace mnist
