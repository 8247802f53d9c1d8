#pragma once

// Which rows a call is about: agreement of its arguments, batch, batch_s and slices, checked before anything moves.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/control_block.hpp"
#include "launcher/records.hpp"

namespace syncrun::detail {

class SessionCore;

/// Checks a selection against the rows there are, and writes it down for the workers: an index list goes to the heap and
/// is noted in `temporaries`. `option` and `of` say in messages what was asked, and of what.
RowsSlot write_selection(const Rows& rows, std::int64_t available, const char* option, const std::string& of,
                         SessionCore& session, std::vector<std::uint64_t>& temporaries);

class RowsCheck {
 public:
  void add_scattered(const FunctionRecord& function, const DataRecord& data, std::size_t argument, DataRows rows) {
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
  }
  void add_sliced(const VariableRecord& variable, std::size_t argument);

  /// Fills in the call's rows, for `ranks`. Index lists are copied to the heap and noted in `temporaries`.
  void finish(const FunctionRecord& function, const RankSet& ranks, const CallOptions& options, SessionCore& session,
              CallPayload& call, std::vector<std::uint64_t>& temporaries) const;

 private:
  struct SlicedArgument {
    const VariableRecord* variable;
    std::size_t argument;
  };

  struct ScatteredArgument {
    const DataRecord* data = nullptr;
    std::size_t argument = 0;
  };

  [[noreturn]] static void complain_about_rows(const FunctionRecord& function, const ScatteredArgument& first,
                                               const ScatteredArgument& other);
  bool has_scattered() const noexcept { return scattered_.data != nullptr || minibatch_.data != nullptr; }
  void select_scattered(const FunctionRecord& function, const CallOptions& options, SessionCore& session,
                        CallPayload& call, std::vector<std::uint64_t>& temporaries) const;
  void select_local(const FunctionRecord& function, const RankSet& ranks, const CallOptions& options,
                    SessionCore& session, CallPayload& call, std::vector<std::uint64_t>& temporaries) const;
  std::int64_t local_rows(int rank, const LocalRows& selection) const;

  ScatteredArgument scattered_;  // the first that batch selects from
  ScatteredArgument minibatch_;  // the last that is the batch itself
  std::array<SlicedArgument, kMaxArguments> sliced_;
  std::size_t sliced_count_ = 0;
};

}  // namespace syncrun::detail
