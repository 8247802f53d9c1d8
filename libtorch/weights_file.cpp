#include "libtorch/weights_file.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "libtorch/stored_tensors.hpp"
#include "libtorch/tensor_files.hpp"
#include "libtorch/weights_archive.hpp"
#include "libtorch/weights_index.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/files.hpp"

namespace syncrun::libtorch::detail {

namespace {

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorKind::usage, file.string() + ": " + what);
}

FoundTensors read_archive(const std::filesystem::path& file) {
  const auto mapped = std::make_shared<const FileBytes>(file);
  FoundTensors found;
  for (ArchivedTensor& each : read_weights_archive(mapped->bytes(), file.string())) {
    FoundTensor& added = found[each.name];
    added.unread = std::move(each.unread);
    if (added.unread.empty())
      added.tensor = tensor_of({each.type, each.elements, std::move(each.shape), std::move(each.strides)}, mapped,
                               "'" + each.name + "' of " + file.string());
  }
  return found;
}

FoundTensors read_safetensors(const std::filesystem::path& file) {
  const Safetensors saved(file);
  FoundTensors found;
  for (const std::string& name : saved.names()) found[name].tensor = saved.tensor(name);
  return found;
}

FoundTensors read_one(const std::filesystem::path& file, FileFormat format) {
  return format == FileFormat::safetensors ? read_safetensors(file) : read_archive(file);
}

/// Reads all files that an index names. They must have the tensors that the index says, and no others.
FoundTensors read_index(const std::filesystem::path& file) {
  const FileBytes index(file);
  const std::string_view text(reinterpret_cast<const char*>(index.bytes().data()), index.bytes().size());
  const auto places = parse_weights_index(text, file.string());
  std::set<std::string> names;
  for (const auto& [tensor, name] : places) names.insert(name);
  FoundTensors all;
  for (const std::string& name : names) {
    const auto shard = file.parent_path() / name;
    const FileFormat format = format_of(shard, FileFormat::by_name);
    if (format == FileFormat::index) refuse_file(file, "expected files with tensors, found the index '" + name + "'");
    for (auto& [tensor, found] : read_one(shard, format)) {
      const auto place = places.find(tensor);
      if (place == places.end() || place->second != name)
        refuse_file(file, "found '" + tensor + "' in " + name + ", expected it " +
                              (place == places.end() ? "nowhere" : "in " + place->second));
      all.emplace(tensor, std::move(found));
    }
  }
  for (const auto& [tensor, name] : places) {
    if (all.count(tensor) == 0) refuse_file(file, "expected '" + tensor + "' in " + name + ", found no such tensor");
  }
  return all;
}

/// The first parts of the names in a file, for a message.
std::string parts_of(const FoundTensors& found) {
  std::set<std::string> parts;
  for (const auto& [name, tensor] : found) {
    if (name.find('.') != std::string::npos) parts.insert(name.substr(0, name.find('.')));
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "'" : ", '") + part + "'";
  return text.empty() ? "none" : text;
}

std::string mapped_name(const std::string& name, const LoadOptions& options) {
  for (const auto& [from, to] : options.prefixes) {
    if (name.starts_with(from)) return to + name.substr(from.size());
  }
  return name;
}

/// An end that fits no matrix would leave a square matrix as it is, without an error.
void transpose(const std::filesystem::path& file, FoundTensors& tensors, const std::vector<std::string>& ends) {
  std::set<std::string> unused(ends.begin(), ends.end());
  for (auto& [name, each] : tensors) {
    if (!each.tensor.defined() || each.tensor.dim() != 2) continue;
    const auto ends_name = [&name = name](const std::string& end) { return name.ends_with(end); };
    if (std::ranges::none_of(ends, ends_name)) continue;
    each.tensor = each.tensor.t();
    std::erase_if(unused, ends_name);
  }
  if (!unused.empty())
    refuse_file(file,
                "expected a matrix whose name ends in '" + *unused.begin() + "' (LoadOptions::transposed), found none");
}

}  // namespace

FoundTensors read_weights(const std::filesystem::path& file, const LoadOptions& options) {
  FoundTensors found = options.format == FileFormat::index ? read_index(file) : read_one(file, options.format);
  const std::string part = options.part.empty() ? "" : options.part + ".";
  FoundTensors renamed;
  for (auto& [name, tensor] : found) {
    if (!name.starts_with(part)) continue;
    const auto [place, is_new] = renamed.try_emplace(mapped_name(name.substr(part.size()), options), tensor);
    if (!is_new)
      refuse_file(file, "expected different names, but '" + place->second.in_file + "' and '" + name +
                            "' both become '" + place->first + "'. Change the prefixes");
    place->second.in_file = name;
  }
  if (renamed.empty() && !part.empty())
    refuse_file(file, "expected tensors in a part '" + options.part + "', found only the parts " + parts_of(found));
  transpose(file, renamed, options.transposed);
  return renamed;
}

}  // namespace syncrun::libtorch::detail
