#pragma once

// Where tests let a worker fail: in a library that only the fault tests link, a worker that the environment names dies, hangs
// or throws when it comes to a phase:
//
//   SYNCRUN_FAULT="rank=1,phase=collective,call=3,way=kill"
//
// `call` is the number of a command; without it, every command's point counts.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/phase_hook.hpp"

namespace syncrun::detail {

enum class FaultWay : std::uint8_t {
  kill,       // SIGKILL
  segv,       // SIGSEGV, as of a store to nowhere
  stop,       // SIGSTOP
  exit0,      // _exit(0)
  exit3,      // _exit(3)
  exception,  // a std::exception
  number,     // throw 17
  loop,       // an endless loop
  memory,     // an allocation that the system refuses
  shared,     // no space in shared memory
};

struct Fault {
  int rank = 0;
  Phase phase = Phase::function;
  FaultWay way = FaultWay::kill;
  std::optional<std::uint64_t> call;

  /// Throws Error (usage) for a text of another form.
  static Fault parse(std::string_view text);

  bool is_at(std::uint64_t command, Phase where) const noexcept {
    return where == phase && (!call || *call == command);
  }
  /// Says so on standard error, with the time, and does it. Returns after `stop`, once continued.
  void strike(std::uint64_t command) const;
};

}  // namespace syncrun::detail
