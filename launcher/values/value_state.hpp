#pragma once

// What the master knows of a Value beyond its variable: where valid copies are, and which commands use them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace syncrun::detail {

/// A command that reads a copy from another rank.
struct CopyReader {
  std::uint64_t command;
  int rank;  // that runs the command
};

/// The copy of a Value on one rank.
struct ValueCopy {
  bool is_valid = false;
  std::uint64_t written = 0;        // the last command that wrote it
  std::uint64_t used = 0;           // the last command of this rank that used it
  std::vector<CopyReader> readers;  // since it was written; some may be over
};

/// The copy in the memory of the host. It is in the master's heap.
struct HostCopy {
  bool is_valid = false;
  std::uint64_t offset = 0;  // 0 if there is no memory
  std::size_t bytes = 0;
  std::uint64_t written = 0;        // the command that wrote it
  int written_by = 0;               // the rank that ran this command
  std::vector<CopyReader> readers;  // some may be over
};

struct ValueState {
  static constexpr int kHost = -1;  // also the place of a value whose only copy is in host memory
  static constexpr int kMaking = -1;

  explicit ValueState(std::size_t world_size) : copies(world_size) {}

  std::vector<ValueCopy> copies;  // by rank
  HostCopy host;
  /// The rank whose copy stays while the value lives, or kHost. Other ranks copy from it.
  int home = kHost;
  std::optional<int> pinned;   // the value stays on this rank
  std::uint64_t maker = 0;     // the call that makes it, while its extents are not known; else 0
  int made_on = 0;             // the rank of this call
  std::string origin;          // which call made it, in words; empty if the program gave its values
  std::exception_ptr failure;  // the value was never made, or was lost
  int last_source = kHost;     // of the last move between two ranks
  int last_destination = kHost;
  bool moves_are_expected = false;  // no warning is necessary
  int moves_to_and_fro = 0;         // how many of the last moves in a row went back to where the one before came from

  /// A command has failed. `brings_to` is the rank to which it should have brought a copy, or kMaking if it should have
  /// made the value.
  void note_unfinished(int brings_to, std::uint64_t command, const std::exception_ptr& error) noexcept {
    if (brings_to == kMaking) {
      failure = error;
      maker = 0;
      return;
    }
    ValueCopy& copy = copies[static_cast<std::size_t>(brings_to)];
    if (copy.written == command) copy.is_valid = false;
    if (!is_anywhere()) failure = error;
  }
  bool is_anywhere() const noexcept {
    return host.is_valid ||
           std::any_of(copies.begin(), copies.end(), [](const ValueCopy& copy) { return copy.is_valid; });
  }
};

}  // namespace syncrun::detail
