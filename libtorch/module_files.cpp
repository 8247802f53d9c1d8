#include "libtorch/module_files.hpp"

#include <torch/csrc/jit/serialization/export.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "common/arrays/replaced_file.hpp"
#include "libtorch/units.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/files.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// Compares the tensors of a file with those of a module.
class Matching {
 public:
  Matching(const FoundTensors& found, const std::filesystem::path& file) : found_(found), file_(file.string()) {}

  void add(const ModuleTensor& each) {
    std::vector<std::string> names;
    for (const std::string& name : each.names) {
      if (found_.count(name) != 0) names.push_back(name);
    }
    matched_.insert(names.begin(), names.end());
    if (names.empty()) {
      if (missing_.empty()) first_missing_ = "'" + each.names.front() + "' " + type_and_shape(each.tensor);
      missing_.push_back(each.names.front());
      return;
    }
    const ::torch::Tensor& from = fitting(names.front(), each.tensor);
    for (const std::string& other : names) check_is_equal(names.front(), other, each.tensor);
    matches_.push_back({each.tensor, from});
  }
  /// What no tensor of the module has taken.
  LoadReport report() const {
    LoadReport report{missing_, {}};
    for (const auto& [name, tensor] : found_) {
      if (matched_.count(name) == 0) report.additional.push_back(tensor.in_file);
    }
    return report;
  }
  void check_is_exact(const LoadReport& report) const {
    if (!report.missing.empty()) {
      refuse("expected " + first_missing_ + ", found no tensor of this name" + hint() + differences(report));
    }
    if (report.additional.empty()) return;
    const auto first = std::find_if(found_.begin(), found_.end(),
                                    [&](const auto& each) { return each.second.in_file == report.additional.front(); });
    refuse("found '" + first->first + "' " + described(first->second) + ", expected no tensor of this name" +
           differences(report));
  }
  void check_is_partial() const {
    if (matches_.empty()) refuse("expected some of its tensors, found none of their names" + hint());
  }
  const std::vector<Match>& matches() const noexcept { return matches_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::usage, file_ + " is of another module: " + what);
  }
  static std::string described(const FoundTensor& found) {
    return found.tensor.defined() ? type_and_shape(found.tensor) : found.unread + ", which cannot be read";
  }
  const ::torch::Tensor& fitting(const std::string& name, const ::torch::Tensor& to) const {
    const FoundTensor& found = found_.at(name);
    const ::torch::Tensor& from = found.tensor;
    const bool fits = from.defined() && from.sizes() == to.sizes() &&
                      (from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point()));
    if (!fits) refuse("expected '" + name + "' " + type_and_shape(to) + ", found " + described(found));
    return from;
  }
  /// Two tensors of the file that are one tensor in the module must be the same.
  void check_is_equal(const std::string& name, const std::string& other, const ::torch::Tensor& to) const {
    const ::torch::Tensor& a = fitting(name, to);
    const ::torch::Tensor& b = fitting(other, to);
    const bool is_same =
        a.data_ptr() == b.data_ptr() && a.scalar_type() == b.scalar_type() && a.strides() == b.strides();
    if (is_same || ::torch::equal(a, b.to(a.scalar_type()))) return;
    refuse("expected equal values of '" + name + "' and '" + other +
           "', because they are one tensor in the module, found different ones. Save only one of them");
  }

  /// What names in the file begin with, if the names of the module otherwise fit. Empty if nothing is found.
  std::string hint() const {
    const std::string& wanted = missing_.front();
    for (const auto& [name, found] : found_) {
      if (name.size() > wanted.size() && name.ends_with("." + wanted)) {
        const std::string prefix = name.substr(0, name.size() - wanted.size());
        return ". It has '" + name + "': name the part '" + prefix.substr(0, prefix.size() - 1) +
               "' (LoadOptions::part), or map the prefix '" + prefix + "' to '' (LoadOptions::prefixes)";
      }
      if (name.size() < wanted.size() && wanted.ends_with("." + name)) {
        return ". It has '" + name + "': map the prefix '' to '" + wanted.substr(0, wanted.size() - name.size()) +
               "' (LoadOptions::prefixes)";
      }
    }
    return "";
  }
  static std::string listed(const std::vector<std::string>& names) {
    constexpr std::size_t kMost = 8;
    std::string text = std::to_string(names.size());
    for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i == 0 ? ": '" : ", '") + names[i] + "'";
    return text + (names.size() > kMost ? ", ..." : "");
  }
  /// All differences, if there are several.
  static std::string differences(const LoadReport& report) {
    if (report.missing.size() + report.additional.size() < 2) return "";
    return ". In all, tensors that are missing are " + listed(report.missing) + "; those that are additional are " +
           listed(report.additional) + ". LoadForm::partial loads the others";
  }

  const FoundTensors& found_;
  std::string file_;
  std::vector<Match> matches_;
  std::set<std::string> matched_;
  std::vector<std::string> missing_;
  std::string first_missing_;
};

}  // namespace

Matches match_tensors(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, LoadForm form,
                      const std::filesystem::path& file) {
  Matching matching(found, file);
  for (const ModuleTensor& each : tensors) matching.add(each);
  LoadReport report = matching.report();
  if (form == LoadForm::exact) matching.check_is_exact(report);
  else matching.check_is_partial();
  return {matching.matches(), std::move(report)};
}

LoadReport copy_into(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, LoadForm form,
                     const std::filesystem::path& file) {
  const ::torch::NoGradGuard no_gradients;
  Matches matches = match_tensors(tensors, found, form, file);
  for (Match& each : matches.tensors) each.to.copy_(each.from);
  return std::move(matches.report);
}

FileFormat format_of(const std::filesystem::path& file, FileFormat format) {
  if (format != FileFormat::by_name) return format;
  const std::string name = file.filename().string();
  if (name.ends_with(".index.json")) return FileFormat::index;
  return name.ends_with(".safetensors") ? FileFormat::safetensors : FileFormat::torch;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text.append(name).push_back('\0');
  return text;
}

std::vector<std::string> names_in(std::span<const std::uint8_t> text) {
  std::vector<std::string> names;
  for (auto begin = text.begin(); begin != text.end();) {
    const auto end = std::find(begin, text.end(), std::uint8_t{0});
    names.emplace_back(begin, end);
    begin = end == text.end() ? end : end + 1;
  }
  return names;
}

std::string load_text(const std::filesystem::path& file, const LoadOptions& options) {
  std::vector<std::string> names{options.part, std::to_string(options.transposed.size())};
  names.insert(names.end(), options.transposed.begin(), options.transposed.end());
  for (const auto& [from, to] : options.prefixes) names.insert(names.end(), {from, to});
  for (const std::string& name : names) {
    if (name.find('\0') != std::string::npos)
      throw Error(ErrorKind::usage, "expected parts, prefixes and names without a zero byte, got '" + name + "'");
  }
  const auto letter = [](auto value) { return static_cast<char>('0' + static_cast<int>(value)); };
  return std::string{letter(format_of(file, options.format)), letter(options.form)} + joined_names(names);
}

namespace {

/// The options that load_text() wrote.
LoadOptions options_in(std::string_view text) {
  LoadOptions options;
  options.format = static_cast<FileFormat>(text[0] - '0');
  options.form = static_cast<LoadForm>(text[1] - '0');
  const auto names = names_in({reinterpret_cast<const std::uint8_t*>(text.data()) + 2, text.size() - 2});
  options.part = names[0];
  const auto prefixes = names.begin() + 2 + std::stol(names[1]);
  options.transposed.assign(names.begin() + 2, prefixes);
  for (auto each = prefixes; each != names.end(); each += 2) options.prefixes.emplace_back(each[0], each[1]);
  return options;
}

/// In its lifetime, the tensors of a module are in host memory. Files have no tensors of a GPU, which only programs with
/// CUDA could read.
class OnHost {
 public:
  explicit OnHost(const ::torch::nn::Module& module) {
    std::vector<::torch::Tensor> copies;  // all of them first, because a copy can fail
    for (const ModuleTensor& each : all_tensors(module)) {
      if (each.tensor.device().is_cpu()) continue;
      moved_.emplace_back(each.tensor, each.tensor.detach());
      copies.push_back(moved_.back().second.cpu());
    }
    for (std::size_t i = 0; i < copies.size(); ++i) moved_[i].first.set_data(copies[i]);
  }
  ~OnHost() {
    for (auto& [tensor, data] : moved_) tensor.set_data(data);
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

 private:
  std::vector<std::pair<::torch::Tensor, ::torch::Tensor>> moved_;
};

}  // namespace

void BoundModule::save(const std::filesystem::path& file, FileFormat format) {
  if (format_of(file, format) == FileFormat::index)
    throw Error(ErrorKind::usage,
                "save writes one file, expected its name to end in '.safetensors' or to be that of an "
                "archive, got " +
                    file.string());
  const OnHost on_host(*module_);
  if (format_of(file, format) == FileFormat::safetensors) {
    std::vector<std::pair<std::string, ::torch::Tensor>> tensors;
    for (const ModuleTensor& each : all_tensors(*module_)) tensors.emplace_back(each.names.front(), each.tensor);
    // The entry tells Python libraries which layout the tensors have.
    save_safetensors(file, tensors, {{"format", "pt"}});
    return;
  }
  // An error inside the archive's writer could end the process. So the file is written after the archive is complete.
  std::string bytes;
  const std::function<std::size_t(const void*, std::size_t)> append_bytes = [&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  };
  if (script_ != nullptr) {
    const EvaluationScope mode(*module_);  // as Python programs use such files
    ::torch::jit::ExportModule(script_->script(), append_bytes);
  } else {
    ::torch::serialize::OutputArchive archive;
    module_->save(archive);
    archive.save_to(append_bytes);
  }
  syncrun::detail::arrays::replace_file(
      file, [&](const syncrun::detail::arrays::AppendBytes& append) { append(std::as_bytes(std::span(bytes))); });
}

LoadReport BoundModule::load(const std::filesystem::path& file, std::string_view options) {
  const LoadOptions chosen = options_in(options);
  return copy_into(all_tensors(*module_), read_weights(file, chosen), chosen.form, file);
}

void BoundModule::check_file(const std::filesystem::path& file, std::string_view options) const {
  const LoadOptions chosen = options_in(options);
  static_cast<void>(match_tensors(all_tensors(*module_), read_weights(file, chosen), chosen.form, file));
}

void BoundModule::save_units(const std::filesystem::path& file, bool writes) {
  if (format_of(file, FileFormat::by_name) != FileFormat::safetensors)
    throw Error(ErrorKind::usage,
                "save writes a ShardedReplica as safetensors, expected a name that ends in "
                "'.safetensors', got " +
                    file.string());
  const auto all = all_tensors(*module_);
  std::vector<std::pair<std::string, ::torch::Tensor>> tensors;
  std::vector<Unit*> units;  // of each tensor
  const auto add_those_of = [&](Unit* unit) {
    for (const ModuleTensor& each : all) {
      if (units_->find_owner(each.tensor) != unit) continue;
      tensors.emplace_back(each.names.front(), units_->exact(each.tensor));
      units.push_back(unit);
    }
  };
  for (const auto& unit : units_->all()) add_those_of(unit.get());
  add_those_of(nullptr);
  Unit* gathered = nullptr;
  const auto gather = [&](std::size_t i) {
    if (units[i] == gathered) return;
    if (gathered != nullptr) units_->release_exact(*gathered);
    gathered = units[i];
    if (gathered != nullptr) units_->gather_exact(*gathered);
  };
  if (writes) return write_safetensors(file, tensors, {{"format", "pt"}}, gather);
  for (std::size_t i = 0; i < units.size(); ++i) gather(i);
}

LoadReport BoundModule::load_units(const std::filesystem::path& file, std::string_view options, bool reads) {
  const ::torch::NoGradGuard no_gradients;
  Matches matches;
  if (reads) {
    const LoadOptions chosen = options_in(options);
    matches = match_tensors(all_tensors(*module_), read_weights(file, chosen), chosen.form, file);
  }
  const auto copy_those_of = [&](const Unit* unit) {
    for (Match& each : matches.tensors) {
      if (units_->find_owner(each.to) == unit) units_->exact(each.to).copy_(each.from);
    }
  };
  for (const auto& unit : units_->all()) {
    units_->gather_exact(*unit);  // tensors that the file does not have keep their values
    copy_those_of(unit.get());
    units_->scatter(*unit);
    units_->release_exact(*unit);
  }
  copy_those_of(nullptr);
  return std::move(matches.report);
}

}  // namespace syncrun::libtorch::detail
