#pragma once

// Options and results of save() and load() in files.hpp.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace syncrun::libtorch {

/// The format of a file.
enum class FileFormat : std::uint8_t {
  /// safetensors if the name of the file ends in ".safetensors", index if it ends in ".index.json", otherwise torch.
  by_name,
  /// That of torch::save and torch::load. load() also reads what torch.save has written from a state_dict in Python
  /// (PyTorch 1.6 or later), and TorchScript.
  torch,
  safetensors,  ///< That of the library safetensors, which Python programs use too.
  index         ///< For load(): JSON that names the file of each tensor, as Python's transformers writes it.
};

/// Which tensors load() requires.
enum class LoadForm : std::uint8_t {
  exact,   ///< The file has exactly the tensors of the module.
  partial  ///< Tensors that only the module has stay as they are, and those that only the file has are skipped.
};

/// Options of load().
struct LoadOptions {
  FileFormat format = FileFormat::by_name;  ///< The format of the file.
  LoadForm form = LoadForm::exact;          ///< What happens to tensors that only one side has.
  /// Load only this part of the file: the tensors whose names begin with it and a dot, without both. For a checkpoint
  /// {"model": model.state_dict(), ...} of Python, it is "model". Empty: load the whole file.
  std::string part{};
  /// What names begin with in the file, and what they begin with in the module in its place: {{"module.", ""}}. The
  /// first pair that fits applies.
  std::vector<std::pair<std::string, std::string>> prefixes{};
  /// The matrices that the file has transposed, by the ends of their names after `prefixes`. Each end fits at least one.
  /// GPT-2 is published with a row for each input of a layer: {"c_attn.weight", "c_proj.weight", "c_fc.weight"}.
  std::vector<std::string> transposed{};
};

/// What load() did not copy. Both lists are empty unless the form is LoadForm::partial.
struct LoadReport {
  std::vector<std::string> missing;     ///< Tensors of the module that the file does not have.
  std::vector<std::string> additional;  ///< Tensors of the file that the module does not have, with their names there.
};

}  // namespace syncrun::libtorch
