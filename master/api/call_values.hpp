#pragma once

// The Values of a call: those that it uses, and those that it makes.

#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>

#include "common/protocol/command.hpp"
#include "master/calls/in_flight.hpp"

namespace syncrun::detail::master::dispatch {

class CommandDispatcher;

}  // namespace syncrun::detail::master::dispatch

namespace syncrun::detail::text {

class Logger;

}  // namespace syncrun::detail::text

namespace syncrun::detail {

/// The Values of the call that is being written. `in_flight` has its arguments.
class CallValues {
 public:
  /// Refers to all arguments as long as it lives.
  CallValues(master::dispatch::CommandDispatcher& commands, text::Logger& logger,
             const master::records::FunctionRecord& function, master::calls::InFlight& in_flight) noexcept
      : commands_(commands), logger_(logger), function_(function), in_flight_(in_flight) {}

  /// Throws Error (usage) if the ranks cannot use the values: several ranks write one, or one is pinned to another rank.
  /// Throws the failure of a value that was never made, or was lost. Returns a failure of a value's last writer that the
  /// program has not seen, or null.
  std::exception_ptr check(const protocol::RankSet& ranks);
  /// Brings copies to the ranks that have none. Does not wait for them. Other commands are published before the call.
  /// Throws and returns as check() does.
  std::exception_ptr bring(protocol::RankSet ranks);
  /// The call comes after the commands that wrote the copies, and if it writes, after those that read them.
  void depend(const protocol::RankSet& ranks);
  /// Called after the call was published.
  void note(const protocol::RankSet& ranks, std::uint64_t command);

  /// Makes the Values that the call returns: its outputs that stay on the device, as far as the caller wants them. Throws
  /// Error (usage) if several ranks run the call, or if it has slices; system.
  void make(const protocol::CallPayload& call, const protocol::RankSet& ranks, CallResult& result,
            protocol::Command& slot);

 private:
  template <class Visit>
  void for_each(Visit&& visit);
  bool needs_copies(const protocol::RankSet& ranks);
  bool bring_missing(const protocol::RankSet& ranks);

  master::dispatch::CommandDispatcher& commands_;
  text::Logger& logger_;
  const master::records::FunctionRecord& function_;
  master::calls::InFlight& in_flight_;
};

/// Makes the record of a Value without a copy. Throws Error (system).
std::shared_ptr<master::records::VariableRecord> make_value_record(
    const std::shared_ptr<master::session::SessionCore>& session, DType dtype, std::size_t dimensions,
    std::string_view name);

}  // namespace syncrun::detail
