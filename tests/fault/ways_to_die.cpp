#include "tests/fault/ways_to_die.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace syncrun::test {

namespace {

constexpr const char* kVariable = "SYNCRUN_TEST_DIE_AT";

void throw_something() { throw std::runtime_error("nobody may catch this"); }
void throw_where_nobody_may() noexcept { throw_something(); }

/// The action for this process at its start; empty in the master and for other ranks.
std::string told() {
  const char* rank = std::getenv("SYNCRUN_WORKER_RANK");
  const char* text = std::getenv(kVariable);
  if (rank == nullptr || text == nullptr) return {};
  const std::string wanted = std::string(rank) + "=";
  return std::string(text).starts_with(wanted) ? std::string(text).substr(wanted.size()) : "";
}

/// Acts before main, in its constructor, and after main, in its destructor.
struct StaticObject {
  std::string action = told();
  StaticObject() {
    if (action.starts_with("static-")) std::fprintf(stderr, "%s\n", kLastWords);
    if (action == "static-exit-7") ::_exit(7);
    if (action == "static-hang") {
      for (;;) ::pause();
    }
    if (action == "static-handler") ::signal(SIGSEGV, [](int) { ::_exit(9); });
    if (action == "static-no-segment") ::setenv("SYNCRUN_SEGMENT_FD", "999", 1);
    if (action == "static-segment-too-large") ::setenv("SYNCRUN_SEGMENT_BYTES", "9000000000000000000", 1);
  }
  ~StaticObject() {
    if (action == "end-exit-5") ::_exit(5);
    if (action == "end-hang") {
      for (;;) ::pause();
    }
  }
};
const StaticObject static_object;

}  // namespace

std::string name_of(Death way) {
  switch (way) {
    case Death::kill: return "Kill";
    case Death::segfault: return "Segfault";
    case Death::abort: return "Abort";
    case Death::exit_quickly_3: return "QuickExit3";
    case Death::exit_4: return "Exit4";
    case Death::terminate: return "Terminate";
  }
  return "";
}

std::string cause_of(Death way) {
  switch (way) {
    case Death::kill: return "killed by SIGKILL (Killed)";
    case Death::segfault: return "killed by SIGSEGV (Segmentation fault)";
    case Death::abort:
    case Death::terminate: return "killed by SIGABRT (Aborted)";
    case Death::exit_quickly_3: return "exited with code 3";
    case Death::exit_4: return "exited with code 4";
  }
  return "";
}

// Otherwise the sanitizers would report the store to address 0 before it happens, and exit.
__attribute__((no_sanitize("address", "undefined"))) void die(Death way) {
  switch (way) {
    case Death::kill: ::kill(::getpid(), SIGKILL); break;
    case Death::segfault: {
      volatile int* nothing = nullptr;
      *nothing = 1;
      break;
    }
    case Death::abort: std::abort();
    case Death::exit_quickly_3: ::_exit(3);
    case Death::exit_4: std::exit(4);
    case Death::terminate: throw_where_nobody_may();
  }
  for (;;) ::pause();
}

void die(Death way, const BoardView& board) {
  std::fprintf(stderr, "%s\n", kLastWords);
  field(board, Board::kTimeOfDeath).store(now_ns());
  die(way);
}

AtStart::AtStart(int rank, const std::string& action) {
  ::setenv(kVariable, (std::to_string(rank) + "=" + action).c_str(), 1);
}
AtStart::~AtStart() { ::unsetenv(kVariable); }

void die_while_starting() {
  // "after-N": dies N microseconds from now, whatever it does then.
  const std::string action = told();
  if (!action.starts_with("after-")) return;
  std::thread([delay = std::chrono::microseconds(std::stol(action.substr(std::strlen("after-"))))] {
    std::this_thread::sleep_for(delay);
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

}  // namespace syncrun::test
