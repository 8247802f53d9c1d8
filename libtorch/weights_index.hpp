#pragma once

// The index of weights that are divided among several files: JSON, as Python's transformers writes it. Uses no LibTorch.

#include <map>
#include <string>
#include <string_view>

namespace syncrun::libtorch::detail {

/// Returns the file of each tensor, by the tensor's name. `text` is the contents of the index, and `name` its name in
/// messages. Files are beside the index. Throws Error (usage) if the index is damaged, or names a file elsewhere.
std::map<std::string, std::string> parse_weights_index(std::string_view text, std::string_view name);

}  // namespace syncrun::libtorch::detail
