#pragma once

// What the master remembers of a command in flight.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/command.hpp"
#include "master/records/records.hpp"
#include "master/records/unseen_failures.hpp"

namespace syncrun::detail::master::calls {

/// What a command requires of an earlier one.
enum class Requirement : std::uint8_t {
  success,  ///< The command fails if the earlier one fails.
  end,      ///< The earlier one only has to be over, for example because it reads what the command overwrites.
};

/// An earlier command on which a command depends. See Dependency.
struct EarlierCommand {
  std::uint64_t id = 0;
  int rank = protocol::Dependency::kOwnRank;  // which must be done with it before the command begins
  Requirement requirement = Requirement::success;

  bool must_succeed() const noexcept { return requirement == Requirement::success; }
};

/// What an argument refers to. Both are null for a value, which is copied.
struct Argument {
  std::shared_ptr<records::DataRecord> data;
  std::shared_ptr<records::VariableRecord> variable;
};

/// The objects that a command in flight keeps alive, and the place for its result.
struct InFlight {
  CallResult* result = nullptr;
  std::shared_ptr<CallResult> kept_result;  // of a future
  std::shared_ptr<records::FunctionRecord> function;
  std::array<Argument, kMaxArguments> arguments;
  std::size_t arguments_count = 0;
  std::shared_ptr<void> host_copy;         // memory that a move reads or writes, and that no Value has any more
  std::vector<std::uint64_t> temporaries;  // in the heap: index lists, large values
  std::vector<EarlierCommand> dependencies;
  std::shared_ptr<records::CallFailure> inherited;             // the failure of one of them, once it is known
  std::vector<std::shared_ptr<records::VariableRecord>> made;  // the Values that the call makes
  std::shared_ptr<records::ObjectRecord> constructed;          // for a construction
  std::uint64_t fetched = 0;  // for a fetch: offset of the values, which go to the first output
  records::Destination brings_to = records::Destination::none();  // of a copy of a variable (arguments[0])
  const char* what = "";            // for commands that are not function calls: "all_reduce", ...
  std::string subject;              // for the same commands: the variable
  std::vector<std::string> writes;  // the variables that the command writes to

  void reset() noexcept;
  /// The function's name, or what the command does: "step", "all_reduce of weights".
  std::string name() const;
  /// True if the command fails if this one fails.
  bool depends_on(std::uint64_t id) const noexcept {
    return std::any_of(dependencies.begin(), dependencies.end(),
                       [id](const EarlierCommand& earlier) { return earlier.id == id && earlier.must_succeed(); });
  }
  /// True if the command uses this: a Data, a variable or a replicated object.
  bool uses(const void* record) const noexcept;
  /// Calls `visit(writers)` with the WriteLog of each variable and object that the call writes.
  template <class Visit>
  void for_each_written(Visit&& visit) const {
    if (!function) return;
    const auto& types = function->signature.arguments;
    for (std::size_t i = 0; i < arguments_count; ++i) {
      if (records::is_written(types[i].kind)) visit(arguments[i].variable->writes);
    }
    if (function->object && function->writes_object) visit(function->object->writes);
  }
  /// The same for who outlives the call. Each pointer keeps the variable or the object alive.
  std::vector<std::shared_ptr<records::WriteLog>> written() const;
};

}  // namespace syncrun::detail::master::calls
