#include "libtorch/safetensors_header.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using Json = nlohmann::json;

struct TypeRow {
  StoredType type;
  std::string_view name;
  std::size_t bytes;
};
/// By StoredType.
constexpr std::array<TypeRow, kStoredTypes> kTypes{{{StoredType::boolean, "BOOL", 1},
                                                    {StoredType::uint8, "U8", 1},
                                                    {StoredType::int8, "I8", 1},
                                                    {StoredType::int16, "I16", 2},
                                                    {StoredType::int32, "I32", 4},
                                                    {StoredType::int64, "I64", 8},
                                                    {StoredType::float16, "F16", 2},
                                                    {StoredType::bfloat16, "BF16", 2},
                                                    {StoredType::float32, "F32", 4},
                                                    {StoredType::float64, "F64", 8}}};
static_assert([] {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].type != static_cast<StoredType>(i)) return false;
  }
  return true;
}());
constexpr std::uint64_t kLengthBytes = 8;
/// The key of the texts in a header. No tensor has this name.
constexpr const char* kMetadata = "__metadata__";
// The depth of the innermost values, those of a shape, in the JSON text.
constexpr int kDeepest = 3;
// LibTorch's limit for most of its operations.
constexpr std::size_t kMostDimensions = 64;
constexpr std::size_t kLongestQuote = 80;

/// Text of a file in a message: short, and without control characters.
std::string shown(std::string_view text) {
  std::string copy(text.substr(0, kLongestQuote));
  for (char& c : copy) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return "'" + copy + (text.size() > kLongestQuote ? "...'" : "'");
}

/// Throws the errors of one file.
class Refusal {
 public:
  explicit Refusal(std::string_view file) noexcept : file_(file) {}
  [[noreturn]] void operator()(const std::string& what) const {
    throw Error(ErrorKind::usage, std::string(file_) + " is not a safetensors file, or is damaged: " + what);
  }

 private:
  std::string_view file_;
};

/// Parses the JSON text. Refuses names that occur twice, and values that are nested more deeply than the format allows.
Json parse_json(std::string_view text, const Refusal& refuse) {
  std::array<std::set<std::string>, kDeepest> keys;  // the keys so far of the open object at each depth
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) refuse("expected at most " + std::to_string(kDeepest) + " levels of JSON, found more");
    if (event == Json::parse_event_t::object_start && depth < kDeepest) keys[static_cast<std::size_t>(depth)].clear();
    if (event != Json::parse_event_t::key || depth < 1) return true;
    const auto& key = parsed.get_ref<const std::string&>();
    if (!keys[static_cast<std::size_t>(depth) - 1].insert(key).second)
      refuse("expected every name once, found " + shown(key) + " twice");
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    refuse("expected a header in JSON: " + shown(error.what()));
  }
}

std::uint64_t unsigned_in(const Json& value, const std::string& of, const Refusal& refuse) {
  if (!value.is_number_unsigned()) refuse("expected whole numbers from 0 in " + of + ", found " + shown(value.dump()));
  return value.get<std::uint64_t>();
}

/// Refuses an entry that has not exactly the keys `dtype`, `shape` and `data_offsets`.
void check_keys(const std::string& name, const Json& entry, const Refusal& refuse) {
  constexpr std::array<const char*, 3> kKeys{"data_offsets", "dtype", "shape"};
  if (!entry.is_object()) refuse("expected an object for " + shown(name) + ", found " + shown(entry.type_name()));
  for (const char* key : kKeys) {
    if (!entry.contains(key)) refuse("expected '" + std::string(key) + "' for " + shown(name) + ", found none");
  }
  if (entry.size() != kKeys.size())
    refuse("expected 'dtype', 'shape' and 'data_offsets' for " + shown(name) + ", found " +
           std::to_string(entry.size()) + " keys");
  if (!entry["dtype"].is_string()) refuse("expected a text as 'dtype' of " + shown(name));
  if (!entry["shape"].is_array()) refuse("expected a list as 'shape' of " + shown(name));
  if (!entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
    refuse("expected two numbers as 'data_offsets' of " + shown(name));
}

StoredTensor parse_tensor(const std::string& name, const Json& entry, const Refusal& refuse) {
  check_keys(name, entry, refuse);
  StoredTensor tensor;
  tensor.name = name;
  const auto& type = entry["dtype"].get_ref<const std::string&>();
  const auto known = stored_type(type);
  if (!known) refuse("expected an element type that LibTorch has for " + shown(name) + ", found " + shown(type));
  tensor.type = *known;
  if (entry["shape"].size() > kMostDimensions)
    refuse("expected at most " + std::to_string(kMostDimensions) + " dimensions for " + shown(name) + ", found " +
           std::to_string(entry["shape"].size()));
  for (const Json& extent : entry["shape"]) {
    const std::uint64_t value = unsigned_in(extent, "'shape' of " + shown(name), refuse);
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse("the shape of " + shown(name) + " is too large");
    tensor.shape.push_back(static_cast<std::int64_t>(value));
  }
  tensor.begin = unsigned_in(entry["data_offsets"][0], "'data_offsets' of " + shown(name), refuse);
  tensor.end = unsigned_in(entry["data_offsets"][1], "'data_offsets' of " + shown(name), refuse);
  const auto bytes = stored_bytes(tensor.type, tensor.shape);
  if (!bytes) refuse("the shape of " + shown(name) + " is too large");
  if (tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
    refuse("expected " + std::to_string(*bytes) + " bytes for " + shown(name) + ", found the bytes from " +
           std::to_string(tensor.begin) + " to " + std::to_string(tensor.end));
  }
  return tensor;
}

std::map<std::string, std::string> parse_metadata(const Json& metadata, const Refusal& refuse) {
  std::map<std::string, std::string> parsed;
  if (!metadata.is_object()) refuse("expected an object as '__metadata__'");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) refuse("expected texts in '__metadata__', found something else for " + shown(key));
    parsed[key] = value.get<std::string>();
  }
  return parsed;
}

/// Sorts the tensors by their place, and refuses gaps and overlaps.
void check_places(std::vector<StoredTensor>& tensors, std::uint64_t data_bytes, const Refusal& refuse) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t next = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != next) {
      refuse("expected " + shown(tensor.name) + " at byte " + std::to_string(next) + " of the elements, found byte " +
             std::to_string(tensor.begin));
    }
    next = tensor.end;
  }
  if (next != data_bytes) {
    refuse("expected " + std::to_string(next) + " bytes of elements, as the header says, found " +
           std::to_string(data_bytes));
  }
}

std::uint64_t length_at(std::span<const std::byte> bytes) noexcept {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  return length;
}

}  // namespace

std::string_view stored_name(StoredType type) noexcept { return kTypes[static_cast<std::size_t>(type)].name; }

std::size_t size_of(StoredType type) noexcept { return kTypes[static_cast<std::size_t>(type)].bytes; }

std::optional<StoredType> stored_type(std::string_view name) noexcept {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.name == name; });
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
}

std::optional<std::uint64_t> stored_bytes(StoredType type, std::span<const std::int64_t> shape) noexcept {
  std::uint64_t bytes = size_of(type);
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; })) return std::nullopt;
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent == 0; })) return 0;
  for (const std::int64_t extent : shape) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (bytes > kMost / static_cast<std::uint64_t>(extent)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(extent);
  }
  return bytes;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::uint64_t file_bytes, std::string_view name) {
  const Refusal refuse(name);
  if (file_bytes < kLengthBytes || file.size() < kLengthBytes)
    refuse("expected at least " + std::to_string(kLengthBytes) + " bytes, found " + std::to_string(file_bytes));
  const std::uint64_t length = length_at(file);
  if (length > kLongestSafetensorsHeader)
    refuse("expected a header of at most " + std::to_string(kLongestSafetensorsHeader) + " bytes, found " +
           std::to_string(length));
  if (length > file_bytes - kLengthBytes || length > file.size() - kLengthBytes)
    refuse("expected a header of " + std::to_string(length) + " bytes, found " +
           std::to_string(file_bytes - kLengthBytes));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) refuse("expected a header that begins with '{'");
  const Json json = parse_json(text, refuse);
  if (!json.is_object()) refuse("expected an object as the header");

  SafetensorsHeader header;
  header.data_at = kLengthBytes + length;
  for (const auto& [key, value] : json.items()) {
    if (key == kMetadata) header.metadata = parse_metadata(value, refuse);
    else header.tensors.push_back(parse_tensor(key, value, refuse));
  }
  check_places(header.tensors, file_bytes - header.data_at, refuse);
  return header;
}

std::string make_safetensors_header(std::span<StoredTensor> tensors,
                                    const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json[kMetadata] = metadata;
  std::uint64_t next = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == kMetadata)
      throw Error(ErrorKind::usage, std::string("a tensor of a safetensors file cannot have the name '") + kMetadata +
                                        "': it is for texts");
    if (json.contains(tensor.name))
      throw Error(ErrorKind::usage, "a safetensors file has every name once, got " + shown(tensor.name) + " twice");
    const auto bytes = stored_bytes(tensor.type, tensor.shape);
    if (!bytes) throw Error(ErrorKind::usage, "the shape of " + shown(tensor.name) + " is too large");
    tensor.begin = next;
    tensor.end = next + *bytes;
    next = tensor.end;
    json[tensor.name] = {
        {"dtype", stored_name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::usage, std::string("the names in a safetensors file are UTF-8: ") + error.what());
  }
  // Spaces after the text align the elements.
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  std::string header(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) header[i] = static_cast<char>((text.size() >> (8 * i)) & 0xffU);
  return header + text;
}

}  // namespace syncrun::libtorch::detail
