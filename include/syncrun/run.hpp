#pragma once

// run(): makes a program a Syncrun program.
//   int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>

#include "syncrun/detail/export.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/session.hpp"

namespace syncrun {

/// Starts a session with one worker per device and calls the serial part of a program in the master: `program(session)`
/// or `program(session, argc, argv)`. `program` returns nothing or an exit code. A worker never calls it. If an
/// exception leaves `program`, run prints it as the last line, and the exit code is 1. The program can be started with
/// or without `syncrun` in front of its command.
template <class P>
int run(int argc, char** argv, P&& program, const SessionOptions& options = {});

/// In a worker process, serves calls until the session ends, and returns the exit code. In the master, returns
/// std::nullopt immediately. A program that does not use run() calls this function in the first statement of its
/// `main`.
SYNCRUN_EXPORT std::optional<int> serve_if_worker(int argc, char** argv);

/// Returns the number of times that `syncrun --max-restarts` has restarted this program after a failure. The number of
/// `syncrun --restart`, with which a script says how often it has run the program before, is added. The result is 0 in the
/// first run. Any process may call this function.
SYNCRUN_EXPORT int restarts() noexcept;

namespace detail {
/// Converts a callable to the form that run_master takes.
template <class F>
Program program_of(const F& callable) noexcept {
  return {[](const void* context, int argc, char** argv) { return (*static_cast<const F*>(context))(argc, argv); },
          std::addressof(callable)};
}
}  // namespace detail

template <class P>
int run(int argc, char** argv, P&& program, const SessionOptions& options) {
  if (const auto code = serve_if_worker(argc, argv)) return *code;
  const auto whole = [&](int count, char** values) {
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
  };
  return detail::run_master(argc, argv, detail::program_of(whole));
}

}  // namespace syncrun
