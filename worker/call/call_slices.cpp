#include "worker/call/call_slices.hpp"

#include "common/protocol/row_shares.hpp"
#include "common/protocol/variable_entry.hpp"

namespace syncrun::detail::worker::call {

namespace {

arrays::RowRange slice_of(const arrays::RowRange& share, std::int64_t slices, std::int64_t index) noexcept {
  const arrays::RowRange part = arrays::share_of(share.count(), slices, index);
  return {share.begin + part.begin, share.begin + part.end};
}

}  // namespace

void CallSlices::begin(const protocol::Command& command, std::uint64_t id) {
  command_ = &command;
  id_ = id;
  call_ = &command.call();
  index_ = -1;
  share_weight_.reset();
  slice_ = {};
  first_row_of_call_ = 0;
  share_ = share_in(command);
  if (!has_rows() || !call_->rows_are_local) return;
  for (const int other : command.ranks) {
    if (other < attachment_.rank) first_row_of_call_ += local_rows(other);
  }
}

/// This rank's part of a command's rows. If the rows are those of its own copies, this is valid only while the command
/// runs.
arrays::RowRange CallSlices::share_in(const protocol::Command& command) const {
  const int rank = attachment_.rank;
  const protocol::CallPayload& call = command.call();
  if (call.rows < 0) return {0, 0};
  if (call.rows_are_local) return {0, local_rows(rank)};
  return protocol::share_in_call(attachment_.segment, call, command.ranks, rank);
}

arrays::RowRange CallSlices::first_slice_of(const protocol::Command& command) const {
  return slice_of(share_in(command), command.call().rows < 0 ? 1 : command.call().slices, 0);
}

const protocol::RowsSlot& CallSlices::selection_of(int rank) const noexcept {
  if (call_->batch_s_by_rank == 0) return call_->batch_s;
  return attachment_.segment.at<const protocol::RowsSlot>(call_->batch_s_by_rank)[rank];
}

std::int64_t CallSlices::local_rows(int rank) const {
  const protocol::RowsSlot& selection = selection_of(rank);
  // If the slot belongs to the rank alone, it has the number of rows also if all are selected. The copy of a peer may not
  // have its shape yet.
  if (selection.kind != Rows::Kind::all || call_->batch_s_by_rank != 0) return selection.count();
  for (std::size_t i = 0; i < call_->arguments_count; ++i) {
    const protocol::ArgumentSlot& slot = command_->arguments[i];
    if (slot.kind == ArgumentKind::sliced)
      return attachment_.segment.at<protocol::VariableEntry>(slot.offset)->copies()[rank].extents[0];
  }
  return 0;
}

bool CallSlices::next() {
  const std::int64_t slices = has_rows() ? call_->slices : 1;
  weight_.reset();
  while (++index_ < slices) {
    if (has_rows()) {
      slice_ = slice_of(share_, slices, index_);
      if (slice_.count() == 0 && !command_->has_comm) continue;
    }
    weights_.own = rows();
    if (command_->has_comm) {
      weights_.all = 0;
      for (const int rank : command_->ranks) weights_.all += rows_of(rank);
    }
    return true;
  }
  return false;
}

/// The number of rows that a rank of the call has in the current slice.
std::int64_t CallSlices::rows_of(int rank) const {
  if (!has_rows()) return 1;
  const protocol::RankSet& ranks = command_->ranks;
  if (ranks.is_single()) return slice_.count();
  const std::int64_t share = call_->rows_are_local
                                 ? local_rows(rank)
                                 : protocol::share_in_call(attachment_.segment, *call_, ranks, rank).count();
  return arrays::share_of(share, call_->slices, index_).count();
}

SliceRows CallSlices::in_share() const noexcept {
  if (!has_rows()) return {0, 1, true, true};
  return {slice_.begin - share_.begin, slice_.count(), index_ + 1 == call_->slices, index_ == 0};
}

double CallSlices::share_of_call() const noexcept {
  if (!has_rows()) return 1.0 / static_cast<double>(command_->ranks.count());
  if (slice_.count() == 0) return 0;
  return static_cast<double>(slice_.count()) / static_cast<double>(call_->rows);
}

void CallSlices::weigh_by_call() noexcept {
  if (!has_rows()) return;
  weights_.own = share_.count();
  weights_.all = call_->rows;
}

void CallSlices::weigh_by_rank() {
  rows_by_rank_.clear();
  for (const int rank : command_->ranks) rows_by_rank_.push_back(rows_of(rank));
  weights_.by_rank = rows_by_rank_;
}

comm::RankWeights CallSlices::equal_weights() {
  ones_by_rank_.clear();
  for (const std::int64_t rows : rows_by_rank_) ones_by_rank_.push_back(rows == 0 ? 0 : 1);
  return {rows() == 0 ? 0 : 1, 1, ones_by_rank_};
}

}  // namespace syncrun::detail::worker::call
