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
  /// `describe` names the argument; it is called only to complain.
  template <class Describe>
  void add_scattered(std::int64_t rows, Describe&& describe) {
    if (scattered_rows_ < 0) {
      scattered_rows_ = rows;
    } else if (rows != scattered_rows_) {
      complain_about_rows(describe(), rows);
    }
  }
  void add_sliced(const VariableRecord& variable, std::size_t argument);

  /// Fills in the command's rows. Index lists are copied to the heap and noted in `temporaries`.
  void finish(const std::string& function, int target, const CallOptions& options, SessionCore& session,
              Command& command, std::vector<std::uint64_t>& temporaries) const;

 private:
  struct SlicedArgument {
    const VariableRecord* variable;
    std::size_t argument;
  };

  [[noreturn]] void complain_about_rows(const std::string& argument, std::int64_t rows) const;
  void select_scattered(const CallOptions& options, SessionCore& session, Command& command,
                        std::vector<std::uint64_t>& temporaries) const;
  void select_local(int target, const CallOptions& options, SessionCore& session, Command& command,
                    std::vector<std::uint64_t>& temporaries) const;
  std::int64_t local_rows(int rank, const LocalRows& selection) const;

  std::int64_t scattered_rows_ = -1;
  std::array<SlicedArgument, kMaxArguments> sliced_;
  std::size_t sliced_count_ = 0;
};

}  // namespace syncrun::detail
