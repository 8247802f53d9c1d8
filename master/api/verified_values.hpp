#pragma once

// What Session::verify compares: the results of one way to run a call, as numbers, and their comparison. No session.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/detail/call.hpp"
#include "syncrun/verify.hpp"

namespace syncrun::detail {

/// A result of a call, or a variable that it has written.
struct VerifiedValues {
  std::string what;  // "output 'loss'"
  Extents extents{};
  std::vector<double> numbers;
  bool is_gathered = false;  // it can have a row for each rank and slice, and is not compared then
  bool is_gradient = false;
  bool is_same = false;  // as in the first run, so its numbers are not kept
};

/// What one way to run the call has given.
struct VerifiedRun {
  enum class Kind : std::uint8_t { one, one_again, other_random_numbers, another_rank, all, other_shares, slices };
  Kind kind;
  std::string text;  // "on all 3 ranks"
  int parts = 1;     // how many parts the rows have, if they are about equal
  std::vector<VerifiedValues> values{};
  std::string failure{};  // the message, if the call failed
};

/// The part of a flat gradient that is one parameter.
struct NamedPart {
  std::string name;
  std::int64_t begin;
  std::int64_t end;
};

/// What the workers say about modules.
struct ModuleFacts {
  std::vector<std::string> normalisations;  // "BatchNorm2d 'bn1'"
  std::vector<std::string> dropouts;
  std::vector<NamedPart> parts;  // of the only module; else empty
};

/// Reads the lines that state keepers write: "normalisation NAME", "random NAME", "module", "part BEGIN END NAME".
ModuleFacts module_facts_from(std::string_view text);

/// The elements of an array as numbers.
std::vector<double> numbers_of(DType dtype, const void* elements, std::size_t count);

/// The norm of the difference, divided by the norm of `expected`. Infinite if one is not finite where the other is, or if
/// all of `expected` is zero and `found` is not.
double relative_difference(std::span<const double> expected, std::span<const double> found);

/// Frees the numbers of a run that are the same as those of the first one.
void drop_same(const VerifiedRun& first, VerifiedRun& run, const VerifyOptions& options);

/// Compares the runs with the first one, and finds the likely reason. `reads_whole_arrays`: the call has a Broadcast or a
/// Local to read, so it may use the wrong row of it.
Verification compare_runs(std::span<const VerifiedRun> runs, const ModuleFacts& facts, bool reads_whole_arrays,
                          const VerifyOptions& options);

}  // namespace syncrun::detail
