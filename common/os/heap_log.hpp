#pragma once

// What has changed in a shared heap. The agents of other nodes repeat the changes in their own segments, where every
// offset means the same. So a command, and what it refers to, is valid there as it is.

#include <cstddef>
#include <cstdint>
#include <deque>

namespace syncrun::detail::os {

struct HeapChange {
  enum class Kind : std::uint8_t {
    reserved,      ///< The extent is in use from now on. Its contents are not described here.
    written,       ///< The extent has the contents that it has when the next command is published.
    freed,         ///< The extent is no longer in use.
    mirrored,      ///< The extent contains rows. A row travels to a node with the first command that reads it there.
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
class HeapLog {
 public:
  void add(const HeapChange& change) { changes_.push_back(change); }
  /// Removes the last change if it is this one.
  void take_back(HeapChange::Kind kind, std::uint64_t offset) noexcept {
    if (changes_.empty() || changes_.back().kind != kind || changes_.back().offset != offset) return;
    changes_.pop_back();
  }
  /// The number of the next change.
  std::uint64_t end() const noexcept { return first_ + changes_.size(); }
  /// Calls `visit(change)` for each change from number `from` on.
  template <class Visit>
  void for_each(std::uint64_t from, Visit&& visit) const {
    for (std::uint64_t number = from; number < end(); ++number) visit(changes_[number - first_]);
  }
  /// Nobody asks for changes before number `before` any more.
  void forget(std::uint64_t before) noexcept {
    for (; first_ < before && !changes_.empty(); ++first_) changes_.pop_front();
  }

 private:
  std::uint64_t first_ = 0;  // the number of the first change in the list
  std::deque<HeapChange> changes_;
};

}  // namespace syncrun::detail::os
