#pragma once

// What node_program.cpp does on the ranks of all nodes. Each function runs one of its actions, and returns false if it
// has no action of this name. If something is not as expected, it throws std::runtime_error.

#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace syncrun::test {

using Words = std::vector<std::string>;  // what stands after the action

bool run_checkpoints(Session& session, const std::string& action, const Words& words);
bool run_collectives(Session& session, const std::string& action, const Words& words);
bool run_producers(Session& session, const std::string& action, const Words& words);
bool run_respawns(Session& session, const std::string& action, const Words& words);
bool run_steps(Session& session, const std::string& action, const Words& words);
bool run_signals(Session& session, const std::string& action, const Words& words);
bool use_data(Session& session, const std::string& action, const Words& words);
/// Lets signals come before run(), to each process other than the master, which waits for this file.
void wait_at_birth(const char* file);
int train(Session& session, const Words& words);  // returns the exit code
bool use_shared_variables(Session& session, const std::string& action);
bool use_values(Session& session, const std::string& action, const Words& words);

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not as expected: " + what);
}

/// Tells the test that something has happened.
inline void say(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::fflush(stderr);
}

/// Waits until the test says that the program may go on.
inline void await_line() {
  std::string line;
  std::getline(std::cin, line);
}
/// Says it, and waits for a line.
inline void announce(const char* what) {
  say(what);
  await_line();
}

}  // namespace syncrun::test
