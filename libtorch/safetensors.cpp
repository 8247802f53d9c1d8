#include <algorithm>
#include <array>

#include "common/arrays/replaced_file.hpp"
#include "libtorch/safetensors_header.hpp"
#include "libtorch/tensor_files.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/files.hpp"

namespace syncrun::libtorch {

namespace detail {

/// A mapped file and its header.
class MappedSafetensors {
 public:
  explicit MappedSafetensors(const std::filesystem::path& file)
      : name_(file.string()), file_(file), header_(parse_safetensors(file_.bytes(), file_.bytes().size(), name_)) {}

  const std::string& name() const noexcept { return name_; }
  const SafetensorsHeader& header() const noexcept { return header_; }
  /// Throws Error (usage) if there is no tensor of this name.
  const StoredTensor& find(std::string_view name) const {
    const auto& tensors = header_.tensors;
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& each) { return each.name == name; });
    if (found == tensors.end()) throw Error(ErrorKind::usage, name_ + " has no tensor '" + std::string(name) + "'");
    return *found;
  }
  std::uint64_t offset_of(const StoredTensor& tensor) const noexcept { return header_.data_at + tensor.begin; }
  const std::byte* elements(const StoredTensor& tensor) const noexcept {
    return file_.bytes().data() + offset_of(tensor);
  }

 private:
  std::string name_;
  FileBytes file_;
  SafetensorsHeader header_;
};

namespace {

struct TypePair {
  StoredType stored;
  ::torch::ScalarType scalar;
};
constexpr std::array<TypePair, kStoredTypes> kTypePairs{{{StoredType::boolean, ::torch::kBool},
                                                         {StoredType::uint8, ::torch::kUInt8},
                                                         {StoredType::int8, ::torch::kInt8},
                                                         {StoredType::int16, ::torch::kInt16},
                                                         {StoredType::int32, ::torch::kInt32},
                                                         {StoredType::int64, ::torch::kInt64},
                                                         {StoredType::float16, ::torch::kFloat16},
                                                         {StoredType::bfloat16, ::torch::kBFloat16},
                                                         {StoredType::float32, ::torch::kFloat32},
                                                         {StoredType::float64, ::torch::kFloat64}}};

::torch::ScalarType scalar_of(StoredType type) noexcept {
  return std::find_if(kTypePairs.begin(), kTypePairs.end(), [&](const TypePair& pair) { return pair.stored == type; })
      ->scalar;
}

StoredTensor described(const std::string& name, const ::torch::Tensor& tensor) {
  const auto* pair = std::find_if(kTypePairs.begin(), kTypePairs.end(),
                                  [&](const TypePair& each) { return each.scalar == tensor.scalar_type(); });
  if (pair == kTypePairs.end() || tensor.layout() != ::torch::kStrided) {
    throw Error(ErrorKind::usage, "save_safetensors: '" + name + "' has the type " +
                                      std::string(c10::toString(tensor.scalar_type())) +
                                      ", expected a dense tensor of integers, bool, float16, bfloat16, float32 or "
                                      "float64");
  }
  return {.name = name, .type = pair->stored, .shape = tensor.sizes().vec()};
}

}  // namespace
}  // namespace detail

Safetensors::Safetensors(const std::filesystem::path& file)
    : file_(std::make_shared<const detail::MappedSafetensors>(file)) {}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& each : file_->header().tensors) names.push_back(each.name);
  return names;
}

::torch::Tensor Safetensors::tensor(std::string_view name) const {
  const detail::StoredTensor* const found = &file_->find(name);
  const auto options = ::torch::TensorOptions().dtype(detail::scalar_of(found->type));
  if (found->begin == found->end) return ::torch::empty(found->shape, options);
  auto* const elements = const_cast<std::byte*>(file_->elements(*found));  // LibTorch has no tensors that are const
  if (found->type == detail::StoredType::boolean) {
    const std::span bytes(elements, static_cast<std::size_t>(found->end - found->begin));
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; }))
      throw Error(ErrorKind::usage, file_->name() + ": expected bools of 0 or 1 in '" + found->name +
                                        "', found another value, which is undefined");
  }
  const auto keep = [file = file_](void*) {};
  if (reinterpret_cast<std::uintptr_t>(elements) % detail::size_of(found->type) == 0)
    return ::torch::from_blob(elements, found->shape, keep, options);
  // The format allows elements that are not aligned. They are copied.
  const auto bytes = static_cast<std::int64_t>(found->end - found->begin);
  ::torch::Tensor copy = ::torch::empty(found->shape, options);
  std::copy_n(elements, bytes, static_cast<std::byte*>(copy.data_ptr()));
  return copy;
}

std::int64_t Safetensors::offset_of(std::string_view name) const {
  return static_cast<std::int64_t>(file_->offset_of(file_->find(name)));
}

namespace detail {

TensorPlace place_in_file(const std::filesystem::path& file, std::string_view tensor, ::torch::ScalarType type,
                          std::size_t dimensions) {
  const MappedSafetensors mapped(file);
  const StoredTensor& found = mapped.find(tensor);
  if (scalar_of(found.type) != type || found.shape.size() != dimensions) {
    throw Error(ErrorKind::usage, mapped.name() + ": expected '" + found.name + "' with " + c10::toString(type) +
                                      " elements and " + std::to_string(dimensions) + " dimensions, found " +
                                      c10::toString(scalar_of(found.type)) + " and " +
                                      std::to_string(found.shape.size()));
  }
  return {found.shape, static_cast<std::int64_t>(mapped.offset_of(found))};
}

}  // namespace detail

const std::map<std::string, std::string>& Safetensors::metadata() const noexcept { return file_->header().metadata; }

void save_safetensors(const std::filesystem::path& file,
                      const std::vector<std::pair<std::string, ::torch::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<detail::StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) stored.push_back(detail::described(name, tensor));
  const std::string header = detail::make_safetensors_header(stored, metadata);
  syncrun::detail::arrays::replace_file(file, [&](const syncrun::detail::arrays::AppendBytes& append) {
    append(std::as_bytes(std::span(header)));
    for (const auto& [name, tensor] : tensors) {
      const auto values = tensor.detach().cpu().contiguous();
      append({static_cast<const std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
    }
  });
}

}  // namespace syncrun::libtorch
