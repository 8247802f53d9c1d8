#include "libtorch/module_files.hpp"
#include "common/arrays/replaced_file.hpp"

#include <algorithm>
#include <set>
#include <sstream>

#include "common/arrays/replaced_file.hpp"
#include "libtorch/tensor_files.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/files.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// Reads what belongs to the module, and the names of everything else as undefined tensors.
void read_archive(::torch::serialize::InputArchive& archive, const ::torch::nn::Module& module,
                  const std::string& prefix, FoundTensors& found) {
  std::set<std::string> known;
  const auto read = [&](const auto& named, bool is_buffer) {
    known.insert(named.key());
    ::torch::Tensor tensor;
    if (archive.try_read(named.key(), tensor, is_buffer) && tensor.defined()) found[prefix + named.key()] = tensor;
  };
  for (const auto& named : module.named_parameters(/*recurse=*/false)) read(named, false);
  for (const auto& named : module.named_buffers(/*recurse=*/false)) read(named, true);
  for (const auto& child : module.named_children()) {
    known.insert(child.key());
    ::torch::serialize::InputArchive below;
    if (archive.try_read(child.key(), below)) read_archive(below, *child.value(), prefix + child.key() + ".", found);
  }
  for (const std::string& key : archive.keys()) {
    if (key != "training" && known.count(key) == 0) found.emplace(prefix + key, ::torch::Tensor());
  }
}

/// A tensor of the module, and the one for it in the file.
struct Match {
  ::torch::Tensor to;
  ::torch::Tensor from;
};

bool is_convertible(const ::torch::Tensor& from, const ::torch::Tensor& to) {
  return from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point());
}

Match match(const ModuleTensor& each, const FoundTensors& found, const std::string& file) {
  const auto is_there = [&](const std::string& name) {
    const auto place = found.find(name);
    return place != found.end() && place->second.defined();
  };
  const auto name = std::find_if(each.names.begin(), each.names.end(), is_there);
  if (name == each.names.end()) {
    throw Error(ErrorKind::usage, file + " is of another module: expected '" + each.names.front() + "' " +
                                      type_and_shape(each.tensor) + ", found no tensor of this name");
  }
  const ::torch::Tensor& from = found.at(*name);
  if (from.sizes() != each.tensor.sizes() || !is_convertible(from, each.tensor)) {
    throw Error(ErrorKind::usage, file + " is of another module: expected '" + *name + "' " +
                                      type_and_shape(each.tensor) + ", found " + type_and_shape(from));
  }
  return {each.tensor.detach(), from};
}

}  // namespace

FoundTensors read_archive(const std::filesystem::path& file, const ::torch::nn::Module& module) {
  FoundTensors found;
  try {
    const FileBytes whole(file);  // its errors say why a file cannot be read
    ::torch::serialize::InputArchive archive;
    archive.load_from(reinterpret_cast<const char*>(whole.bytes().data()), whole.bytes().size());
    read_archive(archive, module, "", found);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(ErrorKind::usage, file.string() + ": expected a file that torch::save wrote from a module, found '" +
                                      text.substr(0, text.find('\n')) +
                                      "'. For weights of a Python program, use a safetensors file");
  }
  return found;
}

void copy_into(const std::vector<ModuleTensor>& tensors, const FoundTensors& found, const std::filesystem::path& file) {
  std::vector<Match> matches;
  std::set<std::string> names;
  for (const ModuleTensor& each : tensors) {
    matches.push_back(match(each, found, file.string()));
    names.insert(each.names.begin(), each.names.end());
  }
  for (const auto& [name, tensor] : found) {
    if (names.count(name) == 0)
      throw Error(ErrorKind::usage, file.string() + " is of another module: found '" + name + "'" +
                                        (tensor.defined() ? " " + type_and_shape(tensor) : "") +
                                        ", expected no tensor of this name");
  }
  const ::torch::NoGradGuard no_gradients;
  for (Match& each : matches) each.to.copy_(each.from);
}

FileFormat format_of(const std::filesystem::path& file, FileFormat format) {
  if (format != FileFormat::by_name) return format;
  return file.extension() == ".safetensors" ? FileFormat::safetensors : FileFormat::torch;
}

namespace {

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
  ::torch::serialize::OutputArchive archive;
  module_->save(archive);
  archive.save_to([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  syncrun::detail::arrays::replace_file(
      file, [&](const syncrun::detail::arrays::AppendBytes& append) { append(std::as_bytes(std::span(bytes))); });
}

void BoundModule::load(const std::filesystem::path& file, FileFormat format) {
  const auto tensors = all_tensors(*module_);
  if (format_of(file, format) == FileFormat::torch) {
    copy_into(tensors, read_archive(file, *module_), file);
    return;
  }
  const Safetensors saved(file);
  FoundTensors found;
  for (const std::string& name : saved.names()) found[name] = saved.tensor(name);
  copy_into(tensors, found, file);
}

}  // namespace syncrun::libtorch::detail
