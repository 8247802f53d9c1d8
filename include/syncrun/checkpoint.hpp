#pragma once

// Saving and loading: one array as a .npy file, or arrays and values together as a checkpoint, of which a crash at any
// moment leaves the old one or the new one whole. Master only.

#include <charconv>
#include <concepts>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/shared.hpp"

namespace syncrun {

class NamedArray;

namespace detail {
/// What from_chars and to_chars take for a number.
template <class V>
concept Number = std::is_arithmetic_v<V> && !std::same_as<V, bool> && !std::same_as<V, char>;
}  // namespace detail

/// What was saved last in a folder. It stays readable while others save there.
class Checkpoint {
 public:
  /// Whether anything was saved there.
  SYNCRUN_EXPORT static bool exists(const std::filesystem::path& folder) noexcept;

  /// Throws Error: usage if there is nothing, or if it is damaged; system if it cannot be read.
  explicit Checkpoint(const std::filesystem::path& folder) : saved_(detail::open_checkpoint(folder)) {}

  bool has_value(std::string_view name) const { return detail::find_value(held(), name) != nullptr; }
  /// A value as text. Throws Error (usage) if no value has that name; the message lists the names there are.
  const std::string& text(std::string_view name) const { return detail::value_of(held(), name); }
  /// A value as a number. Throws Error (usage) also if it is no such number.
  template <detail::Number V>
  V value(std::string_view name) const {
    const std::string& text = this->text(name);
    V number{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || stop != end) detail::refuse_value(held(), name);
    return number;
  }

  /// An array, into memory of this process. Throws Error (usage) unless there is one of that name and type.
  template <Element T, std::size_t N>
  Array<T, N> array(std::string_view name) const {
    Array<T, N> values(detail::to_shape<N>(detail::saved_extents(held(), name, dtype_of<T>, N)));
    detail::read_saved(held(), name, values.data());
    return values;
  }

  /// Loads arrays into Data and variables of a session, of any number of workers: `{{"params", params}, {"rows", rows}}`.
  /// Names, element types and shapes are checked first (as by load), and all is read before anything is changed. Throws
  /// Error: usage with everything that differs; system if memory runs out, or it cannot be read.
  void load(const std::vector<NamedArray>& arrays) const;

 private:
  const detail::SavedCheckpoint& held() const { return detail::held(saved_, "Checkpoint"); }

  std::shared_ptr<const detail::SavedCheckpoint> saved_;
};

/// What the copies of a shared variable are together.
enum class Placement : std::uint8_t {
  replicated,  ///< The same on every rank: rank 0's is saved, and every rank gets what is loaded.
  scattered,   ///< Parts of one array, in rank order: all are saved, and split as `scatter` does when they are loaded.
};

namespace detail {
/// An array that is saved, or that is loaded into: a Data, a variable, or values of the host.
struct ArrayPlace {
  std::string name;
  DType dtype{};
  std::size_t dimensions = 0;
  std::shared_ptr<DataRecord> data{};
  std::shared_ptr<VariableRecord> variable{};
  const void* values = nullptr;
  Extents extents{};  // of the values
  Placement placement = Placement::replicated;
};

}  // namespace detail

/// An array by the name it has in a checkpoint, to save or to load into.
class NamedArray {
 public:
  template <Element T, std::size_t N>
  NamedArray(std::string_view name, const Data<T, N>& data)
      : place_{.name = std::string(name), .dtype = dtype_of<T>, .dimensions = N, .data = data.record()} {}
  /// `placement` matters when it is saved; what is loaded goes to the ranks as it was saved.
  template <Element T, std::size_t N>
  NamedArray(std::string_view name, const Shared<T, N>& variable, Placement placement = Placement::replicated)
      : place_{.name = std::string(name),
               .dtype = dtype_of<T>,
               .dimensions = N,
               .variable = variable.record(),
               .placement = placement} {}

  /// The framework's own.
  const detail::ArrayPlace& place() const noexcept { return place_; }

 protected:
  explicit NamedArray(detail::ArrayPlace place) : place_(std::move(place)) {}

 private:
  detail::ArrayPlace place_;
};

/// The same, or values of the host's own, which must live until they are saved.
class SavedArray : public NamedArray {
 public:
  using NamedArray::NamedArray;
  template <std::ranges::contiguous_range R, std::size_t N>
    requires Element<std::ranges::range_value_t<R>>
  SavedArray(std::string_view name, const R& values, const Shape<N>& shape)
      : NamedArray(detail::ArrayPlace{.name = std::string(name),
                                      .dtype = dtype_of<std::ranges::range_value_t<R>>,
                                      .dimensions = N,
                                      .values = std::ranges::data(values),
                                      .extents = detail::to_extents(shape)}) {
    detail::check_count(detail::count_of(values), shape.extents());
  }
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  SavedArray(std::string_view name, const R& values) : SavedArray(name, values, Shape<1>(std::ranges::size(values))) {}
  template <Element T, std::size_t N>
  SavedArray(std::string_view name, const Array<T, N>& values) : SavedArray(name, values.span(), values.shape()) {}
};

/// A small value of a checkpoint: a number, which comes back exactly, or text.
class SavedValue {
 public:
  template <detail::Number V>
  SavedValue(std::string_view name, V value) : name_(name) {
    std::array<char, 64> text{};
    text_.assign(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
  }
  SavedValue(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  const std::string& name() const noexcept { return name_; }
  const std::string& text() const noexcept { return text_; }

 private:
  std::string name_;
  std::string text_;
};

/// Writes one array to a .npy file, which NumPy reads; bfloat16 as '|V2'. The file is written beside its place
/// (FILE.tmp) and then renamed, so that a crash leaves the old file or the new one. Throws Error: system if it cannot be
/// written, usage if the copies of a replicated variable differ in shape.
template <Element T, std::size_t N>
void save(const std::filesystem::path& file, const Data<T, N>& data) {
  detail::save_array(file, NamedArray("array", data).place());
}
template <Element T, std::size_t N>
void save(const std::filesystem::path& file, const Shared<T, N>& variable,
          Placement placement = Placement::replicated) {
  detail::save_array(file, NamedArray("array", variable, placement).place());
}

/// Reads a .npy file of the same element type and number of dimensions; of the same shape, too, unless there are no
/// elements yet. Throws Error: usage if it does not fit, or is damaged, with what was expected and found; system if it
/// cannot be read. Nothing is changed then.
template <Element T, std::size_t N>
void load(const std::filesystem::path& file, Data<T, N>& data) {
  detail::load_array(file, NamedArray("array", data).place());
}
template <Element T, std::size_t N>
void load(const std::filesystem::path& file, Shared<T, N>& variable, Placement placement = Placement::replicated) {
  detail::load_array(file, NamedArray("array", variable, placement).place());
}

/// Writes arrays and values to a folder, in the place of what was saved there before; which is there, whole, until all
/// of this is on disk. Names are letters, digits, '_', '-' and '.'. Waits for calls in flight. Throws Error: system if it
/// cannot be written, usage for bad names, or if another process is writing the same folder; what was saved before stays.
///
///   sr::save_checkpoint("run", {{"params", params}, {"rows", rows, sr::Placement::scattered}}, {{"epoch", epoch}});
SYNCRUN_EXPORT void save_checkpoint(const std::filesystem::path& folder, const std::vector<SavedArray>& arrays,
                                    const std::vector<SavedValue>& values = {});

inline void Checkpoint::load(const std::vector<NamedArray>& arrays) const {
  std::vector<detail::ArrayPlace> places;
  for (const NamedArray& array : arrays) places.push_back(array.place());
  detail::load_arrays(held(), places);
}

}  // namespace syncrun
