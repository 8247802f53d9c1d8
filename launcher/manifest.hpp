#pragma once

// The text file of a checkpoint that says what is in it:
//
//   syncrun checkpoint 1
//   array params replicated
//   array rows scattered
//   value epoch 3
//   value note two lines\nof text
//   end

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/checkpoint.hpp"

namespace syncrun::detail {

struct Manifest {
  std::vector<std::pair<std::string, Placement>> arrays;
  std::vector<std::pair<std::string, std::string>> values;
};

inline constexpr std::size_t kLongestManifest = std::size_t{16} << 20U;

/// Throws Error (usage) unless it can be a name in a checkpoint, and so part of a file's.
void check_name(std::string_view name);

/// Throws Error (usage) if names are bad or are there twice, or it is too long.
std::string to_text(const Manifest& manifest);

/// Throws Error (usage) with the line, what was expected and what was found.
Manifest parse_manifest(std::string_view text);

}  // namespace syncrun::detail
