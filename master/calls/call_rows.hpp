#pragma once

// Determines the rows of a call. Checks that its arguments, batch, batch_s and slices agree, before any value is moved.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "common/protocol/node_place.hpp"
#include "master/calls/row_weights.hpp"
#include "master/pool/segment_heap.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::calls {

/// Checks a selection against the number of available rows, and writes it down for the workers. An index list goes to
/// the heap, and its offset is added to `temporaries`. Messages name the option (`option`) and what has the rows
/// (`of`). Throws Error (usage) if the rows do not exist.
protocol::RowsSlot write_selection(const Rows& rows, std::int64_t available, const char* option, const std::string& of,
                                   pool::SegmentHeap memory, std::vector<std::uint64_t>& temporaries);

class CallRows {
 public:
  void add_scattered(const records::FunctionRecord& function, const records::DataRecord& data, std::size_t argument,
                     DataRows rows) {
    if (rows == DataRows::of_the_batch) {
      if (minibatch_.data != nullptr && minibatch_.data->extents[0] != data.extents[0]) {
        complain_about_rows(function, minibatch_, {&data, argument});
      }
      minibatch_ = {&data, argument};
    } else if (scattered_.data == nullptr) {
      scattered_ = {&data, argument};
    } else if (data.extents[0] != scattered_.data->extents[0]) {
      complain_about_rows(function, scattered_, {&data, argument});
    }
    // As a minibatch, such an array is refused later: its rows are not those that the batch selects.
    if (rows != DataRows::of_the_batch && data.file && !data.rows_on_nodes.empty()) [[unlikely]]
      add_of_nodes(function, {&data, argument});
  }
  void add_sliced(const records::VariableRecord& variable, std::size_t argument);

  /// Fills in the rows of the call for `ranks`, which divide the rows by their weights, and by node if an argument is in a
  /// file of each node. Index lists and unequal shares go to the heap, and their offsets are added to `temporaries`. `nodes`
  /// are those of the session. Throws Error (usage).
  void finish(const records::Settled& settled, const records::FunctionRecord& function, const protocol::RankSet& ranks,
              const RowWeights& weights, std::span<const protocol::NodePlace> nodes, const CallOptions& options,
              pool::SegmentHeap memory, protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries) const;
  /// After finish(): throws Error (usage) unless every rank has rows whose time can be measured.
  void check_measurable(const records::Settled& settled, const records::FunctionRecord& function,
                        const protocol::RankSet& ranks, const CallOptions& options,
                        const protocol::CallPayload& call) const;

 private:
  struct SlicedArgument {
    const records::VariableRecord* variable;
    std::size_t argument;
  };

  struct ScatteredArgument {
    const records::DataRecord* data = nullptr;
    std::size_t argument = 0;
  };

  [[noreturn]] static void complain_about_rows(const records::FunctionRecord& function, const ScatteredArgument& first,
                                               const ScatteredArgument& other);
  bool has_scattered() const noexcept { return scattered_.data != nullptr || minibatch_.data != nullptr; }
  void take_count(const records::FunctionRecord& function, const CallOptions& options,
                  protocol::CallPayload& call) const;
  void select_scattered(const records::FunctionRecord& function, const CallOptions& options, pool::SegmentHeap memory,
                        protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries) const;
  void add_of_nodes(const records::FunctionRecord& function, const ScatteredArgument& argument);
  void divide_by_node(const records::FunctionRecord& function, const protocol::RankSet& ranks,
                      const RowWeights& weights, std::span<const protocol::NodePlace> nodes, pool::SegmentHeap memory,
                      protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries) const;
  static void divide(const records::FunctionRecord& function, const protocol::RankSet& ranks, const RowWeights& weights,
                     pool::SegmentHeap memory, protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries);
  void select_local(const records::Settled& settled, const records::FunctionRecord& function,
                    const protocol::RankSet& ranks, const CallOptions& options, pool::SegmentHeap memory,
                    protocol::CallPayload& call, std::vector<std::uint64_t>& temporaries) const;
  std::int64_t local_rows(const records::Settled& settled, int rank, const LocalRows& selection) const;
  bool shapes_may_be_unknown(const os::Segment& segment) const noexcept;

  ScatteredArgument scattered_;  // the first argument that batch selects from
  ScatteredArgument of_nodes_;   // the first one of which each node has a file
  ScatteredArgument minibatch_;  // the last argument that is the batch itself
  std::array<SlicedArgument, kMaxArguments> sliced_;
  std::size_t sliced_count_ = 0;
};

}  // namespace syncrun::detail::master::calls
