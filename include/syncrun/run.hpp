#pragma once

// How a program becomes a Syncrun program:
//
//   int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>

#include "syncrun/detail/export.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/session.hpp"

namespace syncrun {

/// In a worker process: serves calls until the master is done, and returns the exit code. In the master: nothing.
/// Called first thing in `main` by a program that cannot give up its `main` to run().
SYNCRUN_EXPORT std::optional<int> serve_if_worker(int argc, char** argv);

/// How often `syncrun --max-restarts` has started this program again because it failed; 0: this is the first time. In any
/// process.
SYNCRUN_EXPORT int restarts() noexcept;

namespace detail {
/// A callable as run_master takes it.
template <class F>
Program program_of(const F& callable) noexcept {
  return {[](const void* context, int argc, char** argv) { return (*static_cast<const F*>(context))(argc, argv); },
          std::addressof(callable)};
}
}  // namespace detail

/// Runs `program(session)` or `program(session, argc, argv)`, which returns nothing or an exit code, in the master, with
/// one worker per device; a worker never calls it. An exception that leaves the program is printed (last) and gives
/// exit code 1. Works with and without `syncrun` in front of the command.
template <class P>
int run(int argc, char** argv, P&& program, const SessionOptions& options = {}) {
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
