#pragma once

// Makes a worker fail. Only the fault tests link the library that contains this code. In it, the worker that the
// environment names dies, hangs or throws when it enters a phase:
//
//   SYNCRUN_FAULT="rank=1,phase=collective,call=3,way=kill"
//
// `call` is the number of a command. Without it, the fault can happen in every command.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/protocol/phase_hook.hpp"

namespace syncrun::detail {

enum class FaultWay : std::uint8_t {
  kill,       // SIGKILL
  segv,       // SIGSEGV, as after a store to an invalid address
  stop,       // SIGSTOP
  exit0,      // _exit(0)
  exit3,      // _exit(3)
  exception,  // a std::exception
  number,     // throw 17
  loop,       // an endless loop
  memory,     // an allocation that the system refuses
  shared,     // no space in shared memory
  hold,       // waits until the file that SYNCRUN_FAULT_UNTIL names exists
};

struct Fault {
  int rank = 0;
  protocol::Phase phase = protocol::Phase::function;
  FaultWay way = FaultWay::kill;
  std::optional<std::uint64_t> call;

  /// Throws Error (usage) if the text does not have the form above.
  static Fault parse(std::string_view text);

  bool is_at(std::uint64_t command, protocol::Phase where) const noexcept {
    return where == phase && (!call || *call == command);
  }
  /// Prints the fault and the time to standard error, then carries it out. After `stop`, it returns when the worker is
  /// continued. After `hold`, it returns when the file exists.
  void strike(std::uint64_t command) const;
};

}  // namespace syncrun::detail
