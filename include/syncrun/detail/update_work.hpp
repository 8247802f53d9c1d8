#pragma once

// The untyped seam of update(): what a device is asked to do.

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "syncrun/detail/export.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/update_rules.hpp"

namespace syncrun::detail {

class WorkerCore;

inline constexpr std::size_t kMostStateVectors = 2;

/// One update: float32 or float64, all arrays of `elements`, in place, none overlapping another.
struct UpdateWork {
  enum class RulePlace : bool { host, device };

  UpdateKind kind;
  DType dtype;
  const void* rule;  // the struct of update_rules.hpp
  RulePlace place;   // where that is
  void* params;
  const void* gradient;
  std::array<void*, kMostStateVectors> state;
  std::size_t elements;
};

/// "adam".
SYNCRUN_EXPORT std::string_view to_string(UpdateKind kind) noexcept;

/// Throws Error (usage) that names the hyperparameter unless the rule makes sense: all finite, rates and epsilons not
/// negative, decays from 0 to below 1, `step` from 1.
SYNCRUN_EXPORT void check_update_rule(UpdateKind kind, const void* rule);

/// Throws Error (usage) unless every vector has as many elements as there are parameters.
SYNCRUN_EXPORT void check_update_lengths(UpdateKind kind, std::size_t params, std::size_t gradient,
                                         std::span<const std::size_t> state, std::span<const std::string_view> names);

/// Worker: on its device, on a CUDA device in stream order. Checks the rule where it is the host's.
SYNCRUN_EXPORT void apply_update(WorkerCore& core, const UpdateWork& work);

}  // namespace syncrun::detail
