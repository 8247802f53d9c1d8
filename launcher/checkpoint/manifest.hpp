#pragma once

// The text file in a checkpoint that lists its contents:
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

/// Throws Error (usage) unless the name can be used in a checkpoint, and so as a part of a file name.
void check_name(std::string_view name);

/// Throws Error (usage) if a name is not allowed or appears twice, or if the text is too long.
std::string to_text(const Manifest& manifest);

/// Throws Error (usage) with the line, what was expected and what was found.
Manifest parse_manifest(std::string_view text);

}  // namespace syncrun::detail
