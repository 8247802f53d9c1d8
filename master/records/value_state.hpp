#pragma once

// What the master knows of a Value beyond its variable: where valid copies are, and which commands use them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "syncrun/array.hpp"

namespace syncrun::detail::master::records {

/// Where a command brings values: to a Value that it makes, or to a copy of one on a rank or on the host.
class Destination {
 public:
  static constexpr Destination none() noexcept { return Destination(kNone); }
  static constexpr Destination new_value() noexcept { return Destination(kNewValue); }
  static constexpr Destination host() noexcept { return Destination(kHost); }
  static constexpr Destination rank(int rank) noexcept { return Destination(rank); }

  bool is_none() const noexcept { return place_ == kNone; }
  bool is_new_value() const noexcept { return place_ == kNewValue; }
  bool is_host() const noexcept { return place_ == kHost; }
  std::optional<int> rank() const noexcept { return place_ < 0 ? std::nullopt : std::optional(place_); }

 private:
  static constexpr int kHost = -1;
  static constexpr int kNewValue = -2;
  static constexpr int kNone = -3;
  explicit constexpr Destination(int place) noexcept : place_(place) {}
  int place_;
};

/// A command that reads a copy from another rank.
struct CopyReader {
  std::uint64_t command;
  int rank;  // that runs the command
};

/// The copy of a Value on one rank.
struct ValueCopy {
  bool is_valid = false;
  std::uint64_t written = 0;        // the last command that wrote it, or brought it
  std::uint64_t brought = 0;        // the last command that brought it
  int source = 0;                   // from where: a rank, kHost or kNowhere of ValueState
  std::uint64_t used = 0;           // the last command of this rank that used it
  std::uint64_t marked = 0;         // the last one with which it was marked as that of the home; see SpareCopy::mark
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

/// A move in flight. A later call was launched that overwrites the copy which the move brings. If the move fails, this
/// call does not run, and the values are still in the copy from which they should have come.
struct RiskyMove {
  std::uint64_t command;
  int source;             // a rank or kHost
  std::uint64_t written;  // ValueCopy::written or HostCopy::written of the source
  int written_by;         // HostCopy::written_by
};

struct ValueState {
  static constexpr int kHost = -1;     // also the place of a value whose only copy is in host memory
  static constexpr int kNowhere = -2;  // the source of a copy whose values are nowhere else

  explicit ValueState(std::size_t world_size) : copies(world_size) {}

  Extents extents{};              // of all copies; not known while there is a maker
  std::vector<ValueCopy> copies;  // by rank
  HostCopy host;
  /// Other ranks copy from this rank, or from the host (kHost). Its worker may drop its copy if another one takes its
  /// place; see SpareCopy. So the copy of the home is claimed before it is used.
  int home = kHost;
  std::optional<int> pinned;   // the value stays on this rank
  std::uint64_t maker = 0;     // the call that makes it, while its extents are not known; else 0
  int made_on = 0;             // the rank of this call
  std::string made_by;         // the function that makes it; empty if the program gave its values
  std::exception_ptr failure;  // the value was never made, or was lost
  bool was_never_made = false;
  std::vector<RiskyMove> risky_moves;  // in their order; each depends on those before. Some may be over
  int last_source = kHost;             // of the last move between two ranks
  int last_destination = kHost;
  bool moves_are_expected = false;  // no warning is necessary
  int moves_to_and_fro = 0;         // how many of the last moves in a row went back to where the one before came from

  /// A command has failed, or must fail, that should have made the value, or should have brought a copy.
  void note_unfinished(Destination to, std::uint64_t command, const std::exception_ptr& error) noexcept {
    drop_unbrought(to, command);
    if (to.is_new_value()) {
      maker = 0;
      was_never_made = true;
    }
    if (to.is_new_value() || !is_anywhere()) failure = error;
  }
  /// The copy that the command should have brought is not valid. If a later command writes this copy, that command fails
  /// too, and the values are where they were before.
  void drop_unbrought(Destination to, std::uint64_t command) noexcept {
    const auto risky = std::find_if(risky_moves.begin(), risky_moves.end(),
                                    [&](const RiskyMove& move) { return move.command == command; });
    if (risky != risky_moves.end()) return go_back_to_source(risky);
    if (to.is_host() && host.written == command) host.is_valid = false;
    if (!to.rank()) return;
    ValueCopy& copy = copies[static_cast<std::size_t>(*to.rank())];
    if (copy.brought != command) return;
    copy.is_valid = false;
    // All other copies on ranks came from this one, so they are not valid either. This one came from the host.
    if (home == *to.rank()) home = kHost;
  }
  /// All copies that are valid now come from the one that was not brought.
  void go_back_to_source(std::vector<RiskyMove>::iterator risky) noexcept {
    const RiskyMove move = *risky;
    risky_moves.erase(risky, risky_moves.end());
    for (ValueCopy& copy : copies) copy.is_valid = false;
    host.is_valid = move.source == kHost;
    home = move.source;
    if (move.source == kHost) {
      host.written = move.written;
      host.written_by = move.written_by;
      return;
    }
    ValueCopy& copy = copies[static_cast<std::size_t>(move.source)];
    copy.is_valid = true;
    copy.written = move.written;
    copy.brought = 0;  // a move that should have overwritten it depends on the one that has failed
  }
  bool is_anywhere() const noexcept {
    return host.is_valid ||
           std::any_of(copies.begin(), copies.end(), [](const ValueCopy& copy) { return copy.is_valid; });
  }
};

}  // namespace syncrun::detail::master::records
