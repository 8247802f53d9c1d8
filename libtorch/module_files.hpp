#pragma once

// Which tensors of a file belong to which tensors of a module.

#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "libtorch/module_tensors.hpp"

namespace syncrun::libtorch::detail {

/// The tensors of a file, by name.
using FoundTensors = std::map<std::string, ::torch::Tensor>;

/// Reads the tensors of a file that torch::save has written from a module of this structure. Throws Error (usage) if the
/// file is damaged or has another form.
FoundTensors read_archive(const std::filesystem::path& file, const ::torch::nn::Module& module);

/// Copies the tensors of a file into those of a module. Checks all of them first: throws Error (usage), which names the
/// first tensor that is missing, has another shape or type, or is left over. Then nothing was copied.
void copy_into(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, const std::filesystem::path& file);

}  // namespace syncrun::libtorch::detail
