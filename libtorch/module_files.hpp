#pragma once

// Which tensors of a file belong to which tensors of a module.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/module_tensors.hpp"
#include "libtorch/weights_file.hpp"
#include "syncrun/torch/file_options.hpp"

namespace syncrun::libtorch::detail {

/// A tensor of a module, and the one for it in a file.
struct Match {
  ::torch::Tensor to;
  ::torch::Tensor from;
};
struct Matches {
  std::vector<Match> tensors;
  LoadReport report;
};

/// Finds the tensors of a file that belong to those of a module. Throws Error (usage), which names the first tensor that
/// has another shape or type, or that is missing or left over although the form is exact.
Matches match_tensors(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, LoadForm form,
                      const std::filesystem::path& file);
/// The same, and copies them.
LoadReport copy_into(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, LoadForm form,
                     const std::filesystem::path& file);

/// save_safetensors(), which calls `before` with the number of each tensor before it reads its values.
void write_safetensors(const std::filesystem::path& file,
                       const std::vector<std::pair<std::string, ::torch::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::size_t)>& before);

}  // namespace syncrun::libtorch::detail
