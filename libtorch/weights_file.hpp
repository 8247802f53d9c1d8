#pragma once

// The tensors of a file with weights, in each format that load() reads, under the names that the options give to them.

#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>

#include "syncrun/torch/file_options.hpp"

namespace syncrun::libtorch::detail {

/// A tensor of a file. Its elements are in the memory of the mapped file.
struct FoundTensor {
  ::torch::Tensor tensor;  // undefined if it cannot be read
  std::string unread;      // why it cannot be read
  std::string in_file;     // its name in the file
};
/// The tensors of a file, by the name that the module gives to them.
using FoundTensors = std::map<std::string, FoundTensor>;

/// Lists the tensors of a file. `options.format` is not by_name. Throws Error: usage if the file is damaged or contains
/// code, if it does not have the part that the options name, or if two names become one; system if it cannot be read.
FoundTensors read_weights(const std::filesystem::path& file, const LoadOptions& options);

}  // namespace syncrun::libtorch::detail
