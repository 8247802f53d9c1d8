#pragma once

// What a worker calls each time it comes to a phase. The library that users install has no hook (no_phase_hook.cpp). The one
// that the fault tests link has one that makes the worker fail there (tests/fault/points). Nothing else differs between the
// two: both are linked from the same objects.

#include <cstdint>

#include "common/control_block.hpp"

namespace syncrun::detail {

class PhaseHook {
 public:
  PhaseHook() = default;
  PhaseHook(const PhaseHook&) = delete;
  PhaseHook& operator=(const PhaseHook&) = delete;
  virtual ~PhaseHook() = default;

  /// The rank is at the phase, in the command of that number. What it throws, the phase has thrown.
  virtual void at(std::uint64_t command, Phase phase) const = 0;
};

/// The hook of this rank, kept for the life of the process; null for none.
const PhaseHook* phase_hook_of(int rank);

}  // namespace syncrun::detail
