#pragma once

// save() and load(): files with the parameters and buffers of a module. Safetensors: a file of this format, mapped to
// read.

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/detail/export.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/file_options.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/sharded_replica.hpp"
#include "syncrun/torch/tensor.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/torch/training.hpp"

namespace syncrun::libtorch {

/// Saves the parameters and the buffers of rank 0 under the names that the module gives to them, for example
/// "layer1.weight". `params` is the variable of parameters(). A module of any LibTorch program can load a file of
/// format torch by torch::load. TorchScript is saved in evaluation mode. On a GPU, its tensors that are no parameters
/// or buffers, and its constants, stay those of a GPU. The file is replaced as a whole: after a crash it is the old or
/// the new one. Throws Error (system) if the file cannot be written.
template <class Net, class T>
void save(Session& session, const Replicated<Replica<Net>>& net, const Shared<T, 1>& params,
          const std::filesystem::path& file, FileFormat format = FileFormat::by_name) {
  session.function(&Replica<Net>::template save<CpuWorker, T>, &Replica<Net>::template save<CudaWorker, T>, net, "save")
      .on_rank(0)(std::filesystem::absolute(file).string(), detail::format_of(file, format), params);
}

/// Loads a file that save(), torch::save or a Python program wrote: safetensors, also in several files with an index, a
/// state_dict of torch.save, a checkpoint that contains one (LoadOptions::part), or TorchScript. Nothing in the file is
/// executed. Every rank then has its parameters and buffers. Rank 0 maps the file, and copies each tensor once.
///
/// Unless the options say otherwise, the file must have exactly the tensors of the module: floating-point tensors may
/// have another floating-point type, and tied tensors may be there once or twice. Values that are no tensors are
/// skipped. Throws Error (function) if the file is damaged or contains code, if a tensor is missing, left over or of
/// another shape, or if two names become one. The message names the first such tensor. Throws Error (system) if the
/// file cannot be read. After an error, the module is as before.
template <class Net, class T>
LoadReport load(Session& session, const Replicated<Replica<Net>>& net, Shared<T, 1>& params,
                const std::filesystem::path& file, const LoadOptions& options = {}) {
  const auto loaded =
      session
          .function(&Replica<Net>::template load<CpuWorker, T>, &Replica<Net>::template load<CudaWorker, T>, net,
                    "load")
          .on_rank(0)(std::filesystem::absolute(file).string(), detail::load_text(file, options), params);
  params.broadcast(0);
  sync_buffers(session, net, BufferSync::rank0);
  return {detail::names_in(loaded.missing.span()), detail::names_in(loaded.additional.span())};
}
/// The same with a format only.
template <class Net, class T>
void load(Session& session, const Replicated<Replica<Net>>& net, Shared<T, 1>& params,
          const std::filesystem::path& file, FileFormat format) {
  load(session, net, params, file, LoadOptions{.format = format});
}

/// Saves a ShardedReplica as a safetensors file, as save() above does. Rank 0 writes one unit after the other, so no host
/// has the whole model. `params` may be any variable that is divided as the parameters are, such as a state of the step:
/// `save(session, net, step.state()[0], "run/m.safetensors")`. A session with another number of workers can load these
/// files, and not a checkpoint of the variables. Throws Error (function) if the name does not end in ".safetensors".
template <class Net, ShardOptions kOptions, class T>
void save(Session& session, const Replicated<ShardedReplica<Net, kOptions>>& net, const Shared<T, 1>& params,
          const std::filesystem::path& file) {
  using Of = ShardedReplica<Net, kOptions>;
  session.function(&Of::template save<CpuWorker, T>, &Of::template save<CudaWorker, T>, net, "save")(
      std::filesystem::absolute(file).string(), params);
}

/// Loads a file into a ShardedReplica, as load() above does. Rank 0 reads the file, and gives the others their parts of one
/// unit after the other. A rank whose worker was replaced gets its part, unless the form is LoadForm::partial.
template <class Net, ShardOptions kOptions, class T>
LoadReport load(Session& session, const Replicated<ShardedReplica<Net, kOptions>>& net, Shared<T, 1>& params,
                const std::filesystem::path& file, const LoadOptions& options = {}) {
  using Of = ShardedReplica<Net, kOptions>;
  if (options.form == LoadForm::exact) {
    session.function(&Of::template check_file<CpuWorker>, &Of::template check_file<CudaWorker>, net, "load")
        .on_rank(0)(std::filesystem::absolute(file).string(), detail::load_text(file, options));
    const auto description = session.function(&Of::template describe<T>, net, "load")();
    syncrun::detail::zero_where_gone(*syncrun::detail::record_of(params), description.elements.value());
  }
  const auto loaded =
      session.function(&Of::template load<CpuWorker, T>, &Of::template load<CudaWorker, T>, net, "load")(
          std::filesystem::absolute(file).string(), detail::load_text(file, options), params);
  sync_buffers(session, net, BufferSync::rank0);
  return {detail::names_in(loaded.missing.span()), detail::names_in(loaded.additional.span())};
}

namespace detail {
class MappedSafetensors;
}  // namespace detail

/// A safetensors file, mapped to read. In any process. If another process makes the file shorter, a read of the missing
/// part ends the process (SIGBUS).
class SYNCRUN_EXPORT Safetensors {
 public:
  /// Opens a file and checks all of its header. Throws Error: usage if the file is damaged (the message says what was
  /// expected and found), system if it cannot be read.
  explicit Safetensors(const std::filesystem::path& file);

  /// The names of the tensors, in the order of the file.
  std::vector<std::string> names() const;
  /// Returns a tensor. It uses the memory of the mapping, which lives as long as a tensor uses it. Do not write to it:
  /// the memory is read-only. Throws Error (usage) if the file has no tensor of this name.
  ::torch::Tensor tensor(std::string_view name) const;
  /// The position of a tensor's elements in the file, in bytes. Throws Error (usage) if the file has no tensor of this
  /// name.
  std::int64_t offset_of(std::string_view name) const;
  /// The texts that the file has beside its tensors.
  const std::map<std::string, std::string>& metadata() const noexcept;

 private:
  std::shared_ptr<const detail::MappedSafetensors> file_;
};

/// Writes tensors into a safetensors file. The file is replaced as a whole. Throws Error: usage (a name occurs twice,
/// or a tensor has a type that the format does not have), system (the file cannot be written).
SYNCRUN_EXPORT void save_safetensors(const std::filesystem::path& file,
                                     const std::vector<std::pair<std::string, ::torch::Tensor>>& tensors,
                                     const std::map<std::string, std::string>& metadata = {});

/// Maps a tensor of a safetensors file as a read-only Data, for data sets that are larger than memory:
///
///   const auto images = sr::libtorch::map_tensor<std::uint8_t, 4>(session, "train.safetensors", "images");
///
/// In all else, this Data is like that of Session::map_raw. The name of the Data is that of the tensor unless you give
/// one. Throws Error: usage if the file is damaged, has no such tensor, or has it with another type or number of
/// dimensions, or if its elements are not aligned; system if the file cannot be read.
template <Element T, std::size_t N>
Data<T, N> map_tensor(Session& session, const std::filesystem::path& file, std::string_view tensor,
                      std::string_view name = {}) {
  const auto place = detail::place_in_file(file, tensor, detail::ScalarTypeOf<T>::value, N);
  Shape<N> shape;
  for (std::size_t i = 0; i < N; ++i) shape[i] = place.shape[i];
  return session.map_raw<T, N>(file, shape, place.offset, name.empty() ? tensor : name);
}

}  // namespace syncrun::libtorch
