#pragma once

// The text file in a checkpoint that lists its contents:
//
//   syncrun checkpoint 1
//   array params replicated
//   array rows scattered
//   value epoch 3
//   value note two lines\nof text
//   end
//
// If nodes have written parts of an array, each to a file of its own, the text says so. The parts are in row order:
//
//   syncrun checkpoint 2
//   id 0f8e...             of the folder
//   array rows scattered
//   part 5 n1              5 rows in rows@0.npy, which node n1 has written
//   part 3 n2              3 rows in rows@1.npy
//   end

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/checkpoint.hpp"

namespace syncrun::detail::master::checkpoint {

/// A part of an array, in a file of its own.
struct ManifestPart {
  std::int64_t rows = 0;
  std::string node;  // that has written it
  friend bool operator==(const ManifestPart&, const ManifestPart&) = default;
};

struct ManifestArray {
  std::string name;
  Placement placement{};
  std::vector<ManifestPart> parts{};  // empty: the array is in one file
  friend bool operator==(const ManifestArray&, const ManifestArray&) = default;
};

struct Manifest {
  std::vector<ManifestArray> arrays;
  std::vector<std::pair<std::string, std::string>> values;
  std::string folder_id{};  // only if an array has parts

  bool has_parts() const noexcept;
};

inline constexpr std::size_t kLongestManifest = std::size_t{16} << 20U;

/// The file of an array, and of one of its parts. No name of an array has an '@'.
std::string file_of(std::string_view name);
std::string file_of_part(std::string_view name, std::size_t part);

/// Throws Error (usage) unless the name can be used in a checkpoint, and so as a part of a file name.
void check_name(std::string_view name);

/// Throws Error (usage) if a name is not allowed or appears twice, or if the text is too long.
std::string to_text(const Manifest& manifest);

/// Throws Error (usage) with the line, what was expected and what was found.
Manifest parse_manifest(std::string_view text);

}  // namespace syncrun::detail::master::checkpoint
