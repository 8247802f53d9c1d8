#include "master/inspect/attach.hpp"

#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/executable.hpp"
#include "common/text/errors.hpp"
#include "master/inspect/session_view.hpp"
#include "master/inspect/words.hpp"
#include "master/process/debugger.hpp"

namespace syncrun::detail::master::inspect {

namespace {

RankView rank_of(SessionView& session, const std::string& word) {
  const auto rank = environment::whole_number(word.c_str());
  if (!rank || *rank < 0 || *rank >= session.world_size()) {
    text::throw_usage("syncrun attach: expected a rank from 0 to " + std::to_string(session.world_size() - 1) +
                      ", got '" + word + "'");
  }
  for (RankView& view : session.look()) {
    if (view.rank == *rank && view.is_here) return view;
  }
  text::throw_usage("syncrun attach: rank " + word +
                    " is on another node; `syncrun top` on the first node names it. Run syncrun attach " + word +
                    " there");
}

}  // namespace

int attach_gdb(std::span<char* const> words) {
  constexpr std::array<std::string_view, 1> kOptions{"--pid"};
  Words options = read_words("attach", words, kOptions);
  if (options.others.empty()) text::throw_usage("syncrun attach: expected a rank, got none");
  SessionView session(choose_job(options.pid));
  const RankView rank = rank_of(session, options.others.front());
  if (rank.pid == 0) text::throw_usage("syncrun attach: rank " + options.others.front() + " has not begun yet");
  if (const int tracer = process::tracer_of(rank.pid); tracer != 0) {
    text::throw_usage("syncrun attach: process " + std::to_string(tracer) + " debugs rank " + options.others.front() +
                      " (pid " + std::to_string(rank.pid) + ") already; end it first");
  }
  const os::FoundExecutable gdb = os::find_executable("gdb");
  if (gdb.error != 0)
    text::throw_usage("syncrun attach: expected gdb, and it is not in PATH. Install it (apt install gdb)");
  std::vector<std::string> command{"gdb", "-p", std::to_string(rank.pid)};
  command.insert(command.end(), options.others.begin() + 1, options.others.end());
  std::vector<char*> pointers;
  for (std::string& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(gdb.path.c_str(), pointers.data());
  text::throw_errno("cannot start " + gdb.path);
}

}  // namespace syncrun::detail::master::inspect
