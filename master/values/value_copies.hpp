#pragma once

// The copies of a Value: which are valid, how one comes to a rank, and which may be dropped.
//
// A copy comes to a rank by a move, a command of this rank alone. The move begins when the rank that has the values is
// done with the command that wrote them. Nobody waits for the move but its rank.

#include <cstdint>
#include <memory>
#include <string>

#include "master/calls/system_commands.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::values {

/// Throws if the value was never made, or was lost. The program has then seen the failure.
void check_is_whole(calls::SystemCommands& commands, const records::VariableRecord& variable);

/// A failure of the call that wrote the value last, if the program has not seen it. Otherwise null.
std::exception_ptr unseen_failure(calls::SystemCommands& commands, const records::VariableRecord& variable);
/// Throws that failure, or the one that check_is_whole() throws.
void check_is_usable(calls::SystemCommands& commands, const records::VariableRecord& variable);

/// Makes the extents known: waits for the call that makes the value. Throws its failure.
void settle_extents(calls::SystemCommands& commands, records::VariableRecord& variable);

/// True if the rank has a valid copy, or will have one when its commands so far are done. The copy is then needed: the
/// worker does not drop it before mark_spare_copies().
bool claim_copy(calls::SystemCommands& commands, records::VariableRecord& variable, int rank);

/// The home, whose copy is then needed. If its worker has dropped this copy, the home is a rank that still has one, or
/// ValueState::kHost if there is none.
int claim_home(calls::SystemCommands& commands, records::VariableRecord& variable);

/// Brings a copy to a rank that has none. Does not wait for it. Throws if the value was lost. Returns a warning if the
/// value moves to and fro, else an empty text.
std::string bring_copy(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable,
                       int rank);
/// Gives the value these values, which are in the memory of the host. Commands in flight keep what they use.
void replace_values(calls::SystemCommands& commands, records::VariableRecord& variable, const Extents& extents,
                    const records::HostCopy& values);
/// Brings a copy to the memory of the host. Does not wait for it. The extents must be known. Throws the failures that
/// check_is_usable() throws.
void bring_to_host(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable);

enum class Access : std::uint8_t { reads, writes };
/// The next command of this rank uses the rank's copy, so it depends on the commands that wrote the copy. If it writes,
/// it also waits for the moves that read the copy.
void depend_on_copy(calls::SystemCommands& commands, const records::VariableRecord& variable, int rank, Access access);
/// The same, after the command was published. If it writes, all other copies are no longer valid.
void note_use(calls::SystemCommands& commands, records::VariableRecord& variable, int rank, Access access,
              std::uint64_t command);

/// Lets the workers drop copies when they run out of memory, as long as one valid copy stays. A copy on its way does not
/// count as valid. A pinned copy stays.
void mark_spare_copies(calls::SystemCommands& commands, records::VariableRecord& variable);

/// A copy has come there, so it may take the place of another one.
void note_arrival(calls::SystemCommands& commands, records::VariableRecord& variable, records::Destination to);

/// The rank was lost with its copy. If no other copy is valid, the value is lost.
void forget_copy(const os::Segment& segment, records::VariableRecord& variable, int rank);

}  // namespace syncrun::detail::master::values
