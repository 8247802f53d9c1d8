#include "libtorch/weights_archive.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "libtorch/pickle.hpp"
#include "libtorch/zip_records.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

struct StorageName {
  std::string_view name;
  StoredType type;
};
constexpr std::array<StorageName, kStoredTypes> kStorages{{{"BoolStorage", StoredType::boolean},
                                                           {"ByteStorage", StoredType::uint8},
                                                           {"CharStorage", StoredType::int8},
                                                           {"ShortStorage", StoredType::int16},
                                                           {"IntStorage", StoredType::int32},
                                                           {"LongStorage", StoredType::int64},
                                                           {"HalfStorage", StoredType::float16},
                                                           {"BFloat16Storage", StoredType::bfloat16},
                                                           {"FloatStorage", StoredType::float32},
                                                           {"DoubleStorage", StoredType::float64}}};
constexpr int kDeepestValue = 100;
constexpr std::size_t kLongestName = 4'096;
constexpr std::size_t kLongestShown = 120;
// A pickle may have so many visits and bytes of tensors, and in addition as many as its size allows. A value that occurs
// several times is visited several times.
constexpr std::size_t kMostVisits = 1'000;
constexpr std::size_t kMostTensorBytes = 1'000'000;
constexpr std::size_t kTensorBytesPerByte = 16;

/// A class by its module and its name, which are in the memory of the pickle.
using ClassName = std::pair<std::string_view, std::string_view>;

/// The attributes of each TorchScript class that are parameters or buffers, from the code of an archive. The code has
/// lines such as `__parameters__ = ["weight", "bias", ]` after that of the class.
class ScriptClasses {
 public:
  /// Reads the code only if the pickle has objects of such classes.
  ScriptClasses(ZipRecords& records, const Pickle& pickle) {
    for (const PickleValue& value : pickle.values()) {
      if (const auto* object = value.as<PickledObject>()) classes_[{object->type.module, object->type.name}];
    }
    if (classes_.empty()) return;
    constexpr std::string_view kFolder = "code/";
    constexpr std::string_view kEnding = ".py";
    for (const std::string& record : records.names(kFolder)) {
      if (!record.ends_with(kEnding)) continue;
      std::string module = record.substr(kFolder.size(), record.size() - kFolder.size() - kEnding.size());
      std::replace(module.begin(), module.end(), '/', '.');
      if (has_module(module)) add(module, records.text(record));
    }
  }
  /// Whether an attribute is a parameter or a buffer. If there is no code of the class, all tensors are.
  bool is_state(const PickledGlobal& type, std::string_view attribute) const {
    const auto& found = classes_.at({type.module, type.name});
    return !found || found->find(attribute) != found->end();
  }

 private:
  using Attributes = std::set<std::string, std::less<>>;

  bool has_module(std::string_view module) const {
    const auto first = classes_.lower_bound({module, ""});
    return first != classes_.end() && first->first.first == module;
  }
  void add(std::string_view module, std::string_view code) {
    Attributes* open = nullptr;
    while (!code.empty()) {
      const std::string_view line = code.substr(0, code.find('\n'));
      code.remove_prefix(std::min(code.size(), line.size() + 1));
      constexpr std::string_view kClass = "class ";
      if (line.starts_with(kClass)) {
        const std::string_view rest = line.substr(kClass.size());
        const auto found = classes_.find({module, rest.substr(0, rest.find_first_of("(:"))});
        open = found == classes_.end() ? nullptr : &found->second.emplace();
      } else if (open != nullptr &&
                 (line.starts_with("  __parameters__ = [") || line.starts_with("  __buffers__ = ["))) {
        add_quoted(line, *open);
      }
    }
  }
  static void add_quoted(std::string_view line, Attributes& names) {
    for (auto begin = line.find('"'); begin != std::string_view::npos; begin = line.find('"', begin)) {
      const auto end = line.find('"', begin + 1);
      if (end == std::string_view::npos) return;
      names.emplace(line.substr(begin + 1, end - begin - 1));
      begin = end + 1;
    }
  }

  std::map<ClassName, std::optional<Attributes>> classes_;  // those of the pickle, nothing if there is no code
};

/// Collects the tensors among the values of a pickle.
class TensorWalk {
 public:
  /// `pickle_bytes` is the size of the pickle, which limits what the tensors need.
  TensorWalk(ZipRecords& records, const Pickle& pickle, std::size_t pickle_bytes)
      : records_(records),
        classes_(records, pickle),
        most_visits_(kMostVisits + pickle_bytes),
        bytes_left_(kMostTensorBytes + kTensorBytesPerByte * pickle_bytes) {}

  void visit(const PickleValue& value, const std::string& name, int depth = 0) {
    if (depth > kDeepestValue || ++visits_ > most_visits_)
      records_.refuse("expected at most " + std::to_string(kDeepestValue) + " levels and " +
                      std::to_string(most_visits_) + " values, found more at '" + name.substr(0, kLongestShown) + "'");
    if (const auto* tensor = value.as<PickledTensor>()) {
      add(name, *tensor);
    } else if (const auto* unread = value.as<UnreadTensor>()) {
      place(name).unread = "a tensor of " + std::string(unread->function);
    } else if (const auto* dictionary = value.as<PickledDictionary>()) {
      for (const auto& [key, each] : dictionary->items) {
        if (const auto text = key_of(*key)) visit(*each, joined(name, *text), depth + 1);
      }
    } else if (const auto* sequence = value.as<PickledSequence>()) {
      for (std::size_t i = 0; i < sequence->items.size(); ++i)
        visit(*sequence->items[i], joined(name, std::to_string(i)), depth + 1);
    } else if (const auto* object = value.as<PickledObject>()) {
      visit_attributes(*object, name, depth);
    }
  }
  std::vector<ArchivedTensor> take() {
    std::vector<ArchivedTensor> tensors;
    for (auto& [name, tensor] : found_) {
      tensor.name = name;
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

 private:
  std::string joined(const std::string& name, std::string_view below) const {
    if (name.size() + below.size() >= kLongestName)
      records_.refuse("expected names of at most " + std::to_string(kLongestName) + " bytes, found a longer one in '" +
                      name.substr(0, kLongestShown) + "'");
    return name.empty() ? std::string(below) : name + "." + std::string(below);
  }
  static std::optional<std::string> key_of(const PickleValue& key) {
    if (const auto* text = key.as<std::string_view>()) return std::string(text->substr(0, kLongestName));
    if (const auto* number = key.as<std::int64_t>()) return std::to_string(*number);
    return std::nullopt;
  }
  /// The submodules, parameters and buffers of an object. Other attributes, such as lists, have no names in a state_dict.
  void visit_attributes(const PickledObject& object, const std::string& name, int depth) {
    const auto* attributes = object.state == nullptr ? nullptr : object.state->as<PickledDictionary>();
    if (attributes == nullptr) return;
    for (const auto& [key, each] : attributes->items) {
      const auto* attribute = key->as<std::string_view>();
      if (attribute == nullptr) continue;
      const bool is_tensor = each->as<PickledTensor>() != nullptr || each->as<UnreadTensor>() != nullptr;
      if (each->as<PickledObject>() != nullptr || (is_tensor && classes_.is_state(object.type, *attribute)))
        visit(*each, joined(name, *attribute), depth + 1);
    }
  }
  void spend(std::size_t bytes) {
    if (bytes > bytes_left_)
      records_.refuse("expected names and shapes that fit the size of the pickle, found longer ones");
    bytes_left_ -= bytes;
  }
  ArchivedTensor& place(const std::string& name) {
    spend(name.size());
    const auto [found, is_new] = found_.try_emplace(name);
    if (!is_new) records_.refuse("expected every name once, found '" + name + "' twice");
    return found->second;
  }

  void add(const std::string& name, const PickledTensor& tensor) {
    ArchivedTensor& added = place(name);
    const auto* const storage = std::find_if(kStorages.begin(), kStorages.end(),
                                             [&](const StorageName& each) { return each.name == tensor.storage.type; });
    if (storage == kStorages.end()) {
      added.unread = "a tensor of " + std::string(tensor.storage.type);
      return;
    }
    added.type = storage->type;
    spend((tensor.shape.size() + tensor.strides.size()) * sizeof(std::int64_t));
    added.shape = tensor.shape;
    added.strides = tensor.strides;
    const std::uint64_t reach = reach_of(name, tensor);
    if (reach == 0) return;
    const std::size_t bytes = size_of(storage->type);
    const auto offset = static_cast<std::size_t>(tensor.offset);
    added.elements = elements_of(tensor.storage, bytes).subspan(offset * bytes, (reach - offset) * bytes);
  }
  /// The number of elements of the storage from its first one to the tensor's last one. 0 if the tensor is empty.
  std::uint64_t reach_of(const std::string& name, const PickledTensor& tensor) const {
    const auto refuse_shape = [&]() {
      records_.refuse("expected '" + name + "' within the " + std::to_string(tensor.storage.elements) +
                      " elements of record 'data/" + std::string(tensor.storage.record) + "', found more");
    };
    if (tensor.offset < 0 || tensor.shape.size() != tensor.strides.size() ||
        !stored_bytes(StoredType::float64, tensor.shape))
      refuse_shape();
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return 0;
    std::int64_t last = tensor.offset;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      std::int64_t step = 0;
      if (tensor.strides[i] < 0 || __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) ||
          __builtin_add_overflow(last, step, &last))
        refuse_shape();
    }
    if (last >= tensor.storage.elements) refuse_shape();
    return static_cast<std::uint64_t>(last) + 1;
  }
  std::span<const std::byte> elements_of(const PickledStorage& storage, std::size_t element_bytes) const {
    const std::string record = "data/" + std::string(storage.record);
    const auto bytes = records_.stored(record);
    if (bytes.size() % element_bytes != 0 ||
        bytes.size() / element_bytes != static_cast<std::uint64_t>(storage.elements))
      records_.refuse("expected " + std::to_string(storage.elements) + " elements of " + std::to_string(element_bytes) +
                      " bytes in record '" + record + "', found " + std::to_string(bytes.size()) + " bytes");
    return bytes;
  }

  const ZipRecords& records_;
  ScriptClasses classes_;
  std::size_t most_visits_;
  std::size_t bytes_left_;  // for the names and the shapes of all tensors
  std::size_t visits_ = 0;
  std::map<std::string, ArchivedTensor> found_;
};

/// The first bytes of a file of torch.save before PyTorch 1.6: a pickle of a number.
bool is_old_format(std::span<const std::byte> file) {
  constexpr std::array kMagic{std::byte{0x80}, std::byte{0x02}, std::byte{0x8a}, std::byte{0x0a}};
  return file.size() >= kMagic.size() && std::equal(kMagic.begin(), kMagic.end(), file.begin());
}

}  // namespace

std::vector<ArchivedTensor> read_weights_archive(std::span<const std::byte> file, std::string_view name) {
  if (is_old_format(file))
    throw Error(ErrorKind::usage, std::string(name) +
                                      " has the format of torch.save before PyTorch 1.6, expected a zip archive. Load "
                                      "it in Python and save it again");
  ZipRecords records(file, name);
  if (const std::string order = records.has("byteorder") ? records.text("byteorder") : "little"; order != "little")
    records.refuse("expected little-endian elements, found '" + order.substr(0, kLongestShown) + "'");
  const auto bytes = records.stored("data.pkl");
  const Pickle pickle(bytes, [&](const std::string& what) { records.refuse(what); });
  TensorWalk walk(records, pickle, bytes.size());
  walk.visit(pickle.root(), "");
  return walk.take();
}

}  // namespace syncrun::libtorch::detail
