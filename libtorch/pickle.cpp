#include "libtorch/pickle.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <optional>
#include <unordered_map>

namespace syncrun::libtorch::detail {

namespace {

constexpr std::size_t kMostValues = 10'000'000;
constexpr std::size_t kMostValuesOfAny = 1'000;  // of a pickle of any size
constexpr std::size_t kMostValuesPerByte = 8;
constexpr std::size_t kMostExtents = 64;  // LibTorch's limit for most of its operations

/// What a call of a function of Python gives.
enum class CallResult : std::uint8_t {
  dictionary,
  first_argument,  ///< The argument itself, or the first of several.
  sequence,        ///< A sequence of the items of the argument.
  other,
  tensor,
  wrapped_call,  ///< The first argument is a function, the third has its arguments.
  unread_tensor
};
struct KnownCall {
  std::string_view name;
  CallResult result;
};
/// All functions and classes that a pickle may call. Python's `torch.load(weights_only=True)` has a similar list.
constexpr std::array kKnownCalls{
    KnownCall{"collections.OrderedDict", CallResult::dictionary},
    KnownCall{"collections.defaultdict", CallResult::dictionary},
    KnownCall{"collections.Counter", CallResult::dictionary},
    KnownCall{"torch._utils._rebuild_tensor", CallResult::tensor},
    KnownCall{"torch._utils._rebuild_tensor_v2", CallResult::tensor},
    KnownCall{"torch._utils._rebuild_parameter", CallResult::first_argument},
    KnownCall{"torch._utils._rebuild_parameter_with_state", CallResult::first_argument},
    KnownCall{"torch._tensor._rebuild_from_type_v2", CallResult::wrapped_call},
    KnownCall{"torch._utils._rebuild_tensor_v3", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_qtensor", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_sparse_tensor", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_sparse_csr_tensor", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_nested_tensor", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_meta_tensor_no_storage", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_wrapper_subclass", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_device_tensor_from_numpy", CallResult::unread_tensor},
    KnownCall{"torch._utils._rebuild_device_tensor_from_cpu_tensor", CallResult::unread_tensor},
    KnownCall{"torch.jit._pickle.build_intlist", CallResult::first_argument},
    KnownCall{"torch.jit._pickle.build_doublelist", CallResult::first_argument},
    KnownCall{"torch.jit._pickle.build_boollist", CallResult::first_argument},
    KnownCall{"torch.jit._pickle.build_tensorlist", CallResult::first_argument},
    KnownCall{"torch.jit._pickle.restore_type_tag", CallResult::first_argument},
    KnownCall{"torch.jit._pickle.build_tensor_from_id", CallResult::other},
    KnownCall{"torch.Size", CallResult::sequence},
    KnownCall{"torch.device", CallResult::other},
    KnownCall{"torch.serialization._get_layout", CallResult::other},
    KnownCall{"_codecs.encode", CallResult::other},
    KnownCall{"builtins.set", CallResult::other},
    KnownCall{"builtins.frozenset", CallResult::other},
    KnownCall{"builtins.bytearray", CallResult::other},
    KnownCall{"builtins.complex", CallResult::other},
    KnownCall{"numpy.dtype", CallResult::other},
    KnownCall{"numpy.core.multiarray.scalar", CallResult::other},
    KnownCall{"numpy._core.multiarray.scalar", CallResult::other},
};

std::string name_of(const PickledGlobal& global) { return std::string(global.module) + "." + std::string(global.name); }

std::optional<CallResult> known_call(const PickledGlobal& global) {
  std::string name = name_of(global);
  constexpr std::string_view kOldBuiltins = "__builtin__.";  // up to protocol 2
  if (name.starts_with(kOldBuiltins)) name.replace(0, kOldBuiltins.size(), "builtins.");
  const auto* known =
      std::find_if(kKnownCalls.begin(), kKnownCalls.end(), [&](const KnownCall& each) { return each.name == name; });
  return known == kKnownCalls.end() ? std::nullopt : std::optional(known->result);
}

bool is_script_class(const PickledGlobal& global) {
  return global.module == "__torch__" || global.module.starts_with("__torch__.");
}

/// Text of a file in a message.
std::string shown_text(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string copy(text.substr(0, kLongest));
  std::replace_if(
      copy.begin(), copy.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return "'" + copy + "'";
}

/// The stack machine that reads a pickle.
class PickleReader {
 public:
  PickleReader(std::span<const std::byte> bytes, const Pickle::Refuse& refuse, std::deque<PickleValue>& values)
      : bytes_(bytes), refuse_(refuse), values_(values) {}

  const PickleValue* read() {
    while (step()) {
    }
    PickleValue* const root = pop();
    if (!stack_.empty() || !marks_.empty()) damaged("one value", std::to_string(stack_.size() + 1));
    return root;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    refuse_(what);
    std::abort();  // refuse_ throws
  }
  [[noreturn]] void damaged(const std::string& expected, const std::string& found) const {
    refuse("expected " + expected + " in the pickle, before byte " + std::to_string(at_) + ", found " + found);
  }
  /// Refuses what is neither data nor of the known types.
  [[noreturn]] void refuse_code(const PickledGlobal& global) const {
    refuse("it contains code. It calls " + shown_text(name_of(global)) +
           ", expected only tensors, dictionaries, lists, numbers and texts. Nothing was executed. If you trust the "
           "file, load it in Python and save its state_dict: torch.save(model.state_dict(), ...)");
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_)
      damaged(std::to_string(count) + " more bytes", std::to_string(bytes_.size() - at_));
    at_ += static_cast<std::size_t>(count);
    return bytes_.subspan(at_ - static_cast<std::size_t>(count), static_cast<std::size_t>(count));
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const auto taken = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(taken[i]) << (8 * i);
    return value;
  }
  std::string_view text(std::uint64_t count) {
    const auto taken = take(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  std::string_view line() {
    const auto rest = bytes_.subspan(at_);
    const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
    if (end == rest.end()) damaged("a line", "the end");
    const std::string_view found = text(static_cast<std::uint64_t>(end - rest.begin()));
    ++at_;
    return found;
  }
  /// A whole number of `count` bytes with a sign, or another value if it is too long.
  PickleValue whole(std::uint64_t count) {
    const auto taken = take(count);
    if (taken.size() > sizeof(std::int64_t)) return {PickledOther()};
    const bool is_negative = !taken.empty() && std::to_integer<unsigned>(taken.back()) >= 0x80;
    std::uint64_t value = is_negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = taken.size(); i > 0; --i) value = value << 8U | std::to_integer<std::uint64_t>(taken[i - 1]);
    return {static_cast<std::int64_t>(value)};
  }

  /// Counts values that are made, copied or remembered. A short pickle could ask for very many copies.
  void count(std::size_t values) {
    counted_ += values;
    const std::size_t most = std::min(kMostValues, kMostValuesOfAny + kMostValuesPerByte * bytes_.size());
    if (counted_ > most) damaged("at most " + std::to_string(most) + " values", "more");
  }
  void push(PickleValue value) {
    count(1);
    values_.push_back(std::move(value));
    stack_.push_back(&values_.back());
  }
  /// Skips the bytes of a value without tensors.
  void other(std::uint64_t bytes) {
    take(bytes);
    push({PickledOther()});
  }
  PickleValue* top() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) damaged("a value on the stack", "none");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* const value = top();
    stack_.pop_back();
    return value;
  }
  PickledSequence pop_sequence(std::size_t count) {
    PickledSequence sequence;
    for (std::size_t i = 0; i < count; ++i) sequence.items.push_back(pop());
    std::reverse(sequence.items.begin(), sequence.items.end());
    return sequence;
  }
  /// The values since the last mark.
  std::vector<PickleValue*> pop_marked() {
    if (marks_.empty()) damaged("a mark on the stack", "none");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleValue*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  void remember(std::uint64_t place) {
    count(1);
    memo_[place] = top();
  }
  void recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) damaged("a value with the number " + std::to_string(place), "none");
    stack_.push_back(found->second);
  }

  void append(const std::vector<PickleValue*>& items) {
    auto* const sequence = top()->as<PickledSequence>();
    if (sequence != nullptr) sequence->items.insert(sequence->items.end(), items.begin(), items.end());
    else if (top()->as<PickledOther>() == nullptr) damaged("a list to append to", "another value");
  }
  void set(const std::vector<PickleValue*>& items) {
    auto* const dictionary = top()->as<PickledDictionary>();
    if (dictionary == nullptr || items.size() % 2 != 0) damaged("a dictionary, keys and values", "another value");
    for (std::size_t i = 0; i < items.size(); i += 2) dictionary->items.emplace_back(items[i], items[i + 1]);
  }

  const PickledGlobal& global_in(const PickleValue* value) const {
    const auto* global = value->as<PickledGlobal>();
    if (global == nullptr) damaged("a class or a function to call", "another value");
    return *global;
  }
  template <class T>
  const T& part(const PickledSequence& sequence, std::size_t which, const char* expected) const {
    const T* found = which < sequence.items.size() ? sequence.items[which]->as<T>() : nullptr;
    if (found == nullptr) damaged(expected, "another value or none");
    return *found;
  }
  std::vector<std::int64_t> whole_numbers(const PickledSequence& sequence) const {
    if (sequence.items.size() > kMostExtents)
      damaged("at most " + std::to_string(kMostExtents) + " dimensions", std::to_string(sequence.items.size()));
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < sequence.items.size(); ++i)
      numbers.push_back(part<std::int64_t>(sequence, i, "a whole number"));
    return numbers;
  }
  PickleValue tensor(const PickledSequence& arguments) {
    constexpr std::size_t kFlags = 6;  // a dictionary such as {"neg": True}, since PyTorch 1.13
    const auto* flags = arguments.items.size() > kFlags ? arguments.items[kFlags]->as<PickledDictionary>() : nullptr;
    if (flags != nullptr && !flags->items.empty()) return {UnreadTensor{"_rebuild_tensor_v2 with flags such as neg"}};
    PickledTensor tensor{part<PickledStorage>(arguments, 0, "the elements of a tensor"),
                         part<std::int64_t>(arguments, 1, "the first element of a tensor"),
                         whole_numbers(part<PickledSequence>(arguments, 2, "the shape of a tensor")),
                         whole_numbers(part<PickledSequence>(arguments, 3, "the strides of a tensor"))};
    count(tensor.shape.size() + tensor.strides.size());
    return {std::move(tensor)};
  }
  PickledDictionary dictionary(const PickledSequence& arguments) {
    PickledDictionary filled;
    const auto* pairs = arguments.items.empty() ? nullptr : arguments.items.front()->as<PickledSequence>();
    if (pairs == nullptr) return filled;
    count(pairs->items.size());
    for (std::size_t i = 0; i < pairs->items.size(); ++i) {
      const auto& pair = part<PickledSequence>(*pairs, i, "a key and a value");
      if (pair.items.size() != 2) damaged("a key and a value", std::to_string(pair.items.size()) + " values");
      filled.items.emplace_back(pair.items[0], pair.items[1]);
    }
    return filled;
  }

  /// What a call of `function` with these arguments gives. Nothing is called.
  void call(const PickledGlobal& function, PickleValue* arguments, bool is_wrapped = false) {
    const auto known = known_call(function);
    if (!known && is_script_class(function)) return push({PickledOther()});  // an enum
    if (!known || (is_wrapped && *known == CallResult::wrapped_call)) refuse_code(function);
    const auto* items = arguments->as<PickledSequence>();
    if (items == nullptr) damaged("a tuple of arguments", "another value");
    switch (*known) {
      case CallResult::dictionary: return push({dictionary(*items)});
      case CallResult::tensor: return push(tensor(*items));
      case CallResult::sequence: {
        const auto& sequence = part<PickledSequence>(*items, 0, "a tuple");
        count(sequence.items.size());
        return push({PickledSequence(sequence)});
      }
      case CallResult::other: return push({PickledOther()});
      case CallResult::unread_tensor: return push({UnreadTensor{function.name}});
      case CallResult::first_argument:
        if (items->items.empty()) damaged("an argument", "none");
        stack_.push_back(items->items.front());
        return;
      case CallResult::wrapped_call:
        part<PickledSequence>(*items, 2, "a tuple of arguments");
        return call(part<PickledGlobal>(*items, 0, "a function"), items->items[2], true);
    }
  }
  void make_object(PickleValue* type, PickleValue* arguments) {
    const PickledGlobal& global = global_in(type);
    if (is_script_class(global)) push({PickledObject{global}});
    else call(global, arguments);
  }
  /// Sets the state of the object on the stack. Only that of TorchScript's objects has tensors.
  void build() {
    PickleValue* const state = pop();
    if (const auto* global = top()->as<PickledGlobal>()) refuse_code(*global);
    if (auto* const object = top()->as<PickledObject>()) object->state = state;
  }
  void refer_to_storage() {
    const PickleValue* const id = pop();
    const auto* items = id->as<PickledSequence>();
    if (items == nullptr) damaged("a tuple that names elements", "another value");
    if (part<std::string_view>(*items, 0, "'storage'") != "storage") damaged("'storage'", "another text");
    const auto& type = part<PickledGlobal>(*items, 1, "a type of elements");
    const auto elements = part<std::int64_t>(*items, 4, "a number of elements");
    if (elements < 0) damaged("a number of elements from 0", std::to_string(elements));
    push({PickledStorage{type.name, part<std::string_view>(*items, 2, "the name of a record"), elements}});
  }

  /// Reads one instruction. Returns false after the last one.
  bool step();
  bool container_step(unsigned char code);
  bool value_step(unsigned char code);

  std::span<const std::byte> bytes_;
  const Pickle::Refuse& refuse_;
  std::deque<PickleValue>& values_;
  std::size_t at_ = 0;
  std::size_t counted_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, PickleValue*> memo_;
};

/// Instructions that push a value. Returns false for others.
bool PickleReader::value_step(unsigned char code) {
  switch (code) {
    case 'N':
    case 0x88:
    case 0x89: other(0); return true;  // NONE, NEWTRUE, NEWFALSE
    case 'G': other(8); return true;   // BINFLOAT
    case 'C':
    case 'U': other(number(1)); return true;  // SHORT_BINBYTES, SHORT_BINSTRING
    case 'B':
    case 'T': other(number(4)); return true;  // BINBYTES, BINSTRING
    case 0x8e:
    case 0x96: other(number(8)); return true;                             // BINBYTES8, BYTEARRAY8
    case 'K': push({static_cast<std::int64_t>(number(1))}); return true;  // BININT1
    case 'M': push({static_cast<std::int64_t>(number(2))}); return true;  // BININT2
    case 'J': push(whole(4)); return true;                                // BININT
    case 0x8a: push(whole(number(1))); return true;                       // LONG1
    case 0x8b: push(whole(number(4))); return true;                       // LONG4
    case 'X': push({text(number(4))}); return true;                       // BINUNICODE
    case 0x8c: push({text(number(1))}); return true;                      // SHORT_BINUNICODE
    case 0x8d: push({text(number(8))}); return true;                      // BINUNICODE8
    case 'c': {                                                           // GLOBAL
      const std::string_view module = line();
      push({PickledGlobal{module, line()}});
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const auto names = pop_sequence(2);
      push({PickledGlobal{part<std::string_view>(names, 0, "a name"), part<std::string_view>(names, 1, "a name")}});
      return true;
    }
    default: return false;
  }
}

/// Instructions for containers. Returns false for others.
bool PickleReader::container_step(unsigned char code) {
  switch (code) {
    case ')':
    case ']': push({PickledSequence()}); return true;  // EMPTY_TUPLE, EMPTY_LIST
    case 0x85:
    case 0x86:
    case 0x87:  // TUPLE1, TUPLE2, TUPLE3
      push({pop_sequence(code - 0x84U)});
      return true;
    case 't':
    case 'l': push({PickledSequence{pop_marked()}}); return true;  // TUPLE, LIST
    case '}': push({PickledDictionary()}); return true;            // EMPTY_DICT
    case 'd': {                                                    // DICT
      const auto items = pop_marked();
      push({PickledDictionary()});
      set(items);
      return true;
    }
    case 0x8f: other(0); return true;  // EMPTY_SET
    case 0x91:                         // FROZENSET
      pop_marked();
      other(0);
      return true;
    case 0x90:
    case 'e': append(pop_marked()); return true;           // ADDITEMS, APPENDS
    case 'a': append(pop_sequence(1).items); return true;  // APPEND
    case 'u': set(pop_marked()); return true;              // SETITEMS
    case 's': set(pop_sequence(2).items); return true;     // SETITEM
    default: return false;
  }
}

bool PickleReader::step() {
  const auto code = static_cast<unsigned char>(number(1));
  if (value_step(code) || container_step(code)) return true;
  switch (code) {
    case 0x80:  // PROTO
      if (const auto protocol = number(1); protocol < 2 || protocol > 5)
        damaged("protocol 2 to 5", std::to_string(protocol));
      return true;
    case 0x95: number(8); return true;                       // FRAME
    case '.': return false;                                  // STOP
    case '(': marks_.push_back(stack_.size()); return true;  // MARK
    case '0': pop(); return true;                            // POP
    case '1': pop_marked(); return true;                     // POP_MARK
    case '2': stack_.push_back(top()); return true;          // DUP
    case 'q': remember(number(1)); return true;              // BINPUT
    case 'r': remember(number(4)); return true;              // LONG_BINPUT
    case 0x94: remember(memo_.size()); return true;          // MEMOIZE
    case 'h': recall(number(1)); return true;                // BINGET
    case 'j': recall(number(4)); return true;                // LONG_BINGET
    case 'Q': refer_to_storage(); return true;               // BINPERSID
    case 'b': build(); return true;                          // BUILD
    case 'R': {                                              // REDUCE
      const auto parts = pop_sequence(2);
      call(global_in(parts.items[0]), parts.items[1]);
      return true;
    }
    case 0x92: pop(); [[fallthrough]];  // NEWOBJ_EX: its arguments by name come last
    case 0x81: {                        // NEWOBJ
      const auto parts = pop_sequence(2);
      make_object(parts.items[0], parts.items[1]);
      return true;
    }
    case 'i': {  // INST
      const std::string_view module = line();
      refuse_code({module, line()});
    }
    case 'o': {  // OBJ
      const auto items = pop_marked();
      if (items.empty()) damaged("a class", "none");
      refuse_code(global_in(items.front()));
    }
    default: damaged("an instruction of protocol 2 to 5", "byte " + std::to_string(code));
  }
}

}  // namespace

Pickle::Pickle(std::span<const std::byte> bytes, const Refuse& refuse)
    : root_(PickleReader(bytes, refuse, values_).read()) {}

}  // namespace syncrun::libtorch::detail
