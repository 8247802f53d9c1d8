#pragma once

// The tensors of a file that torch.save (Python, since PyTorch 1.6), torch.jit.save or torch::save (C++) wrote. Uses no
// LibTorch. Nothing in the file is executed.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libtorch/safetensors_header.hpp"

namespace syncrun::libtorch::detail {

/// A tensor of an archive.
struct ArchivedTensor {
  /// The keys and attributes that lead to it, with dots between them: "model.layer1.0.weight".
  std::string name;
  /// Why the tensor cannot be read, such as "a tensor of QInt8Storage". Empty if it can. Otherwise, nothing else is set.
  std::string unread;
  StoredType type = StoredType::float32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;      // in elements
  std::span<const std::byte> elements{};  // from the first to the last one, in the memory of the file
};

/// Reads the list of tensors. In an archive of TorchScript, these are the parameters and the buffers. `file` is the whole
/// file, and `name` its name in messages. Throws Error (usage) if the file is damaged, if its pickle contains code (the
/// message names it), or if a name occurs twice.
std::vector<ArchivedTensor> read_weights_archive(std::span<const std::byte> file, std::string_view name);

}  // namespace syncrun::libtorch::detail
