#pragma once

// What moves when the vector of a train step's parameters is laid out anew.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "syncrun/detail/master_interface.hpp"
#include "syncrun/train_step_options.hpp"

namespace syncrun::detail {

/// A parameter, and its elements [begin, end) of the vector. The same parameter has the same id in all layouts.
struct StepPart {
  std::int64_t id;
  std::int64_t begin;
  std::int64_t end;
};

/// The layouts before and after a change. `ids` has the parameters that still exist, also those that are not trained.
struct StepLayout {
  std::span<const StepPart> before;
  std::span<const StepPart> after;
  std::span<const std::int64_t> ids;
  ParameterRange range{};  // what the step trains after the change
};

/// The parameters of a step that moves to another layout, and the name of the step's range. It is empty if the step trains
/// all parameters, or if the range has no name.
struct MovingParams {
  const VariableRecord& record;
  std::string_view network;
};

class KeptParts;

/// The vectors of state, and the numbers of the StepPlan. The vectors begin where the range begins.
struct StepVectors {
  std::size_t element_bytes;
  std::vector<std::vector<std::byte>> state;
  std::vector<double> plan;
  NonFiniteGradient non_finite;
  std::shared_ptr<const KeptParts> kept;  // of parameters that were trained before; null at first
  ParameterRange range{};                 // what the step trains
};

}  // namespace syncrun::detail
