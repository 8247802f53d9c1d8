#include "libtorch/stored_tensors.hpp"

#include <algorithm>
#include <array>

#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

::torch::ScalarType scalar_of(StoredType type) noexcept {
  constexpr std::array<::torch::ScalarType, kStoredTypes> kByType{
      ::torch::kBool,  ::torch::kUInt8,   ::torch::kInt8,     ::torch::kInt16,   ::torch::kInt32,
      ::torch::kInt64, ::torch::kFloat16, ::torch::kBFloat16, ::torch::kFloat32, ::torch::kFloat64};
  return kByType[static_cast<std::size_t>(type)];
}

::torch::Tensor tensor_of(const StoredElements& elements, std::shared_ptr<const void> file, const std::string& name) {
  const auto options = ::torch::TensorOptions().dtype(scalar_of(elements.type));
  if (elements.bytes.empty()) return ::torch::empty(elements.shape, options);
  if (elements.type == StoredType::boolean &&
      std::any_of(elements.bytes.begin(), elements.bytes.end(), [](std::byte byte) { return byte > std::byte{1}; }))
    throw Error(ErrorKind::usage, "expected bools of 0 or 1 in " + name + ", found another value, which is undefined");
  auto* const data = const_cast<std::byte*>(elements.bytes.data());  // LibTorch has no tensors that are const
  const std::size_t element_bytes = size_of(elements.type);
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes == 0) {
    const auto keep = [file = std::move(file)](void*) {};
    return ::torch::from_blob(data, elements.shape, elements.strides, keep, options);
  }
  const auto count = static_cast<std::int64_t>(elements.bytes.size() / element_bytes);
  const ::torch::Tensor copy = ::torch::empty({count}, options);
  std::copy(elements.bytes.begin(), elements.bytes.end(), static_cast<std::byte*>(copy.data_ptr()));
  return copy.as_strided(elements.shape, elements.strides);
}

}  // namespace syncrun::libtorch::detail
