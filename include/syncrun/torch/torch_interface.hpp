#pragma once

// The interface of the part for LibTorch: what the templates in this folder call in libsyncrun_torch.so. Users never
// name anything in this header.

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/output.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/file_options.hpp"
#include "syncrun/train_step_options.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::detail {
class GradientCount;
}  // namespace syncrun::detail

namespace syncrun::libtorch {

enum class BufferSync : std::uint8_t;
struct SummedLoss;
struct WeightedLoss;
struct WeightedMean;

namespace detail {

/// The count of a loss, on the host. Throws Error (usage) if it is negative or not finite.
SYNCRUN_EXPORT double count_of(const WeightedLoss& loss);

/// A parameter of a module: a part of the flat vector of parameters.
struct BoundParameter {
  std::string name;
  ::torch::Tensor tensor;
  std::int64_t offset;
  std::vector<std::int64_t> strides;  // of the tensor in the variable: a tensor that is channels last stays so
  std::vector<std::int64_t> sizes{};  // of the tensor when it was found
  std::int64_t id = 0;                // the same as long as the module has this tensor, with this shape
  std::int64_t end() const { return offset + c10::multiply_integers(sizes); }
};

/// Elements of the flat vector of parameters, or of its gradient: float32 or float64.
struct FlatVector {
  template <class T>
  explicit FlatVector(const ArrayView<T, 1>& view, std::int64_t first_element = 0)
      : data(const_cast<std::remove_const_t<T>*>(view.data())),  // LibTorch has no tensors that are const
        elements(view.shape(0)),
        first(first_element),
        type(c10::CppTypeToScalarType<std::remove_const_t<T>>::value) {}
  FlatVector() = default;

  void* data = nullptr;
  std::int64_t elements = 0;
  std::int64_t first = 0;  // the position of the first one among all parameters
  ::torch::ScalarType type = ::torch::kFloat32;
};

/// A tensor of a module, and a checksum of its bytes.
struct TensorChecksum {
  std::string tensor;
  std::uint64_t sum;
};

class GradientHooks;
class ModuleState;
class CudaScope;
class ScriptAdapter;
class UnitPass;
class Units;

/// Told during a backward pass that the elements [first, size) of the gradient are final. Empty: nobody is told.
using GradientReport = std::function<void(std::int64_t first)>;

/// What a backward pass does beside computing the gradient.
struct BackwardCall {
  /// The rows of this rank. Without rows, the loss may be any number.
  std::int64_t rows = 1;
  FiniteCheck check = FiniteCheck::loss;
  GradientReport report{};
  syncrun::detail::GradientCount* count = nullptr;  // not null if the gradient is that of a sum
  double share = 1;                                 // the part of the rows of all ranks and slices
  /// What has changed in the vector of parameters since the module was bound to it before: all, or in a later stage of a
  /// step, what the stage before has updated. Graphs of that stage may refer to all others.
  std::optional<ParameterRange> changed{};
  /// The factor of a scaled loss, in the memory of the device. Null without scaling. A scaled loss has the gradient of a
  /// sum.
  const float* scale = nullptr;
};

/// The collectives of the step that a worker runs. Graphs refer to it, and may live longer than the step. `comm` is
/// null then.
struct StepComm {
  Comm* comm;
  std::int64_t rows;
};

/// What modules can ask for in a step.
struct StepScope {
  int world_size;
  ::torch::Device device;          // of the worker
  std::shared_ptr<StepComm> comm;  // null if the body has no Comm&
  const StepScope* outer;
  mutable std::vector<::torch::Tensor> kept{};  // until the end of the body: numbers that it returns
};

/// Where LibTorch takes the device memory of a body from. `of_graphs`: from a pool that all bodies of the worker share
/// that can be captured. A graph writes to this memory in each replay, so no tensor there may outlive its body.
enum class BodyMemory : std::uint8_t { lasting, of_graphs };

/// What a Guard does. `comm` may be null.
class SYNCRUN_EXPORT PreparedWorker {
 public:
  PreparedWorker(CpuWorker& worker, Comm* comm, BodyMemory memory);
  PreparedWorker(CudaWorker& worker, Comm* comm, BodyMemory memory);
  ~PreparedWorker();
  PreparedWorker(const PreparedWorker&) = delete;
  PreparedWorker& operator=(const PreparedWorker&) = delete;

 private:
  std::unique_ptr<CudaScope> cuda_;  // null on a CPU device
  int threads_before_;
  StepScope scope_;
};

/// A copy of one number in device memory, in another type. It lives until the body ends, and its memory keeps the value
/// until the work of the next body. Throws Error (usage) if it is not one number, or if there is no Guard.
SYNCRUN_EXPORT const void* keep_number(const ::torch::Tensor& number, ::torch::ScalarType type);
/// Throws Error (usage) if the tensor is not one number.
SYNCRUN_EXPORT void check_number(const ::torch::Tensor& number);

/// The device of the innermost Guard of this thread. Without one, that of the process: the GPU of a worker that has
/// made a Guard for it, otherwise the CPU.
SYNCRUN_EXPORT ::torch::Device device_here() noexcept;

/// A module on a worker, whose parameters and gradients are parts of flat vectors of Syncrun. "The parameters" are
/// those that require a gradient. All others are frozen, and are treated like buffers.
class SYNCRUN_EXPORT BoundModule {
 public:
  /// Moves the module to the device of the innermost Guard. Throws Error (usage) if a parameter is not a dense tensor of
  /// floating-point numbers on this device, or if two parameters share memory without being one tensor.
  /// With units, the parameters are divided among the ranks, and calls are in a UnitPass.
  explicit BoundModule(std::shared_ptr<::torch::nn::Module> module, std::shared_ptr<Units> units = nullptr);

  /// The parameters: those of the construction, or of the last change that was laid out.
  const std::vector<BoundParameter>& parameters() const noexcept { return parameters_; }
  /// The parameters that the module has now, after begin_change().
  const std::vector<BoundParameter>& proposed() const noexcept { return proposed_; }
  /// The number of elements of all parameters.
  static std::int64_t count_elements(const std::vector<BoundParameter>& parameters) noexcept;
  /// A line of text for each parameter and each buffer, with its name, type and shape, and for each module, with its type
  /// and options. For TorchScript, the last line has a checksum of the file. Ranks compare it.
  std::string layout(const std::vector<BoundParameter>& parameters) const;
  /// Throws Error (usage) if a parameter has a type that a variable of this type cannot hold.
  void check_types(const std::vector<BoundParameter>& parameters, ::torch::ScalarType type) const;
  /// With units: four numbers for each parameter, that say where the ranks have it (Units::places).
  std::vector<std::int64_t> places_in_units() const;
  /// Whether the module has buffers or frozen parameters.
  bool has_buffers() const;
  /// The ids of all parameters that the module has now, also of frozen ones.
  std::vector<std::int64_t> ids() const;

  /// Before the program changes the module: the parameters get memory of their own.
  void begin_change(const FlatVector& params);
  /// The same on a new worker, where they have it still.
  void begin_repeated_change();
  /// After that: finds the parameters that the module has now. Throws as the constructor.
  void propose_change();
  /// The parameters are now those of propose_change(). store() follows. Until end_change(), all calls are errors, and
  /// another begin_change() goes back to the parameters before.
  void accept_change();
  void end_change();
  /// The number of changes that were accepted, in all modules that this one replaces too.
  std::int64_t changes() const noexcept { return changes_; }

  /// Copies the present values of the parameters into `params`, and binds the module to it.
  void store(const FlatVector& params);
  /// Binds the parameters to `params`: those of the same type become parts of it, and those of another type get copies of
  /// their values. The next backward() writes the gradient to `gradient`. On a CPU device, and if `call` has a report, the
  /// gradients of the parameters are parts of it, and are zero now. Otherwise, and for parameters of another type, they
  /// are undefined, so LibTorch need not add to them, and backward() collects them. Only parameters whose elements
  /// `gradient` has are trained. Throws Error (usage) if the module has other parameters than it should.
  void bind(const FlatVector& params, const FlatVector& gradient, const BackwardCall& call = {});
  /// Binds the parameters to `params`, for a call that does not change them.
  void bind_to_read(const FlatVector& params);

  /// A bit for each module, whether it is in training mode, and for each parameter, whether it requires a gradient. Valid
  /// until the next call.
  std::span<const std::uint64_t> modes() const noexcept;

  /// At the end of a body: see ScriptAdapter::keep_buffers().
  void keep_buffers() const;

  /// Runs the backward pass and returns the loss, or 0 without rows. Throws Error (usage) if the loss is not one
  /// number, if it does not depend on a parameter, if it is not finite, if there are other rows and the loss is no mean
  /// over its rows (loss_form.hpp), or if the backward pass replaced a gradient instead of adding to it. Throws also
  /// what the options of the call say. On a CUDA device, the loss stays in device memory, and only
  /// FiniteCheck::gradients looks at it.
  Avg<double> backward(const ::torch::Tensor& loss, const BackwardCall& call = {});
  /// The same for losses whose gradient is that of a sum. Sets the count of the call. If nothing counts on a CPU
  /// device, the gradient is zero, and the sum is not looked at.
  WeightedMean backward(const WeightedLoss& loss, const BackwardCall& call);
  Sum<double> backward(const SummedLoss& loss, const BackwardCall& call);
  /// The value of a loss that is evaluated only. Throws Error (usage) if it is not one number.
  Avg<double> result_of(const ::torch::Tensor& loss);
  WeightedMean result_of(const WeightedLoss& loss);
  Sum<double> result_of(const SummedLoss& loss);

  /// Makes the buffers and frozen parameters equal on all ranks. All ranks call it. `root` has the values that are not
  /// averaged.
  void sync_buffers(Comm& comm, BufferSync how, int root = 0);
  /// Warns once if a training step changed buffers and sync_buffers was not called since.
  void warn_of_buffers(AnyWorker& worker);

  /// For update_bn(): forgets the running statistics of BatchNorm.
  void reset_statistics();
  /// Makes the running statistics of BatchNorm the means over the batches of all ranks, and syncs the buffers. All ranks
  /// call it. Throws Error (usage) if no rank has seen a batch.
  void finish_statistics(Comm& comm);

  /// The checksums of all parameters and buffers, in the order of the module. A parameter whose values are copies has the
  /// checksum of those in `params`. Without `params`, throws Error (usage) if there are such parameters.
  std::vector<TensorChecksum> checksums(const std::optional<FlatVector>& params);

  /// Writes the module into a file.
  void save(const std::filesystem::path& file, FileFormat format);
  /// Reads the module from a file, with options from load_text(). Throws what libtorch::load() says. store() follows.
  LoadReport load(const std::filesystem::path& file, std::string_view options);
  /// Throws as load(), and reads nothing but the names, types and shapes of the tensors.
  void check_file(const std::filesystem::path& file, std::string_view options) const;
  /// The same with units, in a UnitPass of all ranks. One rank writes or reads the file, and has one unit at a time.
  void save_units(const std::filesystem::path& file, bool writes);
  LoadReport load_units(const std::filesystem::path& file, std::string_view options, bool reads);

 private:
  friend class UnitPass;
  struct KnownTensor {
    ::torch::Tensor tensor;
    std::vector<std::int64_t> sizes;
    std::int64_t id;
  };
  std::vector<BoundParameter> find_parameters(std::vector<KnownTensor>& known);
  void check_unchanged() const;
  void check_size(const FlatVector& params) const;
  void bind_params(const FlatVector& params, const std::optional<ParameterRange>& changed);
  void bind_gradient(const FlatVector& gradient, bool is_in_place);
  bool is_trained(const BoundParameter& parameter) const;
  void check_range() const;
  void collect_gradient();
  void collect_in_place();
  void run_backward(const ::torch::Tensor& loss, const BackwardCall& call, FiniteCheck check, bool counts);
  void check_loss(const ::torch::Tensor& loss, const BackwardCall& call) const;
  ::torch::Tensor scaled(const ::torch::Tensor& loss, const BackwardCall& call, double factor = 1) const;
  void set_count(double count, const BackwardCall& call);

  std::shared_ptr<::torch::nn::Module> module_;
  ScriptAdapter* script_;  // the same module if it is TorchScript, otherwise null
  ::torch::Device device_;
  ::torch::Tensor
      result_;  // on a CUDA device: the loss of the last step or evaluation, its count, and that of the step
  std::vector<BoundParameter> parameters_;
  std::vector<BoundParameter> proposed_;
  std::vector<BoundParameter> before_;  // from accept_change() until end_change(), as the next two
  std::vector<KnownTensor> known_before_;
  std::int64_t next_id_before_ = 0;
  std::vector<KnownTensor> known_;                                 // all parameters of the module
  std::vector<KnownTensor> proposed_known_;                        // those after begin_change()
  std::vector<std::pair<std::int64_t, ::torch::Tensor>> masters_;  // by id: values of converted parameters
  std::int64_t next_id_ = 0;           // equal on all ranks: what was only proposed does not count
  std::int64_t proposed_next_id_ = 0;  // after what is proposed
  std::int64_t changes_ = 0;
  bool is_changing_ = false;  // from begin_change() until end_change()
  bool is_proposed_ = false;
  std::int64_t elements_ = 0;
  FlatVector gradient_;
  std::shared_ptr<GradientHooks> watch_;  // null until a call needs one
  std::int64_t steps_ = 0;
  std::shared_ptr<ModuleState> state_;
  bool has_warned_ = false;
  bool has_copies_ = false;       // parameters are copies of the variable's values, in another type
  std::shared_ptr<Units> units_;  // null if each rank has all parameters
};

/// A module of TorchScript as a module of LibTorch: the same parameters, buffers and submodules under the same names.
/// Its mode is that of the script.
class SYNCRUN_EXPORT ScriptAdapter : public ::torch::nn::Module {
 public:
  explicit ScriptAdapter(::torch::jit::Module script);
  /// Loads a file of torch.jit.save to the device of the innermost Guard, in training mode. Throws Error: usage if it
  /// is no such file, system if it cannot be read.
  static std::shared_ptr<ScriptAdapter> from_file(const std::filesystem::path& file);

  ::torch::jit::Module& script() noexcept { return script_; }
  void train(bool on = true) override;
  bool is_training() const noexcept override;
  /// Code of TorchScript can assign another tensor to a buffer. Copies its values into the buffer's own tensor, and puts
  /// this tensor back. Throws Error (usage) if the other tensor has another shape or type. The message names the buffer,
  /// which keeps its values.
  void keep_buffers();
  /// The same without an error. Returns what does not fit. `prefix` is what the names of the buffers begin with.
  std::string put_back_buffers(const std::string& prefix = "");
  /// A checksum of the bytes of the file. 0 without a file.
  std::uint64_t checksum() const noexcept { return checksum_; }

 private:
  ::torch::jit::Module script_;
  std::uint64_t checksum_ = 0;
};

/// The module is in evaluation mode during the lifetime of this object. Afterwards, every submodule is in its former
/// mode. No gradients are recorded.
class SYNCRUN_EXPORT EvaluationScope {
 public:
  explicit EvaluationScope(::torch::nn::Module& module);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<::torch::nn::Module>, bool>> modes_;
  ::torch::NoGradGuard no_gradients_;
};

/// What a worker keeps of a slice until its last stage.
struct KeptSlice {
  std::vector<std::function<::torch::Tensor()>> later;
  std::vector<::torch::Tensor> inputs;
  std::shared_ptr<StepComm> comm;  // that graphs of the first stage refer to; null without a Comm&
};

/// The slices of a step between its stages, on one worker.
class SYNCRUN_EXPORT KeptSlices {
 public:
  /// In the first stage. `slice` is the number of the slice on this rank.
  KeptSlice& add(int slice);
  /// In a later one: the slices come in the same order. Throws Error (usage) if the first stage has not added this slice.
  KeptSlice& next(int slice);
  /// Forgets all slices. The graphs that they keep go with them.
  void release() noexcept { slices_.clear(); }
  /// What the stage trains. In later stages, graphs refer to the parameters that no stage has trained before.
  void note_range(std::size_t stage, const ParameterRange& range);
  /// The parameters that have changed since the last slice: in the first slice of a stage, those of the stage before.
  std::optional<ParameterRange> changed(std::size_t stage, int slice) const;

 private:
  std::vector<KeptSlice> slices_;
  std::size_t next_ = 0;
  std::vector<ParameterRange> ranges_;  // by stage
};

/// The module is in training mode during the lifetime of this object, without gradients, and the running statistics of
/// BatchNorm become means over all batches. Afterwards, every submodule has its former mode and momentum.
class SYNCRUN_EXPORT StatisticsScope {
 public:
  explicit StatisticsScope(::torch::nn::Module& module);
  ~StatisticsScope();
  StatisticsScope(const StatisticsScope&) = delete;
  StatisticsScope& operator=(const StatisticsScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<::torch::nn::Module>, bool>> modes_;
  std::vector<std::pair<::torch::nn::BatchNormOptions*, ::torch::optional<double>>> momenta_;
  ::torch::NoGradGuard no_gradients_;
};

/// Seeds LibTorch's generator on this worker: the same on every rank, to construct equal modules.
SYNCRUN_EXPORT void seed_equally(std::uint64_t seed);
/// Seeds LibTorch's generator on this worker: differently on every rank, for dropout.
SYNCRUN_EXPORT void seed_by_rank(std::uint64_t seed, int rank);

/// Throws Error (usage) unless the program was compiled with a version of LibTorch that fits the one that the library
/// was built with: the same major version, and not an older minor version. Throws it also if the process has loaded two
/// copies of LibTorch.
SYNCRUN_EXPORT void check_versions(int major, int minor);

/// Throws an Error with the message of LibTorch's `error`, and the line of the program that caused it.
[[noreturn]] SYNCRUN_EXPORT void rethrow_plainly(const c10::Error& error);

/// LibTorch's generator has this seed during the lifetime of this object, on every rank the same. Afterwards, it goes on
/// as before.
class SYNCRUN_EXPORT SeededScope {
 public:
  explicit SeededScope(std::uint64_t seed);
  ~SeededScope();
  SeededScope(const SeededScope&) = delete;
  SeededScope& operator=(const SeededScope&) = delete;

 private:
  ::torch::Tensor before_;
};

/// Throws Error (usage) if the layouts of the modules differ between ranks, or if they have no parameters. `layouts`
/// has the text of each rank, each with a zero byte at its end. The message begins with the caller, and names the first
/// difference.
SYNCRUN_EXPORT void check_layouts(std::string_view caller, std::span<const std::uint8_t> layouts);

/// Throws Error (usage) if a factory has returned no module.
SYNCRUN_EXPORT void check_is_module(bool is_module);

/// The shape of a tensor in a file, and the position of its elements in bytes.
struct TensorPlace {
  std::vector<std::int64_t> shape;
  std::int64_t offset;
};

/// Throws Error (usage) if the file has no such tensor, or if it has another type or number of dimensions.
SYNCRUN_EXPORT TensorPlace place_in_file(const std::filesystem::path& file, std::string_view tensor,
                                         ::torch::ScalarType type, std::size_t dimensions);

/// Throws Error (function) on all ranks if parameters of the ranks differ. The message names the first one.
SYNCRUN_EXPORT void check_equal_modules(Comm& comm, const ::torch::nn::Module& module);

/// Averages the gradients of a module over the ranks. See average().
SYNCRUN_EXPORT void average_gradients(Comm& comm, ::torch::nn::Module& module);

/// Parameters that are divided among the ranks, as whole tensors.
class SYNCRUN_EXPORT DividedParameters {
 public:
  /// Gives each rank about the same number of elements. Throws Error (usage) if a parameter occurs twice or has a type
  /// that ranks cannot exchange.
  DividedParameters(std::vector<::torch::Tensor> all, int rank, int world_size);

  const std::vector<::torch::Tensor>& all() const noexcept { return all_; }
  /// Those of this rank.
  std::vector<::torch::Tensor> own() const;
  /// Gives all ranks the values that each rank has of its own parameters.
  void exchange(Comm& comm) const;

 private:
  std::vector<::torch::Tensor> all_;
  std::vector<int> owners_;  // the rank of each parameter
  int rank_;
  int world_size_;
};

/// The format of a file: `format`, or the one that the name of the file implies.
SYNCRUN_EXPORT FileFormat format_of(const std::filesystem::path& file, FileFormat format);

/// The options for a file as a text, for a call of a worker. Throws Error (usage) if a name contains a zero byte.
SYNCRUN_EXPORT std::string load_text(const std::filesystem::path& file, const LoadOptions& options);
/// Names as one text, each with a zero byte at its end.
SYNCRUN_EXPORT std::string joined_names(const std::vector<std::string>& names);
/// The names in a text of joined_names().
SYNCRUN_EXPORT std::vector<std::string> names_in(std::span<const std::uint8_t> text);

}  // namespace detail
}  // namespace syncrun::libtorch
