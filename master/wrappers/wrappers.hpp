#pragma once

// Commands that users put before the workers of some ranks: `syncrun --wrap '0:gdb --args'`. A shell runs the command with
// the program and its arguments after it, so the user can quote words and use variables such as $RANK.
//
//   master --fork--> sh --exec--> wrapper --fork or exec--> worker
//
// The master watches the wrapper, which is its child. The wrapper may be the parent of the worker (gdb), or become the
// worker itself (env, valgrind).

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/protocol/node_place.hpp"
#include "common/text/rank_list.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::wrappers {

class Wrappers {
 public:
  Wrappers() = default;
  /// Reads lines such as "0,2-3:gdb --args" or "*:valgrind". `terminal` is a command that runs the words after it in a
  /// terminal, or empty. Throws Error (usage) if a line is wrong, or if a rank has two wrappers.
  static Wrappers read(std::string_view lines, std::string terminal);

  bool are_none() const noexcept { return all_.empty(); }
  /// What read() got, so that another node can read it.
  std::string lines() const;

  /// Throws Error (usage) if a rank does not exist, or if a node lacks the program of a wrapper that it needs.
  void check(int world_size, const protocol::NodePlace& here) const;
  /// Throws Error (usage) if the program of any wrapper is missing. For `syncrun`, which does not know the ranks yet.
  void check_programs() const;

  /// The command of a rank as the user wrote it. Null if the rank has none.
  const std::string* of(int rank) const noexcept;
  /// The largest shared memory that all wrappers can use. Empty: any size.
  std::optional<std::size_t> most_shared_bytes() const;
  bool use_terminals() const noexcept { return !terminal_.empty(); }
  /// Puts the command of the rank before what the request starts. Does nothing if the rank has none. Throws Error (system)
  /// if the file of the program is no longer there.
  void apply(process::SpawnRequest& request, int rank) const;

 private:
  struct Wrapper {
    std::string ranks_text;  // "0,2-3" or "*"
    text::RankList ranks;
    std::string command;
    std::string line() const { return ranks_text + ":" + command; }
  };
  static Wrapper read_one(std::string_view line);
  void refuse_overlap(const Wrapper& added) const;
  const Wrapper* wrapper_of(int rank) const noexcept;

  std::vector<Wrapper> all_;
  std::string terminal_;
};

/// How a wrapper ended, for messages. `status` comes from describe_status. `has_begun` says whether the worker had begun.
std::string describe_end(const std::string& wrapper, const std::string& status, bool has_begun, bool has_terminal);

}  // namespace syncrun::detail::master::wrappers
