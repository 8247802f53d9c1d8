#pragma once

// What has changed in a shared heap. The agents of other nodes repeat the changes in their own segments, where every
// offset means the same. So a command, and what it refers to, is valid there as it is.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace syncrun::detail::os {

struct HeapChange {
  enum class Kind : std::uint8_t {
    reserved,  ///< The extent is in use from now on, and what was there before is not. Its contents are not described here.
    written,  ///< The extent has the contents that it has when the next command is published.
    freed,    ///< The extent is no longer in use.
    mirrored,  ///< The extent contains rows from now on. A row travels to a node with the first command that reads it there.
    rows_written,  ///< The rows in these bytes have changed, so they travel again.
    rows_there     ///< The node has written these rows itself, so they do not travel.
  };
  static constexpr std::int32_t kAllNodes = -1;

  Kind kind;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::int32_t node = kAllNodes;  ///< Of rows_there: the only node that has written the rows.
};

/// A list of changes, in order. Each change has a number, from 0. One thread uses it: the one that owns the heap.
///
/// A node may get no command for a long time, so it asks late. What later changes have made useless is dropped by then. So
/// the length of the list depends on what is in use, and not on how often it was allocated, written and freed.
class HeapLog {
 public:
  void add(const HeapChange& change);
  /// Removes the last change if it is this one.
  void take_back(HeapChange::Kind kind, std::uint64_t offset) noexcept;
  /// The number of the next change.
  std::uint64_t end() const noexcept { return end_; }
  /// Calls `visit(change)` for each change from number `from` on.
  template <class Visit>
  void for_each(std::uint64_t from, Visit&& visit) const {
    for (auto next = at(from); next != changes_.end(); ++next) visit(next->change);
  }
  /// Drops changes from number `from` on, and parts of them, that later changes have made useless.
  void shorten(std::uint64_t from);
  /// Nobody asks for changes before number `before` any more.
  void forget(std::uint64_t before) noexcept;

 private:
  struct Numbered {
    std::uint64_t number;
    HeapChange change;
  };
  static constexpr std::size_t kLong = 64;
  std::vector<Numbered>::const_iterator at(std::uint64_t number) const noexcept;

  std::uint64_t end_ = 0;
  std::size_t long_ = kLong;  // how many changes are so many that add() shortens the list
  std::vector<Numbered> changes_;
};

}  // namespace syncrun::detail::os
