#pragma once

// What moves when the vector of a train step's parameters is laid out anew.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
};

class KeptParts;

/// Whole vectors of state, and the numbers of the StepPlan.
struct StepVectors {
  std::size_t element_bytes;
  std::vector<std::vector<std::byte>> state;
  std::vector<double> plan;
  NonFiniteGradient non_finite;
  std::shared_ptr<const KeptParts> kept;  // of parameters that were trained before; null at first
};

}  // namespace syncrun::detail
