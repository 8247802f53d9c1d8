#pragma once

// Writes small data sets, with which the examples image_folder and tar_shards run without a download. Their images are
// noise around the colour of their class, and are of different sizes.

#include <filesystem>

namespace examples {

/// Writes the folders blue, green and red, with 20 images each. Creates `folder`. Throws std::runtime_error if the
/// folder is not empty or cannot be written.
void write_image_folder(const std::filesystem::path& folder);

/// Writes four shards with 15 images each, of classes 0 (blue), 1 (green) and 2 (red). Creates `folder`. Throws
/// std::runtime_error if the folder is not empty or cannot be written.
void write_tar_shards(const std::filesystem::path& folder);

}  // namespace examples
