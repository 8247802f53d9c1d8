#pragma once

// Ways for a worker to die, and places where it does so before it serves its first call.

#include <cstdint>
#include <string>

#include "tests/fault/scene.hpp"

namespace syncrun::test {

/// An exception without a text: a mistake that users' programs have.
struct Speechless : std::exception {
  const char* what() const noexcept override { return nullptr; }
};
struct SpeechlessError : Error {
  SpeechlessError() : Error(ErrorKind::system, "", 28) {}
  const char* what() const noexcept override { return nullptr; }
};

enum class Way : std::uint8_t { kill, segfault, abort, exit_quickly_ok, exit_quickly_3, exit_4, terminate };

/// For names of tests.
std::string name_of(Way way);
/// What the master says about it.
std::string cause_of(Way way);
[[noreturn]] void die(Way way);
/// Writes the time and some last words first.
[[noreturn]] void die(Way way, const BoardView& board);
inline constexpr const char* kLastWords = "these are my last words";

/// For as long as it lives, workers that start behave as told: "rank=action". Actions: see ways_to_die.cpp.
class AtStart {
 public:
  AtStart(int rank, const std::string& action);
  ~AtStart();
  AtStart(const AtStart&) = delete;
  AtStart& operator=(const AtStart&) = delete;
};

/// In main, before anything else: a worker that was told to die around here does.
void die_while_starting();

}  // namespace syncrun::test
