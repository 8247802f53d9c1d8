#pragma once

// The header of a safetensors file: a list of tensors, as JSON. Uses no LibTorch. The format: 8 bytes with the length of
// the JSON text (little-endian), the text, and the elements of all tensors without gaps.
// Source: https://huggingface.co/docs/safetensors, section "Format".

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace syncrun::libtorch::detail {

/// An element type of the format that LibTorch has too.
enum class StoredType : std::uint8_t { boolean, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 };
inline constexpr std::size_t kStoredTypes = static_cast<std::size_t>(StoredType::float64) + 1;

/// The name of a type in the header: "F32".
std::string_view stored_name(StoredType type) noexcept;
std::optional<StoredType> stored_type(std::string_view name) noexcept;
/// The size of an element in bytes.
std::size_t size_of(StoredType type) noexcept;

/// One tensor of a file. Its elements are the bytes [begin, end), counted from the end of the header.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::float32;
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their elements
  std::map<std::string, std::string> metadata;
  std::uint64_t data_at = 0;  // bytes of the file before the elements
};

/// The longest JSON text that is read. The reference implementation has the same limit.
inline constexpr std::uint64_t kLongestSafetensorsHeader = 100'000'000;

/// Reads the header of a file. `file` has at least the header's bytes of a file of `file_bytes` bytes. `name` is the
/// file in messages. Throws Error (usage) if the header is damaged: the message says what was expected and what was
/// found.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::uint64_t file_bytes, std::string_view name);

/// Returns the first bytes of a file with these tensors: the length and the JSON text. Sets `begin` and `end` of each
/// tensor. Throws Error (usage) if a name occurs twice, or if a name or the metadata is not UTF-8.
std::string make_safetensors_header(std::span<StoredTensor> tensors,
                                    const std::map<std::string, std::string>& metadata);

/// The number of bytes of a tensor's elements. Returns nothing if an extent is negative, or if the size overflows.
std::optional<std::uint64_t> stored_bytes(StoredType type, std::span<const std::int64_t> shape) noexcept;

}  // namespace syncrun::libtorch::detail
