#pragma once

// Rows of shared variables in files that all nodes see. The ranks write and read their own rows, each on its node. So the
// rows do not travel to the master. The functions here tell the ranks which bytes of which file are theirs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/arrays/row_range.hpp"
#include "common/arrays/shared_folder.hpp"
#include "common/protocol/node_place.hpp"
#include "master/calls/row_weights.hpp"
#include "master/calls/system_commands.hpp"
#include "master/records/records.hpp"
#include "syncrun/checkpoint.hpp"

namespace syncrun::detail::master::variables {

/// A file with some rows of an array. The files of an array contain its rows in order.
struct RowsFile {
  std::string name;
  std::int64_t rows = 0;
};

/// Consecutive bytes of a rank's copy, and their place among the elements of one of the files.
struct RowsPiece {
  std::size_t file = 0;  // its position in the list of files
  std::uint64_t at = 0;
  std::uint64_t copy_at = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const RowsPiece&, const RowsPiece&) = default;
};

/// Returns the places of these rows in the files. A row has `row_bytes` bytes.
std::vector<RowsPiece> pieces_of(const arrays::RowRange& rows, std::span<const RowsFile> files, std::size_t row_bytes);
/// Those parts of the pieces whose bytes are in [begin, end) of the copy.
std::vector<RowsPiece> cut(std::span<const RowsPiece> pieces, std::uint64_t begin, std::uint64_t end);

/// The most bytes that one command moves on each rank. The call timeout applies to each command.
inline constexpr std::size_t kMostFileBytes = std::size_t{1} << 30U;
/// The same for the first command that compares copies. Copies that differ often do so in their first rows. Then not much
/// was written in vain.
inline constexpr std::size_t kFirstComparedBytes = std::size_t{16} << 20U;

/// A variable, and the files of its array.
struct RowsOnDisk {
  std::shared_ptr<records::VariableRecord> variable;
  arrays::SharedFolder folder;
  std::vector<RowsFile> files;
};

/// Each rank writes its copy to the files. A file contains only rows of one node. Throws Error (system), Error (usage) if a
/// node does not see the folder, and failures of calls that wrote the variable.
void write_rows(calls::SystemCommands& commands, const RowsOnDisk& rows, std::size_t most_bytes = kMostFileBytes);

/// Each rank writes its share of the rows of a variable whose copies should be equal. Each file has the rows
/// of one node's ranks. Returns false if what a rank has written is not what rank 0 has there: then the files are of no use.
/// Throws the same errors as write_rows().
bool write_shares(calls::SystemCommands& commands, const RowsOnDisk& rows, std::size_t most_bytes = kMostFileBytes);

/// Whether all other nodes see the folder. Throws Error (worker_lost, timeout, system). `nodes` are those of the session.
bool is_seen_by_all(calls::SystemCommands& commands, const arrays::SharedFolder& folder,
                    std::span<const protocol::NodePlace> nodes);

/// Rows that the ranks have read, but that are not in the copies yet. If take() was not called, the destructor lets the
/// ranks forget them.
class RowsRead {
 public:
  /// Which rows the ranks read.
  struct Division {
    Extents extents{};  // of the whole array
    Placement placement{};
    calls::RowWeights weights{};  // scattered: how the rows are divided
  };

  /// Lets each rank read its rows. `reading` differs from that of other objects that live at the same time. Throws the same
  /// errors as write_rows(). The copies are unchanged.
  RowsRead(calls::SystemCommands& commands, RowsOnDisk rows, const Division& division, std::uint64_t reading,
           std::size_t most_bytes = kMostFileBytes);
  ~RowsRead();
  RowsRead(const RowsRead&) = delete;
  RowsRead& operator=(const RowsRead&) = delete;

  /// The copies get the rows. Throws Error (system) if a rank has too little memory for its copy, or if a worker was
  /// replaced after it had read rows.
  void take();

 private:
  void drop() noexcept;

  calls::SystemCommands& commands_;
  RowsOnDisk rows_;
  Placement placement_;
  std::vector<Extents> extents_;  // by rank
  std::uint64_t reading_;
  std::uint64_t replacements_;  // of workers, before the first row was read
  bool is_over_ = false;
};

}  // namespace syncrun::detail::master::variables
