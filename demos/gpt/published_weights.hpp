#pragma once

// Weights to begin with: GPT-2's published ones, or those that this program has saved.

#include <filesystem>
#include <syncrun/torch.hpp>

#include "demos/gpt/model_config.hpp"

namespace gpt {

/// How lt::load() reads a safetensors file with the weights of a GPT-2. Its names may begin with "transformer.", and the
/// matrices of the layers may have a row for each input, as OpenAI and Hugging Face publish them. Other tensors of the
/// file, such as masks of the attention, are skipped. The program calls this before it starts any worker. Throws
/// UsageError if the file cannot be read, lacks a tensor, or is of a model with other sizes. The number of heads cannot be
/// seen in a file.
syncrun::libtorch::LoadOptions how_to_load(const std::filesystem::path& file, const ModelConfig& model);

}  // namespace gpt
