#pragma once

// Ways for a worker to die, and ways to make it die before it serves its first call.

#include <cstdint>
#include <string>

#include "tests/fault/scene.hpp"

namespace syncrun::test {

/// An exception whose what() is null. Users' programs contain such mistakes.
struct Speechless : std::exception {
  const char* what() const noexcept override { return nullptr; }
};
struct SpeechlessError : Error {
  SpeechlessError() : Error(ErrorKind::system, "", 28) {}
  const char* what() const noexcept override { return nullptr; }
};

enum class Death : std::uint8_t { kill, segfault, abort, exit_quickly_3, exit_4, terminate };

/// The name of this death in the names of tests.
std::string name_of(Death way);
/// The cause that the master reports for this death.
std::string cause_of(Death way);
[[noreturn]] void die(Death way);
/// Writes the time to the board and prints some last words, then dies.
[[noreturn]] void die(Death way, const BoardView& board);
inline constexpr const char* kLastWords = "these are my last words";

/// While an object lives, the worker of this rank takes this action when it starts. ways_to_die.cpp has the actions.
class AtStart {
 public:
  AtStart(int rank, const std::string& action);
  ~AtStart();
  AtStart(const AtStart&) = delete;
  AtStart& operator=(const AtStart&) = delete;
};

/// Called first in main. If AtStart has told this worker to die after some time, starts a thread that kills it then.
void die_while_starting();

}  // namespace syncrun::test
