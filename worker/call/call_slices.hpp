#pragma once

// The rows of the call that runs, on this rank: its share of them, slice by slice.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/arrays/reduce.hpp"
#include "common/arrays/row_range.hpp"
#include "common/protocol/command.hpp"
#include "syncrun/detail/call.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/process/attachment.hpp"

namespace syncrun::detail::worker::call {

/// The weights in an average: of all slices so far, and of the current slice. They are usually numbers of rows.
constexpr std::array<double, 2> weights_of(double before, double now) noexcept {
  const double all = before + now;
  if (all == 0) return {1, 0};  // nothing counts so far
  return {before / all, now / all};
}
constexpr std::array<double, 2> weights_of(std::int64_t rows_before, std::int64_t rows) noexcept {
  return weights_of(static_cast<double>(rows_before), static_cast<double>(rows));
}

/// A call without rows counts as one slice of one row.
class CallSlices {
 public:
  explicit CallSlices(const process::Attachment& attachment) noexcept : attachment_(attachment) {}

  /// Starts the command with this number. Its rows are this rank's share of the scattered rows, or the selected rows of
  /// its own copies.
  void begin(const protocol::Command& command, std::uint64_t id);
  /// Moves to the next slice that this rank has to compute; see WorkerCall::next_slice.
  bool next();

  const protocol::Command& command() const noexcept { return *command_; }
  const protocol::CallPayload& call() const noexcept { return *call_; }
  std::uint64_t id() const noexcept { return id_; }
  bool is_one_slice() const noexcept { return !has_rows() || call_->slices <= 1; }
  /// The number of rows that this rank has in all slices.
  std::int64_t share_rows() const noexcept { return has_rows() ? share_.count() : 1; }
  /// The same, but a call without rows has none.
  std::int64_t scattered_rows() const noexcept { return has_rows() ? share_.count() : 0; }

  // The current slice.
  int index() const noexcept { return index_; }
  std::int64_t rows() const noexcept { return has_rows() ? slice_.count() : 1; }
  std::int64_t rows_of(int rank) const;
  /// Its rows among those of the call, or among the selected rows of this rank's copies.
  const arrays::RowRange& range() const noexcept { return slice_; }
  std::int64_t first_row() const noexcept { return first_row_of_call_ + slice_.begin; }
  SliceRows in_share() const noexcept;    // its position among this rank's rows
  double share_of_call() const noexcept;  // its rows as a part of those of all ranks and slices
  /// Its weight in the averages that the call returns.
  double weight() const noexcept { return weight_.value_or(static_cast<double>(rows())); }
  /// Sets this weight. If one slice calls it, all do. A slice without rows has none.
  void weigh(double weight) noexcept {
    weight_ = rows() == 0 ? 0 : weight;
    share_weight_ = share_weight_.value_or(0) + *weight_;
  }
  /// The weight of this rank's slices so far.
  double share_weight() const noexcept { return share_weight_.value_or(static_cast<double>(share_rows())); }
  /// The weights of the ranks in averages.
  comm::RankWeights& weights() noexcept { return weights_; }
  /// From here on, averages over the ranks are weighted by the rows of the whole call instead of the slice.
  void weigh_by_call() noexcept;
  /// The weights also say how many rows each rank has.
  void weigh_by_rank();
  /// After weigh_by_rank(): weights by which an average becomes a sum over the ranks that have rows in the current slice.
  comm::RankWeights equal_weights();

  /// The rows of this rank's first slice in a command that has not begun.
  arrays::RowRange first_slice_of(const protocol::Command& command) const;
  /// The rows of a rank's copies that are selected, if the rows are those of its own copies.
  const protocol::RowsSlot& selection_of(int rank) const noexcept;
  /// The type in which the values of all slices are combined. If there is only one slice, there is nothing to combine.
  DType type_over_slices(DType dtype) const noexcept { return is_one_slice() ? dtype : arrays::partial_type(dtype); }

 private:
  bool has_rows() const noexcept { return call_->rows >= 0; }
  arrays::RowRange share_in(const protocol::Command& command) const;
  std::int64_t local_rows(int rank) const;

  const process::Attachment& attachment_;
  const protocol::Command* command_ = nullptr;
  const protocol::CallPayload* call_ = nullptr;  // the command's
  std::uint64_t id_ = 0;                         // the number of that command
  arrays::RowRange share_{};                     // of the call's rows, or of the selected rows if these are local
  std::int64_t first_row_of_call_ = 0;           // added to positions in share_ to get positions in the call
  arrays::RowRange slice_{};
  int index_ = -1;
  std::optional<double> weight_;  // set by the body
  std::optional<double> share_weight_;
  comm::RankWeights weights_;               // of the current slice
  std::vector<std::int64_t> rows_by_rank_;  // rows of the current slice on every rank
  std::vector<std::int64_t> ones_by_rank_;  // 1 for ranks with rows, otherwise 0
};

}  // namespace syncrun::detail::worker::call
