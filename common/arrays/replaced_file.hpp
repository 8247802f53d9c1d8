#pragma once

// A file that is written anew. Readers find its old contents or all of the new ones.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::arrays {

using AppendBytes = std::function<void(std::span<const std::byte>)>;

/// Writes the file through `fill`, which gets a function that appends bytes. They go to the temporary file NAME.tmp beside
/// it, which then replaces the file. The new contents are on the disk when this returns. Throws Error (usage) if another
/// process is writing there, Error (system), and what `fill` throws.
SYNCRUN_EXPORT_FOR_CUDA void replace_file(const std::filesystem::path& file,
                                          const std::function<void(const AppendBytes&)>& fill);

}  // namespace syncrun::detail::arrays
