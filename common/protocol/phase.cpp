#include "common/protocol/phase.hpp"

namespace syncrun::detail::protocol {

std::string_view to_string(Phase phase) noexcept {
  switch (phase) {
    case Phase::spawn: return "spawn";
    case Phase::attach: return "attach";
    case Phase::device: return "device";
    case Phase::dependencies: return "dependencies";
    case Phase::communicator: return "communicator";
    case Phase::inputs: return "inputs";
    case Phase::function: return "function";
    case Phase::collective: return "collective";
    case Phase::vote: return "vote";
    case Phase::reduction: return "reduction";
    case Phase::close: return "close";
    case Phase::idle: return "idle";
  }
  return "spawn";
}

}  // namespace syncrun::detail::protocol
