#pragma once

// Reads a pickle of Python as data: nothing in it is executed or imported. Uses no LibTorch. LibTorch's own reader turns
// an OrderedDict, and so every state_dict, into None. The format: pickletools.py of Python 3.11, protocols 2 to 5.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace syncrun::libtorch::detail {

struct PickleValue;

/// A value that has no tensors and names nothing: None, a number that is not whole, bytes.
struct PickledOther {};
/// A list or a tuple.
struct PickledSequence {
  std::vector<PickleValue*> items;
};
/// A dictionary, in its order.
struct PickledDictionary {
  std::vector<std::pair<PickleValue*, PickleValue*>> items;
};
/// A class or a function. Only its name is known.
struct PickledGlobal {
  std::string_view module;
  std::string_view name;
};
/// An object of a TorchScript class.
struct PickledObject {
  PickledGlobal type;
  PickleValue* state = nullptr;  // null until the pickle sets it
};
/// The elements that tensors refer to.
struct PickledStorage {
  std::string_view type;    // "FloatStorage"
  std::string_view record;  // "0", for the record data/0 of the archive
  std::int64_t elements = 0;
};
struct PickledTensor {
  PickledStorage storage;
  std::int64_t offset = 0;  // in elements, as the strides
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};
/// A tensor of a kind that is not read, such as a quantized one.
struct UnreadTensor {
  std::string_view function;  // of Python, which makes such tensors
};

struct PickleValue {
  std::variant<PickledOther, std::int64_t, std::string_view, PickledSequence, PickledDictionary, PickledGlobal,
               PickledObject, PickledStorage, PickledTensor, UnreadTensor>
      value;

  template <class T>
  T* as() noexcept {
    return std::get_if<T>(&value);
  }
  template <class T>
  const T* as() const noexcept {
    return std::get_if<T>(&value);
  }
};

/// The values of a pickle. Texts are in the memory of the pickle, which must outlive this object. Values can refer to each
/// other in circles.
class Pickle {
 public:
  /// Throws the errors of a file: `what` says what was expected and found.
  using Refuse = std::function<void(const std::string& what)>;

  /// Reads a pickle. Calls `refuse`, which throws, if the pickle is damaged, or if it calls or makes an object of anything
  /// but the types of a state_dict and of TorchScript. The message names it.
  Pickle(std::span<const std::byte> bytes, const Refuse& refuse);

  const PickleValue& root() const noexcept { return *root_; }
  /// All values, in no particular order.
  const std::deque<PickleValue>& values() const noexcept { return values_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_;
};

}  // namespace syncrun::libtorch::detail
