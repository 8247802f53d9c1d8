#pragma once

// Which tensors of a file belong to which tensors of a module.

#include <filesystem>
#include <vector>

#include "libtorch/module_tensors.hpp"
#include "libtorch/weights_file.hpp"
#include "syncrun/torch/file_options.hpp"

namespace syncrun::libtorch::detail {

/// Copies the tensors of a file into those of a module. Checks all of them first: throws Error (usage), which names the
/// first tensor that has another shape or type, or that is missing or left over although the form is exact. Then nothing
/// was copied.
LoadReport copy_into(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, LoadForm form,
                     const std::filesystem::path& file);

}  // namespace syncrun::libtorch::detail
