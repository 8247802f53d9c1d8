#pragma once

// Transfers move values to the copies of shared variables, or from them. The workers do them. The functions here bring
// the values to memory that the workers see, and keep the records of the variables up to date.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/arrays/mapped_file.hpp"
#include "master/calls/row_weights.hpp"
#include "master/calls/system_commands.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::variables {

/// The part of one rank in a transfer.
struct TransferPart {
  std::uint64_t offset = 0;  // in the segment; 0: only the shape changes
  Extents extents{};
  bool takes_part = true;
  bool is_zero = false;
};

/// The values that go to the copies of one variable, or come from them.
struct Transfer {
  records::VariableRecord* variable;
  std::vector<TransferPart> parts;  // by rank
};

/// What a change leaves: copies that are equal on all ranks, so that a new worker can get its copy from a peer, or others.
enum class Leaves : std::uint8_t { equal_copies, other_copies };

/// Runs the transfers as one command. `what` names the caller in messages. Throws the error of the command.
void run_transfers(calls::SystemCommands& commands, const records::Room& room, const char* what,
                   protocol::TransferDirection direction, const std::vector<Transfer>& transfers);
/// Lets `run` publish a command that gives the copies the shapes and the values of the transfers, and wait for it. The
/// variables have no users. Brings the records up to date, also if `run` throws. Throws Error (system) if there is too
/// little memory.
void change_copies(calls::SystemCommands& commands, const records::Room& room, const std::vector<Transfer>& transfers,
                   Leaves leaves, const std::function<void()>& run);
/// Settles, and runs transfers to the variables. Brings their records up to date, also if it throws.
void to_variables(calls::SystemCommands& commands, const char* what, const std::vector<Transfer>& transfers,
                  Leaves leaves);
/// The same for transfers that depend on the copies. `plan(room)` makes them from what is known when the variables have no
/// users.
void to_variables(calls::SystemCommands& commands, const char* what, records::VariableRecord& variable, Leaves leaves,
                  const std::function<std::vector<TransferPart>(const records::Room&)>& plan);

/// Starts to fetch one rank's copy of a variable. The values go to the first output of the result. Keeps the variable
/// alive until then. Throws Error (usage) if the rank has lost its copy.
std::shared_ptr<CallResult> launch_fetch(calls::SystemCommands& commands,
                                         const std::shared_ptr<records::VariableRecord>& variable, int rank);

/// Starts to copy the values of rank `from` to rank `to`, which differ. If the copy on rank `to` gets another shape, waits
/// for the calls that use the variable. Throws Error (usage) if rank `from` has no values, and a failure of a call that
/// should have written one of the copies, if the program has not seen it.
void copy_variable(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable, int from,
                   int to);

/// The values of one rank's copy, in the heap.
class FetchedCopy {
 public:
  /// Waits for the rank. `what` names the caller in messages. Throws Error (usage) if the rank has lost its copy.
  FetchedCopy(calls::SystemCommands& commands, records::VariableRecord& variable, int rank, const char* what);
  const Extents& extents() const noexcept { return extents_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// The offset in the segment; 0 if there are no elements.
  std::uint64_t offset() const noexcept { return staging_ ? staging_->offset() : 0; }
  const std::byte* values() const noexcept { return staging_ ? staging_->data() : nullptr; }

 private:
  Extents extents_{};
  std::size_t bytes_ = 0;
  std::optional<calls::HeapLoan> staging_;  // empty if there are no elements
};
/// Gives one rank's copy of a variable values that are in the heap.
void place_copy(calls::SystemCommands& commands, records::VariableRecord& variable, int rank, std::uint64_t from,
                const Extents& extents);

/// Called before the copies get new sizes, which are `bytes` by rank. Checks the growth against the memory limit before
/// any worker allocates. Throws Error (system). `kept` means that the old copies are needed in the meantime.
enum class OldCopies : std::uint8_t { reused, kept };
void check_growth(calls::SystemCommands& commands, const records::VariableRecord& variable,
                  std::span<const std::size_t> bytes, OldCopies old);

/// Reads the present shapes of the copies, which the workers have written. Ranks whose copy no longer exists lose the
/// mark "assigned". No call may be in flight.
void read_extents(const os::Segment& segment, records::VariableRecord& variable);

/// Values to be transferred: their place in the segment, and their shape.
struct Source {
  std::uint64_t offset = 0;
  Extents extents{};
};

/// Brings values to shared memory, unless they are there already. They stay there as long as this object lives.
class Sources {
 public:
  explicit Sources(calls::SystemCommands& commands) : commands_(commands) {}

  Source add(const records::VariableRecord& variable, const void* values, const Extents& extents);
  Source add(const Delivery& delivery);
  /// Adds selected rows only. A slice of an array in shared memory is not copied. Throws Error (usage) if the rows do
  /// not exist. `what` names the caller in messages.
  Source add_rows(const Delivery& delivery, const Rows& rows, const char* what);

 private:
  Source add_of_file(const records::VariableRecord& variable, const arrays::MappedFile& file, std::size_t at,
                     const Extents& extents);
  const void* values_of(const Delivery& delivery) const;

  calls::SystemCommands& commands_;
  std::deque<calls::HeapLoan> staged_;
};

/// Makes the parts of all ranks. The three functions give every rank the same, each rank its share of the rows, or one
/// rank something and the others nothing. The weights say how large the shares are.
std::vector<TransferPart> whole_for_all(int world_size, const Source& source);
std::vector<TransferPart> shares_for_all(const protocol::RankSet& all, const calls::RowWeights& weights,
                                         const records::VariableRecord& variable, const Source& source);
std::vector<TransferPart> only_on(int world_size, int rank, const TransferPart& part);

}  // namespace syncrun::detail::master::variables
