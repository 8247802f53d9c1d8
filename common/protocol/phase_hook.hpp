#pragma once

// A hook that a worker calls when it enters a phase. The library that users install contains no hook
// (no_phase_hook.cpp). The fault tests link a second library, which has a hook that makes the worker fail
// (tests/fault/points). Both libraries are made of the same objects except for the one with the hook.

#include <cstdint>

#include "common/protocol/control_block.hpp"

namespace syncrun::detail::protocol {

class PhaseHook {
 public:
  PhaseHook() = default;
  PhaseHook(const PhaseHook&) = delete;
  PhaseHook& operator=(const PhaseHook&) = delete;
  virtual ~PhaseHook() = default;

  /// The worker calls this when it enters `phase` of the command with this number. An exception of the hook counts as
  /// one of the phase.
  virtual void at(std::uint64_t command, Phase phase) const = 0;
};

/// The hook of this rank, or null if there is none. It lives as long as the process.
const PhaseHook* phase_hook_of(int rank);

}  // namespace syncrun::detail::protocol
