// Saving arrays of the session to files, and loading them.

#include "syncrun/checkpoint.hpp"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <optional>
#include <utility>

#include "common/arrays/extents.hpp"
#include "common/arrays/replaced_file.hpp"
#include "common/arrays/shared_folder.hpp"
#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "common/text/log.hpp"
#include "master/api/part_files.hpp"
#include "master/calls/describe.hpp"
#include "master/checkpoint/checkpoint_folder.hpp"
#include "master/checkpoint/manifest.hpp"
#include "master/data/mapped_data.hpp"
#include "master/records/records.hpp"
#include "master/records/variable_names.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "master/variables/variable_files.hpp"
#include "syncrun/session.hpp"

namespace syncrun::detail {

namespace {

namespace fs = std::filesystem;

// ---- what is saved -----------------------------------------------------------------------------------------------

/// The elements of an array: where they already are, or a copy of them.
struct Elements {
  Extents extents{};
  const void* values = nullptr;
  std::unique_ptr<std::byte[]> own;
};

Elements elements_of_variable(const ArrayPlace& array) {
  Elements elements;
  struct Making {
    const master::records::VariableRecord& variable;
    Elements& elements;
  } making{*array.variable, elements};
  const ArrayMaker maker{
      &making, [](void* context, const Extents& extents) -> void* {
        auto& [variable, made] = *static_cast<Making*>(context);
        made.extents = extents;
        made.own = std::make_unique_for_overwrite<std::byte[]>(master::records::bytes_of(variable, extents));
        made.values = made.own.get();
        return made.own.get();
      }};
  if (array.placement == Placement::scattered) {
    gather_to({&array.variable, 1}, Gathered::rows, {&maker, 1});
    return elements;
  }
  master::records::check_equal_copies(*array.variable, "a save (as replicated)");
  get_from_rank(*array.variable, 0, maker);
  return elements;
}

Elements elements_of(const ArrayPlace& array) {
  if (array.variable) return elements_of_variable(array);
  if (!array.data) return {array.extents, array.values, nullptr};
  const RawArray raw = array_of(*array.data);
  return {raw.extents, raw.data, nullptr};
}

/// Writes an array with `write(front, rest)`, which writes a file that begins with `front` and goes on with `rest`.
template <class Write>
void write_array(const ArrayPlace& array, Write write) {
  const Elements elements = elements_of(array);
  const std::span<const std::int64_t> extents(elements.extents.data(), array.dimensions);
  const std::size_t bytes = arrays::checked_bytes(array.dtype, extents);
  const arrays::MappedFile* const mapped = array.data && array.data->file ? &array.data->file->file() : nullptr;
  // If the file has become shorter, its mapping shows zeros within the last page, and cannot be read after that page.
  if (mapped != nullptr) mapped->check_unchanged();
  try {
    write(arrays::npy_header(array.dtype, extents), std::span(static_cast<const std::byte*>(elements.values), bytes));
  } catch (const Error&) {
    if (mapped != nullptr) mapped->check_unchanged();
    throw;
  }
  if (mapped != nullptr) mapped->check_unchanged();
}

// ---- what is loaded ----------------------------------------------------------------------------------------------

master::session::SessionCore& session_of(const ArrayPlace& array) {
  return array.variable ? *array.variable->session : *array.data->session;
}

/// The present shape of the array: of the Data, or of the variable's copies. Empty if there are no elements yet, or some
/// were lost.
std::optional<Extents> present_extents(const ArrayPlace& array, Placement placement) {
  Extents extents{};
  if (array.data) {
    extents = array.data->extents;
  } else {
    const master::session::SessionCore::Entry guard(*array.variable->session);
    const master::records::Settled settled = array.variable->session->commands().settled();
    const master::records::CopyFacts& facts = array.variable->copies(settled);
    if (facts.assigned.has_lost_any()) return std::nullopt;
    extents = placement == Placement::scattered ? master::records::extents_together(*array.variable, settled, "load")
                                                : facts.extents[0];
  }
  if (arrays::elements_in({extents.data(), array.dimensions}) == 0) return std::nullopt;
  return extents;
}

/// Says why the file cannot be loaded into the array. Empty if it can.
std::string misfit(const arrays::NpyHeader& header, const ArrayPlace& array, Placement placement) {
  if (header.dtype != array.dtype || header.shape.size() != array.dimensions) {
    return "is of " + arrays::describe_type(header.dtype, header.shape.size()) + ", not " +
           arrays::describe_type(array.dtype, array.dimensions);
  }
  const auto extents = present_extents(array, placement);
  if (!extents || std::equal(header.shape.begin(), header.shape.end(), extents->begin())) return {};
  return "has shape " + syncrun::to_string(header.shape) + ", not " +
         syncrun::to_string({extents->data(), array.dimensions});
}

Extents extents_from(const arrays::NpyHeader& header) {
  Extents extents{};
  std::ranges::copy(header.shape, extents.begin());
  return extents;
}

/// An array in one file, or in several that have its rows in order.
struct ArrayOnDisk {
  arrays::NpyHeader header;  // of the whole array
  std::vector<arrays::ArrayFile> files;

  explicit ArrayOnDisk(std::vector<arrays::ArrayFile> opened)
      : header(opened.front().header()), files(std::move(opened)) {
    for (std::size_t i = 1; i < files.size(); ++i) header.shape[0] += files[i].header().shape[0];
  }
  std::string path() const { return files.front().path().string(); }
  void read(void* values) const {
    auto* to = static_cast<std::byte*>(values);
    for (const arrays::ArrayFile& file : files) {
      if (file.bytes() != 0) file.read(to);
      to += file.bytes();
    }
  }
};

std::vector<arrays::ArrayFile> only(arrays::ArrayFile file) {
  std::vector<arrays::ArrayFile> files;
  files.push_back(std::move(file));
  return files;
}

/// Reads the elements of a file into shared memory, where workers find them.
std::shared_ptr<master::records::DataRecord> read_data(const std::shared_ptr<master::session::SessionCore>& session,
                                                       const ArrayOnDisk& array, std::string_view name) {
  auto data = make_data(session, array.header.dtype, array.header.shape, nullptr, name);
  array.read(array_of(*data).data);
  return data;
}

struct Load {
  const ArrayOnDisk* array;
  const ArrayPlace* to;
  Placement placement;
  master::variables::RowsOnDisk files{};  // if the ranks read their rows themselves: where they are
};

/// Arrays whose rows the ranks read, and the master does not.
class NodeReads {
 public:
  /// Reads those of the loads that the ranks read themselves. The variables are unchanged until take().
  explicit NodeReads(const std::vector<Load>& loads) : NodeReads() {  // so a failure here runs the destructor
    for (const Load& load : loads) {
      if (!load.files.variable) continue;
      const master::records::VariableRecord& variable = *load.to->variable;
      session_ = variable.session;
      const master::session::SessionCore::Entry guard(*session_);
      const master::variables::RowsRead::Division division{
          extents_from(load.array->header), load.placement,
          variable.has_equal_shares ? master::calls::RowWeights() : session_->weights()};
      reads_.emplace_back(session_->commands(), load.files, division, session_->registry().new_id());
    }
  }
  /// The ranks forget what was not taken.
  ~NodeReads() {
    if (reads_.empty() || !session_->is_open()) return;
    try {
      const master::session::SessionCore::Entry guard(*session_);
      reads_.clear();
    } catch (const std::exception&) {
      // Another thread is inside the session. The next entry lets the ranks forget the rows.
      const auto left = std::make_shared<std::deque<master::variables::RowsRead>>(std::move(reads_));
      session_->registry().release_later([left] { left->clear(); });
    }
  }
  NodeReads(const NodeReads&) = delete;
  NodeReads& operator=(const NodeReads&) = delete;

  void take() {
    if (reads_.empty()) return;
    const master::session::SessionCore::Entry guard(*session_);
    for (master::variables::RowsRead& read : reads_) read.take();
  }

 private:
  NodeReads() = default;

  std::shared_ptr<master::session::SessionCore> session_;
  std::deque<master::variables::RowsRead> reads_;
};

/// Everything has been checked to fit. Reads all files before it changes any array.
void load_all(const std::vector<Load>& loads) {
  std::vector<std::shared_ptr<master::records::DataRecord>> sources;
  for (const Load& load : loads) {
    const auto& session = load.to->variable ? load.to->variable->session : load.to->data->session;
    sources.push_back(
        load.files.variable ? nullptr : read_data(session, *load.array, "what is loaded from " + load.array->path()));
  }
  NodeReads reads(loads);
  std::vector<Delivery> replicated;
  std::vector<Delivery> scattered;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const Load& load = loads[i];
    if (!sources[i]) continue;
    if (load.to->data) {
      const RawArray raw = array_of(*sources[i]);
      set_data(*load.to->data, load.array->header.shape, raw.data, 1);
      continue;
    }
    auto& deliveries = load.placement == Placement::scattered ? scattered : replicated;
    deliveries.push_back({.variable = load.to->variable, .data = sources[i]});
  }
  if (!replicated.empty()) broadcast_values(replicated);
  if (!scattered.empty()) scatter_values(scattered, {});
  reads.take();
}

void check_can_be_written(const ArrayPlace& array) {
  session_of(array).check_open();
  if (array.data && array.data->is_open_for_writing) {
    text::throw_usage(master::calls::describe_data(*array.data) + " is open for writing: end the write guard first");
  }
  if (array.data) master::data::check_can_change(*array.data);
}

}  // namespace

// ---- one array ---------------------------------------------------------------------------------------------------

void save_array(const fs::path& file, const ArrayPlace& array) {
  arrays::replace_file(file, [&](const arrays::AppendBytes& append) {
    write_array(array, [&](std::string_view front, std::span<const std::byte> rest) {
      append(std::as_bytes(std::span(front)));
      append(rest);
    });
  });
}

void load_array(const fs::path& file, const ArrayPlace& array) {
  check_can_be_written(array);
  const ArrayOnDisk opened(only(arrays::ArrayFile(file)));
  const std::string wrong = misfit(opened.header, array, array.placement);
  if (!wrong.empty()) text::throw_usage(file.string() + " " + wrong);
  load_all({{&opened, &array, array.placement, {}}});
}

std::shared_ptr<master::records::DataRecord> load_data(const std::shared_ptr<master::session::SessionCore>& session,
                                                       const fs::path& file, DType dtype, std::size_t dimensions,
                                                       std::string_view name) {
  arrays::ArrayFile opened(file);
  opened.check_type(dtype, dimensions);
  return read_data(session, ArrayOnDisk(only(std::move(opened))), name);
}

// ---- checkpoints -------------------------------------------------------------------------------------------------

struct SavedCheckpoint {
  struct Entry : ArrayOnDisk {
    std::string name;
    Placement placement;
    std::vector<master::variables::RowsFile> rows;  // in each file
  };

  fs::path path;
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<Entry> arrays;
  arrays::SharedFolder folder;  // where other nodes find it. The id is empty if they need not see it
  // Set if there is an id. The nodes open the files in load(), so no save may remove them before.
  std::optional<master::checkpoint::LatestFolder> kept;

  const Entry* find(std::string_view name) const noexcept {
    const auto found = std::ranges::find_if(arrays, [&](const auto& array) { return array.name == name; });
    return found == arrays.end() ? nullptr : &*found;
  }
  /// "has no array 'b'; it has 'a' (float32 of shape [3])".
  std::string missing(std::string_view name) const {
    const std::string known = text::joined(arrays, ", ", [](const Entry& array) {
      return "'" + array.name + "' (" + shape_text(array.header.dtype, array.header.shape) + ")";
    });
    return "has no array '" + std::string(name) + "'; it has " + (known.empty() ? "none" : known);
  }
};

namespace {

const SavedCheckpoint::Entry& saved_array(const SavedCheckpoint& checkpoint, std::string_view name) {
  if (const auto* found = checkpoint.find(name)) return *found;
  text::throw_usage("the checkpoint in " + checkpoint.path.string() + " " + checkpoint.missing(name));
}

SavedCheckpoint::Entry open_array(const arrays::Folder& folder, const master::checkpoint::ManifestArray& array) {
  if (!array.parts.empty()) {
    return {ArrayOnDisk(open_parts(folder, array)), array.name, array.placement, files_of_parts(array)};
  }
  ArrayOnDisk opened(only(arrays::ArrayFile(folder, master::checkpoint::file_of(array.name))));
  const std::int64_t rows = opened.header.shape.empty() ? 1 : opened.header.shape.front();
  return {std::move(opened), array.name, array.placement, {{master::checkpoint::file_of(array.name), rows}}};
}

/// Opens all files of the checkpoint. From then on they can be read even if their names are removed. Throws Error (usage)
/// if a file is damaged, and Error (system) if one is missing.
std::shared_ptr<SavedCheckpoint> open_files(const arrays::Folder& folder) {
  auto checkpoint = std::make_shared<SavedCheckpoint>();
  const std::string text =
      arrays::read_file(folder, master::checkpoint::kManifest, master::checkpoint::kLongestManifest);
  master::checkpoint::Manifest manifest = master::checkpoint::parse_manifest(text);
  checkpoint->values = std::move(manifest.values);
  for (const master::checkpoint::ManifestArray& array : manifest.arrays)
    checkpoint->arrays.push_back(open_array(folder, array));
  checkpoint->folder.id = manifest.folder_id;
  return checkpoint;
}

std::string problem_of(const arrays::Folder& folder) {
  try {
    open_files(folder);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// There may be no session yet whose logger could be used.
void warn(const std::string& text) {
  const char* const level = environment::get(environment::kLogLevel);
  text::make_logger("syncrun", text::parse_log_level(level == nullptr ? "" : level).value_or(LogLevel::warning))
      ->warn(text);
}

std::shared_ptr<SavedCheckpoint> read_checkpoint(const fs::path& path, const master::checkpoint::LatestFolder& latest) {
  try {
    auto checkpoint = open_files(latest.folder());
    checkpoint->path = path;
    checkpoint->folder.path = latest.own_path();
    return checkpoint;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    text::throw_usage("the checkpoint in " + path.string() + " is damaged: " + error.what());
  }
}

}  // namespace

std::shared_ptr<const SavedCheckpoint> open_checkpoint(const fs::path& path) {
  constexpr int kAttempts = 1000;
  for (int attempt = 1;; ++attempt) {
    master::checkpoint::LatestFolder latest(path, problem_of);
    try {
      auto checkpoint = read_checkpoint(path, latest);
      if (!latest.note().empty()) warn(latest.note());
      if (!checkpoint->folder.id.empty()) checkpoint->kept.emplace(std::move(latest));
      return checkpoint;
    } catch (const Error&) {
      // On a file system without locks, a save may have removed files of this checkpoint.
      if (attempt == kAttempts || !latest.is_replaced()) throw;
    }
  }
}

const std::string* find_value(const SavedCheckpoint& checkpoint, std::string_view name) noexcept {
  for (const auto& [other, text] : checkpoint.values) {
    if (other == name) return &text;
  }
  return nullptr;
}

const std::string& value_of(const SavedCheckpoint& checkpoint, std::string_view name) {
  if (const std::string* text = find_value(checkpoint, name)) return *text;
  std::string known;
  for (const auto& [other, text] : checkpoint.values) known += (known.empty() ? "'" : ", '") + other + "'";
  text::throw_usage("the checkpoint in " + checkpoint.path.string() + " has no value '" + std::string(name) +
                    "'; it has " + (known.empty() ? "none" : known));
}

void refuse_value(const SavedCheckpoint& checkpoint, std::string_view name) {
  text::throw_usage("the checkpoint in " + checkpoint.path.string() + ": value '" + std::string(name) +
                    "' is not a number of the type asked for: '" + value_of(checkpoint, name) + "'");
}

Extents saved_extents(const SavedCheckpoint& checkpoint, std::string_view name, DType dtype, std::size_t dimensions) {
  const arrays::NpyHeader& header = saved_array(checkpoint, name).header;
  if (header.dtype == dtype && header.shape.size() == dimensions) return extents_from(header);
  text::throw_usage("the checkpoint in " + checkpoint.path.string() + ": '" + std::string(name) + "' is of " +
                    arrays::describe_type(header.dtype, header.shape.size()) + ", not " +
                    arrays::describe_type(dtype, dimensions));
}

void read_saved(const SavedCheckpoint& checkpoint, std::string_view name, void* values) {
  saved_array(checkpoint, name).read(values);
}

namespace {

/// Over several nodes, the ranks read their rows themselves if all nodes see the folder. Otherwise the master reads
/// everything, unless the checkpoint has scattered rows: this is an error.
bool do_ranks_read(const SavedCheckpoint& checkpoint, const std::vector<ArrayPlace>& arrays) {
  if (checkpoint.folder.id.empty()) return false;
  const auto variable = std::ranges::find_if(arrays, [](const auto& array) { return array.variable != nullptr; });
  if (variable == arrays.end() || !variable->variable->session->place().has_others()) return false;
  const auto is_scattered = [](const SavedCheckpoint::Entry& entry) {
    return entry.files.size() > 1 && entry.placement == Placement::scattered;
  };
  if (std::ranges::any_of(checkpoint.arrays, is_scattered)) return true;
  return is_seen_by_all(*variable->variable->session, checkpoint.path, checkpoint.folder);
}

}  // namespace

void load_arrays(const SavedCheckpoint& checkpoint, const std::vector<ArrayPlace>& arrays) {
  std::vector<Load> loads;
  std::string wrong;
  for (const ArrayPlace& array : arrays) check_can_be_written(array);
  const bool ranks_read = do_ranks_read(checkpoint, arrays);
  for (const ArrayPlace& array : arrays) {
    const auto* saved = checkpoint.find(array.name);
    const std::string why =
        saved == nullptr ? checkpoint.missing(array.name) : misfit(saved->header, array, saved->placement);
    if (why.empty()) loads.push_back({saved, &array, saved->placement, {}});
    else wrong += (wrong.empty() ? "" : "; ") + (saved == nullptr ? why : "'" + array.name + "' " + why);
  }
  if (!wrong.empty()) text::throw_usage("the checkpoint in " + checkpoint.path.string() + " does not fit: " + wrong);
  for (Load& load : loads) {
    if (!ranks_read || !load.to->variable) continue;
    load.files = {load.to->variable, checkpoint.folder, checkpoint.find(load.to->name)->rows};
  }
  load_all(loads);
}

namespace {

/// Replicated arrays do not need a folder that all nodes share. Without one, the master writes them, as it does with small
/// ones. If there are also rows that only other nodes have, writing them says that the folder is not shared.
void leave_to_master_if_unseen(master::checkpoint::Manifest& manifest, const std::vector<SavedArray>& arrays,
                               const fs::path& root, const arrays::Folder& folder) {
  const auto has_parts = [](const auto& array) { return !array.parts.empty(); };
  const auto needs_all = [&](const auto& array) { return has_parts(array) && array.placement == Placement::scattered; };
  std::vector<master::checkpoint::ManifestArray>& saved = manifest.arrays;
  const auto first = std::ranges::find_if(saved, has_parts);
  if (first == saved.end() || std::ranges::any_of(saved, needs_all)) return;
  const ArrayPlace& place = HandleAccess::place(arrays[static_cast<std::size_t>(first - saved.begin())]);
  if (is_seen_by_all(*place.variable->session, root, {fs::absolute(folder.path), manifest.folder_id})) return;
  for (master::checkpoint::ManifestArray& array : saved) array.parts.clear();
}

}  // namespace

}  // namespace syncrun::detail

namespace syncrun {

void save_checkpoint(const std::filesystem::path& folder, const std::vector<SavedArray>& arrays,
                     const std::vector<SavedValue>& values) {
  detail::master::checkpoint::Manifest manifest;
  for (const SavedArray& array : arrays) {
    const detail::ArrayPlace& place = detail::HandleAccess::place(array);
    manifest.arrays.push_back({place.name, place.placement, detail::parts_of(place)});
  }
  for (const SavedValue& value : values) manifest.values.emplace_back(value.name(), value.text());
  if (manifest.has_parts()) manifest.folder_id = detail::arrays::make_folder_id();
  static_cast<void>(detail::master::checkpoint::to_text(manifest));  // refuses names

  detail::master::checkpoint::CheckpointWriter writer(folder);
  if (manifest.has_parts()) detail::arrays::write_folder_id(writer.folder(), manifest.folder_id);
  detail::leave_to_master_if_unseen(manifest, arrays, folder, writer.folder());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    detail::master::checkpoint::ManifestArray& array = manifest.arrays[i];
    const detail::ArrayPlace& place = detail::HandleAccess::place(arrays[i]);
    if (!array.parts.empty() && detail::write_parts(writer.folder(), array, place.variable, manifest.folder_id))
      continue;
    array.parts.clear();
    detail::write_array(place, [&](std::string_view front, std::span<const std::byte> rest) {
      detail::arrays::write_file(writer.folder(), detail::master::checkpoint::file_of(array.name), front, rest);
    });
  }
  if (!manifest.has_parts()) detail::arrays::remove_file(writer.folder(), detail::arrays::kFolderId);
  detail::arrays::write_file(writer.folder(), detail::master::checkpoint::kManifest,
                             detail::master::checkpoint::to_text(manifest), {});
  writer.commit();
}

bool Checkpoint::exists(const std::filesystem::path& folder) noexcept {
  return detail::master::checkpoint::has_checkpoint(folder);
}

}  // namespace syncrun
