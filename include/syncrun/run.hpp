#pragma once

// How a program becomes a Syncrun program:
//
//   int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

#include <concepts>
#include <functional>
#include <optional>
#include <type_traits>

#include "syncrun/detail/export.hpp"
#include "syncrun/session.hpp"

namespace syncrun {

namespace detail {
using Program = std::function<int(int argc, char** argv)>;
/// Runs the program and turns what it throws into a message and an exit code.
SYNCRUN_EXPORT int run_master(int argc, char** argv, const Program& program);
}  // namespace detail

/// In a worker process: serves calls until the master is done, and returns the exit code. In the master: nothing.
/// Called first thing in `main` by a program that cannot give up its `main` to run().
SYNCRUN_EXPORT std::optional<int> serve_if_worker(int argc, char** argv);

/// How often `syncrun --max-restarts` has started this program again because it failed; 0: this is the first time. In any
/// process.
SYNCRUN_EXPORT int restarts() noexcept;

/// Runs `program(session)` or `program(session, argc, argv)`, which returns nothing or an exit code, in the master, with
/// one worker per device; a worker never calls it. An exception that leaves the program is printed (last) and gives
/// exit code 1. Works with and without `syncrun` in front of the command.
template <class P>
int run(int argc, char** argv, P&& program, const SessionOptions& options = {}) {
  if (const auto code = serve_if_worker(argc, argv)) return *code;
  return detail::run_master(argc, argv, [&](int count, char** values) {
    Session session(options);
    int code = 0;
    if constexpr (std::invocable<P&, Session&, int, char**>) {
      if constexpr (std::is_void_v<std::invoke_result_t<P&, Session&, int, char**>>) program(session, count, values);
      else code = program(session, count, values);
    } else {
      static_assert(std::invocable<P&, Session&>, "a program takes (Session&) or (Session&, int argc, char** argv)");
      if constexpr (std::is_void_v<std::invoke_result_t<P&, Session&>>) program(session);
      else code = program(session);
    }
    session.close();
    return code;
  });
}

}  // namespace syncrun
