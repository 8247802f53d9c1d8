#include <string_view>
#include <unordered_map>

#include "common/arrays/replaced_file.hpp"
#include "libtorch/module_files.hpp"
#include "libtorch/safetensors_header.hpp"
#include "libtorch/stored_tensors.hpp"
#include "libtorch/tensor_files.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/files.hpp"

namespace syncrun::libtorch {

namespace detail {

/// A mapped file and its header.
class MappedSafetensors {
 public:
  explicit MappedSafetensors(const std::filesystem::path& file)
      : name_(file.string()), file_(file), header_(parse_safetensors(file_.bytes(), file_.bytes().size(), name_)) {
    for (const StoredTensor& each : header_.tensors) by_name_.emplace(each.name, &each);
  }
  MappedSafetensors(const MappedSafetensors&) = delete;  // by_name_ refers to the header
  MappedSafetensors& operator=(const MappedSafetensors&) = delete;

  const std::string& name() const noexcept { return name_; }
  const SafetensorsHeader& header() const noexcept { return header_; }
  /// Throws Error (usage) if there is no tensor of this name.
  const StoredTensor& find(std::string_view name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) throw Error(ErrorKind::usage, name_ + " has no tensor '" + std::string(name) + "'");
    return *found->second;
  }
  std::uint64_t offset_of(const StoredTensor& tensor) const noexcept { return header_.data_at + tensor.begin; }
  const std::byte* elements(const StoredTensor& tensor) const noexcept {
    return file_.bytes().data() + offset_of(tensor);
  }

 private:
  std::string name_;
  FileBytes file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, const StoredTensor*> by_name_;
};

namespace {

StoredTensor described(const std::string& name, const ::torch::Tensor& tensor) {
  std::size_t type = 0;
  while (type < kStoredTypes && scalar_of(static_cast<StoredType>(type)) != tensor.scalar_type()) ++type;
  if (type == kStoredTypes || tensor.layout() != ::torch::kStrided) {
    throw Error(ErrorKind::usage, "save_safetensors: '" + name + "' has the type " +
                                      std::string(c10::toString(tensor.scalar_type())) +
                                      ", expected a dense tensor of integers, bool, float16, bfloat16, float32 or "
                                      "float64");
  }
  return {.name = name, .type = static_cast<StoredType>(type), .shape = tensor.sizes().vec()};
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
  const detail::StoredTensor& found = file_->find(name);
  const auto bytes = static_cast<std::size_t>(found.end - found.begin);
  std::vector<std::int64_t> strides(found.shape.size(), 1);
  // Without elements, the product of the other extents may be too large for a number.
  for (std::size_t i = bytes == 0 ? 0 : strides.size(); i > 1; --i)
    strides[i - 2] = strides[i - 1] * found.shape[i - 1];
  return detail::tensor_of({found.type, {file_->elements(found), bytes}, found.shape, strides}, file_,
                           "'" + found.name + "' of " + file_->name());
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
  detail::write_safetensors(file, tensors, metadata, [](std::size_t) {});
}

void detail::write_safetensors(const std::filesystem::path& file,
                               const std::vector<std::pair<std::string, ::torch::Tensor>>& tensors,
                               const std::map<std::string, std::string>& metadata,
                               const std::function<void(std::size_t)>& before) {
  std::vector<StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) stored.push_back(described(name, tensor));
  const std::string header = make_safetensors_header(stored, metadata);
  syncrun::detail::arrays::replace_file(file, [&](const syncrun::detail::arrays::AppendBytes& append) {
    append(std::as_bytes(std::span(header)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      before(i);
      const ::torch::Tensor& tensor = tensors[i].second;
      const auto values = tensor.detach().cpu().contiguous();
      append({static_cast<const std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
    }
  });
}

}  // namespace syncrun::libtorch
