#include "demos/gpt/token_files.hpp"

#include <string>
#include <system_error>

#include "demos/common/usage_error.hpp"

namespace gpt {
namespace {

TokenFile measure(const std::filesystem::path& path, std::int64_t least_tokens) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(path, failure);
  if (failure) throw demos::UsageError("--data: cannot read " + path.string() + ": " + failure.message());
  const auto tokens = static_cast<std::int64_t>(bytes / sizeof(std::uint16_t));
  if (tokens >= least_tokens && bytes % sizeof(std::uint16_t) == 0) return {path, tokens};
  throw demos::UsageError("--data: expected " + std::to_string(least_tokens) + " tokens of two bytes or more in " +
                          path.string() + " (--block-size + 1), found " + std::to_string(bytes) + " bytes");
}

}  // namespace

TokenFiles::TokenFiles(const std::filesystem::path& folder, std::int64_t least_tokens)
    : vocabulary_(folder / "vocab.txt"),
      training_(measure(folder / "train.bin", least_tokens)),
      held_out_(measure(folder / "val.bin", least_tokens)) {}

}  // namespace gpt
