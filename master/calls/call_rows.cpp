#include "master/calls/call_rows.hpp"

#include <algorithm>
#include <limits>

#include "common/protocol/row_shares.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "master/calls/describe.hpp"
#include "master/calls/shares_by_node.hpp"

namespace syncrun::detail::master::calls {

namespace {

/// As write_selection. `of()` returns the text and is called only for an error.
template <class Of>
protocol::RowsSlot write_rows(const Rows& rows, std::int64_t available, const char* option, Of&& of,
                              pool::SegmentHeap memory, std::vector<std::uint64_t>& temporaries) {
  protocol::RowsSlot slot{rows.kind(), 0, 0, 0};
  switch (rows.kind()) {
    case Rows::Kind::all: slot.end = available; return slot;
    case Rows::Kind::slice:
      slot.begin = rows.slice().begin;
      slot.end = rows.slice().end;
      if (slot.begin < 0 || slot.end < slot.begin || slot.end > available) {
        text::throw_usage(std::string(option) + " is the slice [" + std::to_string(slot.begin) + ", " +
                          rows.text_of_end() + "), but " + of() + " has " + std::to_string(available) + " rows");
      }
      return slot;
    case Rows::Kind::list: break;
  }
  slot.end = rows.count();
  if (slot.end == 0) return slot;
  slot.offset =
      memory.allocate(static_cast<std::size_t>(slot.end) * sizeof(std::int64_t), "an index list", temporaries);
  auto* indices = memory.segment.at<std::int64_t>(slot.offset);
  rows.copy_to(indices);
  const auto* bad = std::find_if(indices, indices + slot.end, [available](std::int64_t index) {
    return static_cast<std::uint64_t>(index) >= static_cast<std::uint64_t>(available);
  });
  if (bad != indices + slot.end) {
    text::throw_usage(std::string(option) + " has index " + rows.text_at(bad - indices) + " at position " +
                      std::to_string(bad - indices) + ", but " + of() +
                      (available == 0 ? " has no rows" : " has rows 0 to " + std::to_string(available - 1)));
  }
  return slot;
}

}  // namespace

protocol::RowsSlot write_selection(const Rows& rows, std::int64_t available, const char* option, const std::string& of,
                                   pool::SegmentHeap memory, std::vector<std::uint64_t>& temporaries) {
  return write_rows(
      rows, available, option, [&of] { return of; }, memory, temporaries);
}

void CallRows::complain_about_rows(const records::FunctionRecord& function, const ScatteredArgument& first,
                                   const ScatteredArgument& other) {
  text::throw_usage(describe_argument(function, other.argument, other.data->name) + " has " +
                    std::to_string(other.data->extents[0]) + " rows, but " +
                    describe_argument(function, first.argument, first.data->name) + " has " +
                    std::to_string(first.data->extents[0]));
}

void CallRows::add_sliced(const records::VariableRecord& variable, std::size_t argument) {
  sliced_[sliced_count_++] = {&variable, argument};
}

void CallRows::finish(const records::Settled& settled, const records::FunctionRecord& function,
                      const protocol::RankSet& ranks, const RowWeights& weights,
                      std::span<const protocol::NodePlace> nodes, const CallOptions& options, pool::SegmentHeap memory,
                      protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries) const {
  const bool has_scattered = this->has_scattered();
  const bool has_sliced = sliced_count_ != 0;
  call.slices = options.slices;
  call.rows = -1;  // also if this is the second time
  call.rows_are_local = false;
  call.batch_s_by_rank = call.share_begins = 0;
  if (options.rows.is_given()) take_count(function, options, call);
  if (!has_scattered && options.batch.kind() != Rows::Kind::all) {
    text::throw_usage("batch was given, but '" + function.name + "' has no scattered argument");
  }
  if (!has_sliced && options.batch_s.is_given()) {
    text::throw_usage("batch_s was given, but '" + function.name + "' has no Sliced argument");
  }
  if (!has_scattered && !has_sliced && !options.rows.is_given()) {
    if (options.slices != 1) {
      text::throw_usage("slices is " + std::to_string(options.slices) + ", but '" + function.name +
                        "' has no rows to slice: pass the number of rows of the call as rows");
    }
    return;
  }
  if (has_scattered) select_scattered(function, options, memory, call, temporaries);
  if (call.rows > 0 && of_nodes_.data != nullptr)
    divide_by_node(function, ranks, weights, nodes, memory, call, temporaries);
  else if (call.rows > 0 && !weights.are_equal() && !call.is_measured)
    divide(function, ranks, weights, memory, call, temporaries);
  if (has_sliced) select_local(settled, function, ranks, options, memory, call, temporaries);
  if (call.rows == 0) text::throw_usage("a call of '" + function.name + "' requires at least one row, got 0");
  if (options.slices < 1 || options.slices > call.rows) {
    text::throw_usage("slices is from 1 to the number of rows, " + std::to_string(call.rows) + ", got " +
                      std::to_string(options.slices));
  }
  // A body gets the number of its slice as an int.
  constexpr std::int64_t kMostSlices = std::numeric_limits<int>::max();
  if (options.slices > kMostSlices) {
    text::throw_usage("slices is at most " + std::to_string(kMostSlices) + ", got " + std::to_string(options.slices));
  }
}

void CallRows::check_measurable(const records::Settled& settled, const records::FunctionRecord& function,
                                const protocol::RankSet& ranks, const CallOptions& options,
                                const protocol::CallPayload& call) const {
  if (of_nodes_.data != nullptr) {
    text::throw_usage("balance requires equal shares of rows, and " +
                      describe_argument(function, of_nodes_.argument, of_nodes_.data->name) +
                      " is in a file of each node: use set_weights");
  }
  if (call.rows < 0) {
    text::throw_usage("balance measures the time per row, but '" + function.name +
                      "' has no rows: pass the number of rows of the call as rows");
  }
  if (!call.rows_are_local) {
    if (call.rows >= ranks.count()) return;
    text::throw_usage("balance requires a row for each of the " + std::to_string(ranks.count()) + " ranks, but '" +
                      function.name + "' has " + std::to_string(call.rows) + ": pass more rows");
  }
  for (const int rank : ranks) {
    if (local_rows(settled, rank, options.batch_s) != 0) continue;
    text::throw_usage("balance requires a row for each rank, but '" + function.name + "' has none on rank " +
                      std::to_string(rank) + ": give every rank rows");
  }
}

/// The rows of a call whose function computes them from nothing.
void CallRows::take_count(const records::FunctionRecord& function, const CallOptions& options,
                          protocol::CallPayload& call) const {
  const RowCount& rows = options.rows;
  const auto refuse = [&](const std::string& argument, const char* instead) {
    text::throw_usage("rows is " + rows.text() + ", but the call has the rows of " + argument + ": leave rows out" +
                      instead);
  };
  if (scattered_.data != nullptr) {
    refuse(describe_argument(function, scattered_.argument, scattered_.data->name), ", and select rows with batch");
  }
  if (minibatch_.data != nullptr) {
    refuse(describe_argument(function, minibatch_.argument, minibatch_.data->name), "");
  }
  if (sliced_count_ != 0) {
    refuse(describe_argument(function, sliced_[0].argument, sliced_[0].variable->name),
           ", and select rows with batch_s");
  }
  if (options.batch.kind() != Rows::Kind::all) {
    text::throw_usage("batch was given together with rows, but '" + function.name +
                      "' has no scattered argument: leave batch out");
  }
  if (rows.count() < 1) {
    text::throw_usage("rows is from 1 to " + std::to_string(std::numeric_limits<std::int64_t>::max()) + ", got " +
                      rows.text());
  }
  call.rows = rows.count();
}

void CallRows::select_scattered(const records::FunctionRecord& function, const CallOptions& options,
                                pool::SegmentHeap memory, protocol::CallPayload& call,
                                std::vector<std::uint64_t>& temporaries) const {
  if (scattered_.data == nullptr) {
    if (options.batch.kind() != Rows::Kind::all) {
      text::throw_usage("batch was given, but the scattered arguments of '" + function.name + "' are all minibatches");
    }
    call.batch = protocol::RowsSlot{Rows::Kind::all, 0, minibatch_.data->extents[0], 0};
    call.rows = call.batch.count();
    return;
  }
  const auto scattered = [&] { return describe_argument(function, scattered_.argument, scattered_.data->name); };
  call.batch = write_rows(options.batch, scattered_.data->extents[0], "batch", scattered, memory, temporaries);
  call.rows = call.batch.count();
  if (minibatch_.data == nullptr || minibatch_.data->extents[0] == call.rows) return;
  text::throw_usage(describe_argument(function, minibatch_.argument, minibatch_.data->name) + " is a minibatch of " +
                    std::to_string(minibatch_.data->extents[0]) + " rows, but the batch has " +
                    std::to_string(call.rows));
}

void CallRows::add_of_nodes(const records::FunctionRecord& function, const ScatteredArgument& argument) {
  if (of_nodes_.data == nullptr) of_nodes_ = argument;
  const std::vector<arrays::RowRange>& first = of_nodes_.data->rows_on_nodes;
  const std::vector<arrays::RowRange>& own = argument.data->rows_on_nodes;
  for (std::size_t node = 0; node < own.size(); ++node) {
    if (own[node].count() == first[node].count()) continue;
    text::throw_usage(describe_argument(function, argument.argument, argument.data->name) + " has " +
                      std::to_string(own[node].count()) + " rows in its file of node " + std::to_string(node) +
                      ", but " + describe_argument(function, of_nodes_.argument, of_nodes_.data->name) + " has " +
                      std::to_string(first[node].count()));
  }
}

/// Divides the rows of the call so that each rank gets rows that its node has.
void CallRows::divide_by_node(const records::FunctionRecord& function, const protocol::RankSet& ranks,
                              const RowWeights& weights, std::span<const protocol::NodePlace> nodes,
                              pool::SegmentHeap memory, protocol::CallPayload& call,
                              std::vector<std::uint64_t>& temporaries) const {
  const RowsOnNodes rows{describe_argument(function, of_nodes_.argument, of_nodes_.data->name),
                         of_nodes_.data->rows_on_nodes, nodes};
  const auto count = static_cast<std::size_t>(ranks.count()) + 1;
  call.share_begins = memory.allocate(count * sizeof(std::int64_t), "shares of rows", temporaries);
  calls::divide_by_node(rows, call.batch, memory.segment, ranks, weights,
                        {memory.segment.at<std::int64_t>(call.share_begins), count});
}

/// Divides the rows of the call among ranks that have weights.
void CallRows::divide(const records::FunctionRecord& function, const protocol::RankSet& ranks,
                      const RowWeights& weights, pool::SegmentHeap memory, protocol::CallPayload& call,
                      std::vector<std::uint64_t>& temporaries) {
  if (!weights.has_weight(ranks)) {
    text::throw_usage("a call of '" + function.name + "' has " + std::to_string(call.rows) +
                      " rows and requires a rank with a weight above 0, but it runs on rank" +
                      (ranks.is_single() ? " " : "s ") +
                      text::joined(ranks, ", ", [](int rank) { return std::to_string(rank); }) +
                      " only, of weight 0: change the weights with set_weights");
  }
  if (ranks.is_single()) return;
  const auto count = static_cast<std::size_t>(ranks.count()) + 1;
  call.share_begins = memory.allocate(count * sizeof(std::int64_t), "shares of rows", temporaries);
  weights.divide(call.rows, ranks, {memory.segment.at<std::int64_t>(call.share_begins), count});
}

std::int64_t CallRows::local_rows(const records::Settled& settled, int rank, const LocalRows& selection) const {
  const Rows& rows = selection.of_rank(rank);
  if (rows.kind() != Rows::Kind::all) return rows.count();
  return sliced_[0].variable->extents_on(settled, static_cast<std::size_t>(rank))[0];
}

/// True if the copies of other ranks may not have their shape yet when a rank begins the call: moves and copies on their
/// way give a shape to the copy of their destination alone. The ranks of one node do not know the shapes on other nodes.
/// The ranks look at the first sliced argument only.
bool CallRows::shapes_may_be_unknown(const os::Segment& segment) const noexcept {
  const records::VariableRecord& first = *sliced_[0].variable;
  const protocol::NodePlace& place = segment.at<const protocol::ControlHeader>(0)->place;
  return place.has_others() || first.value != nullptr || !first.writes.copies.empty();
}

void CallRows::select_local(const records::Settled& settled, const records::FunctionRecord& function,
                            const protocol::RankSet& ranks, const CallOptions& options, pool::SegmentHeap memory,
                            protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries) const {
  const LocalRows& selection = options.batch_s;
  const std::size_t world_size = sliced_[0].variable->copies(settled).extents.size();
  if (selection.is_per_rank() && selection.ranks() != world_size) {
    text::throw_usage("batch_s requires one selection per rank, " + std::to_string(world_size) + " in all, got " +
                      std::to_string(selection.ranks()));
  }
  // Check the copies of every rank before anything is written down.
  std::vector<std::int64_t> available(world_size);
  std::int64_t total = 0;
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    available[at] = sliced_[0].variable->extents_on(settled, at)[0];
    for (std::size_t i = 1; i < sliced_count_; ++i) {
      const std::int64_t other = sliced_[i].variable->extents_on(settled, at)[0];
      if (other == available[at]) continue;
      text::throw_usage(describe_argument(function, sliced_[i].argument, sliced_[i].variable->name) + " has " +
                        std::to_string(other) + " rows on rank " + std::to_string(rank) + ", but " +
                        describe_argument(function, sliced_[0].argument, sliced_[0].variable->name) + " has " +
                        std::to_string(available[at]));
    }
    const std::int64_t rows = local_rows(settled, rank, selection);
    total += rows;
    if (!has_scattered()) continue;
    const std::int64_t share = protocol::share_in_call(memory.segment, call, ranks, rank).count();
    if (rows != share) {
      text::throw_usage("rank " + std::to_string(rank) + " gets " + std::to_string(share) +
                        " rows of the scattered arguments, but " + std::to_string(rows) + " of " +
                        describe_argument(function, sliced_[0].argument, sliced_[0].variable->name) +
                        (call.share_begins != 0 ? ": after set_weights, scatter the variable again" : ""));
    }
  }
  if (!has_scattered()) {
    call.rows = total;
    call.rows_are_local = true;
  }

  const auto copy_on = [&](int rank) {
    return [&function, &first_sliced = sliced_[0], rank] {
      return describe_argument(function, first_sliced.argument, first_sliced.variable->name) + " on rank " +
             std::to_string(rank);
    };
  };
  const bool takes_all = !selection.is_per_rank() && selection.of_rank(ranks.first()).kind() == Rows::Kind::all;
  const bool writes_counts = takes_all && !ranks.is_single() && shapes_may_be_unknown(memory.segment);
  if (!selection.is_per_rank() && !writes_counts) {
    // One selection for all ranks: check it against the shortest copy.
    int shortest = ranks.first();
    for (const int rank : ranks) {
      if (available[static_cast<std::size_t>(rank)] < available[static_cast<std::size_t>(shortest)]) shortest = rank;
    }
    call.batch_s = write_rows(selection.of_rank(shortest), available[static_cast<std::size_t>(shortest)], "batch_s",
                              copy_on(shortest), memory, temporaries);
    return;
  }
  call.batch_s_by_rank = memory.allocate(sizeof(protocol::RowsSlot) * available.size(), "an index list", temporaries);
  auto* slots = memory.segment.at<protocol::RowsSlot>(call.batch_s_by_rank);
  for (const int rank : ranks) {
    slots[rank] = write_rows(selection.of_rank(rank), available[static_cast<std::size_t>(rank)], "batch_s",
                             copy_on(rank), memory, temporaries);
  }
}

}  // namespace syncrun::detail::master::calls
