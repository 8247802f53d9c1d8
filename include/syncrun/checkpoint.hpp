#pragma once

// Functions that save and load one array as a .npy file, or several arrays and values together as a checkpoint. If the
// program crashes during a save, the folder still has either the complete old checkpoint or the complete new one. For
// the master only.

#include <charconv>
#include <concepts>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/shared.hpp"

namespace syncrun {

class NamedArray;

/// The last checkpoint that was saved in a folder. This object can read its checkpoint even while other processes save
/// new checkpoints in the folder.
class Checkpoint {
 public:
  /// Whether a checkpoint was saved in this folder. Also true if only a part of it is left, for example after an
  /// incomplete copy. The constructor then says what is missing.
  SYNCRUN_EXPORT static bool exists(const std::filesystem::path& folder) noexcept;

  /// Opens the last checkpoint in the folder. If the link `latest` is missing or leads nowhere, this is the newest
  /// complete one, and a warning says so. Throws Error: usage if the folder has no checkpoint, or if the checkpoint is
  /// damaged; system if a file cannot be read.
  explicit Checkpoint(const std::filesystem::path& folder) : saved_(detail::open_checkpoint(folder)) {}

  /// Whether the checkpoint has a value of this name.
  bool has_value(std::string_view name) const { return detail::find_value(held(), name) != nullptr; }
  /// Returns a value as text. Throws Error (usage) if no value has that name. The message lists the names that exist.
  const std::string& text(std::string_view name) const { return detail::value_of(held(), name); }
  /// Returns a value as a number. Throws the same errors as text(). Throws also Error (usage) if the text is not a
  /// number of type V.
  template <detail::Number V>
  V value(std::string_view name) const {
    const std::string& text = this->text(name);
    V number{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || stop != end) detail::refuse_value(held(), name);
    return number;
  }

  /// Reads an array into memory of this process. Throws Error (usage) if no array has that name, element type and
  /// number of dimensions.
  template <Element T, std::size_t N>
  Array<T, N> array(std::string_view name) const {
    Array<T, N> values(detail::to_shape<N>(detail::saved_extents(held(), name, dtype_of<T>, N)));
    detail::read_saved(held(), name, values.data());
    return values;
  }

  /// Loads arrays into Data and variables of a session: `{{"params", params}, {"rows", rows}}`. The number of workers
  /// may differ from that of the session that saved the checkpoint. Checks names, element types and shapes first, as
  /// the function load() below does. Reads all files before it changes any array. Throws Error: usage if something does
  /// not match, with a list of all mismatches; system if there is not enough memory, or if a file cannot be read.
  void load(const std::vector<NamedArray>& arrays) const;

 private:
  const detail::SavedCheckpoint& held() const { return detail::held(saved_, "Checkpoint"); }

  std::shared_ptr<const detail::SavedCheckpoint> saved_;
};

/// How the copies of a shared variable are related.
enum class Placement : std::uint8_t {
  /// The copies are equal on every rank. save() writes rank 0's copy, and load() copies the whole array to every rank.
  replicated,
  /// The copies are the parts of one array, in rank order. save() writes the whole array, and load() divides its rows
  /// among the ranks as Shared::scatter does.
  scattered,
};

namespace detail {
/// An array to save or to load into: a Data, a variable, or values in host memory.
struct ArrayPlace {
  std::string name;
  DType dtype{};
  std::size_t dimensions = 0;
  std::shared_ptr<DataRecord> data{};
  std::shared_ptr<VariableRecord> variable{};
  const void* values = nullptr;
  Extents extents{};  // of `values`
  Placement placement = Placement::replicated;
};

}  // namespace detail

/// An array to save or to load into, with its name in the checkpoint.
class NamedArray {
 public:
  /// An array of the master, under this name.
  template <Element T, std::size_t N>
  NamedArray(std::string_view name, const Data<T, N>& data)
      : place_{.name = std::string(name), .dtype = dtype_of<T>, .dimensions = N, .data = detail::record_of(data)} {}
  /// Only saving uses `placement`. Checkpoint::load uses the placement that was saved with the array.
  template <Element T, std::size_t N>
  NamedArray(std::string_view name, const Shared<T, N>& variable, Placement placement = Placement::replicated)
      : place_{.name = std::string(name),
               .dtype = dtype_of<T>,
               .dimensions = N,
               .variable = detail::record_of(variable),
               .placement = placement} {}

 protected:
  explicit NamedArray(detail::ArrayPlace place) : place_(std::move(place)) {}

 private:
  friend struct detail::HandleAccess;

  detail::ArrayPlace place_;
};

/// An array to save. Unlike a NamedArray, it can also be values in host memory. The values must live until the save is
/// finished.
class SavedArray : public NamedArray {
 public:
  using NamedArray::NamedArray;
  /// Values in host memory, under this name: a contiguous range with a shape or of one dimension, or an Array. Throws
  /// Error (usage) if the number of values does not match the shape.
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

/// A small value of a checkpoint: a number or text. A number is loaded exactly as it was saved.
class SavedValue {
 public:
  /// A number or a text, under this name.
  template <detail::Number V>
  SavedValue(std::string_view name, V value) : name_(name) {
    std::array<char, 64> text{};
    text_.assign(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
  }
  SavedValue(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  /// The name.
  const std::string& name() const noexcept { return name_; }
  /// The value as text.
  const std::string& text() const noexcept { return text_; }

 private:
  std::string name_;
  std::string text_;
};

/// Writes one array to a .npy file, which NumPy can read. The type name of bfloat16 in the file is '|V2'. The master
/// first writes FILE.tmp in the same folder and then renames FILE.tmp to FILE. So after a crash, FILE is either the old
/// file or the new one. Throws Error: system if the file cannot be written; usage if another process is writing the
/// file, or if the copies of a replicated variable differ in shape.
template <Element T, std::size_t N>
void save(const std::filesystem::path& file, const Data<T, N>& data) {
  detail::save_array(file, detail::HandleAccess::place(NamedArray("array", data)));
}
template <Element T, std::size_t N>
void save(const std::filesystem::path& file, const Shared<T, N>& variable,
          Placement placement = Placement::replicated) {
  detail::save_array(file, detail::HandleAccess::place(NamedArray("array", variable, placement)));
}

/// Reads a .npy file into an existing array. The file must have the same element type and number of dimensions. The
/// file must also have the same shape, unless the array has no elements yet. Throws Error: usage if the file does not
/// match or is damaged; system if the file cannot be read. The message says what was expected and what was found. If
/// load() throws one of these errors, it has not changed the array.
template <Element T, std::size_t N>
void load(const std::filesystem::path& file, Data<T, N>& data) {
  detail::load_array(file, detail::HandleAccess::place(NamedArray("array", data)));
}
template <Element T, std::size_t N>
void load(const std::filesystem::path& file, Shared<T, N>& variable, Placement placement = Placement::replicated) {
  detail::load_array(file, detail::HandleAccess::place(NamedArray("array", variable, placement)));
}

/// Writes arrays and values to a folder, as a checkpoint. The new checkpoint replaces the previous one in the folder,
/// once all of the new one is on disk. Names consist of letters, digits, '_', '-' and '.'. Waits for calls in flight
/// first. Throws Error: system if a file cannot be written; usage for bad names, if another process is writing to the
/// same folder, or if nodes with scattered rows do not share it. After an error, the previous checkpoint is still there.
///
///   sr::save_checkpoint("run", {{"params", params}, {"rows", rows, sr::Placement::scattered}}, {{"epoch", epoch}});
SYNCRUN_EXPORT void save_checkpoint(const std::filesystem::path& folder, const std::vector<SavedArray>& arrays,
                                    const std::vector<SavedValue>& values = {});

inline void Checkpoint::load(const std::vector<NamedArray>& arrays) const {
  std::vector<detail::ArrayPlace> places;
  for (const NamedArray& array : arrays) places.push_back(detail::HandleAccess::place(array));
  detail::load_arrays(held(), places);
}

}  // namespace syncrun
