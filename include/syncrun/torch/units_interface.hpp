#pragma once

// The interface of what is computed again and of units: what checkpoint(), Sharded and ShardedReplica call in
// libsyncrun_torch.so. Users name Reshard only.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "syncrun/detail/export.hpp"
#include "syncrun/detail/step_plan.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/train_step_options.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch {

/// What a unit keeps between its forward and its backward pass.
enum class Reshard : std::uint8_t {
  keep,  ///< Its intermediate results. The backward pass gathers its parameters again.
  /// Its inputs. The backward pass gathers its parameters and runs its forward pass again, as checkpoint() does. So
  /// BatchNorm in a unit updates its running statistics twice.
  recompute,
  never  ///< Its intermediate results and its parameters, until its backward pass is over. Saves one gather.
};

/// A type in which a ShardedReplica moves or uses values.
enum class UnitType : std::uint8_t {
  own,      ///< The type of the variable, float32 or float64.
  bfloat16  ///< Half the bytes of float32.
};

/// Whether the next unit is gathered, and the last gradient reduced, while a unit computes.
enum class Prefetch : std::uint8_t {
  on_gpus,  ///< On CUDA devices only. On CPU devices, it saves no time.
  never,    ///< Less memory: one unit, and one gradient of a unit that is being reduced.
  always    ///< On CPU devices too, where it saves no time. For tests.
};

/// How a ShardedReplica moves and uses its parameters. In a struct, because it is a template argument.
struct ShardOptions {
  /// The type in which units are gathered, compute, and have their gradients. The variable, the state and files keep
  /// their own type. With bfloat16, losses need no Autocast. Buffers and frozen parameters keep their type: make those
  /// that meet a unit's values in the constructor in the same type.
  UnitType gather = UnitType::own;
  /// The type in which the gradients of all ranks are added. The sum is stored in the type of the variable.
  UnitType reduce = UnitType::own;
  /// A pass has no prefetch until a pass of its kind has found the order of units, also after errors.
  /// It is off by default until its tests have run on more GPUs.
  Prefetch prefetch = Prefetch::never;
};

namespace detail {

using Tensors = std::vector<::torch::Tensor>;
/// A function of tensors, without their types.
using TensorFunction = std::function<Tensors(const Tensors&)>;

/// Work that the backward pass repeats. The other functions are called around the backward pass of the repetition, and
/// can be empty.
struct RepeatedWork {
  TensorFunction run;
  std::function<void()> before_backward{};
  std::function<void()> after_backward{};
};
/// Runs the work without recording it, and records a node that repeats it.
SYNCRUN_EXPORT Tensors run_repeatedly(RepeatedWork work, const Tensors& inputs);

// ---- units ----

class Unit;

/// The part of a Sharded module that does not depend on its type.
class SYNCRUN_EXPORT UnitHolder {
 public:
  /// A unit is not copied, and ends with its module.
  UnitHolder(const UnitHolder&) = delete;
  UnitHolder& operator=(const UnitHolder&) = delete;
  virtual ~UnitHolder() = default;

 protected:
  /// What happens to the parameters between the passes.
  explicit UnitHolder(Reshard reshard) noexcept : reshard_(reshard) {}

  /// While a ShardedReplica is constructed on this thread: divides the parameters of the module that are in no unit yet.
  void divide(::torch::nn::Module& module);
  bool is_divided() const noexcept { return unit_ != nullptr; }
  /// Gathers the parameters, calls `forward`, and arranges what happens in the backward pass.
  Tensors run(const Tensors& inputs, const TensorFunction& forward) const;

 private:
  friend class Units;
  std::shared_ptr<Unit> unit_;
  Reshard reshard_;
};

/// The most units, and bytes of whole parameters and gradients, that a rank had in memory at a time, without the rest of
/// the module.
struct UnitPeak {
  std::int64_t units = 0;
  std::int64_t bytes = 0;
};

/// Units for a module that is to be constructed, on the device of the innermost Guard.
SYNCRUN_EXPORT std::shared_ptr<Units> make_units(int rank, int world_size, ShardOptions options);
/// The length of a rank's copy of the variable of parameters.
SYNCRUN_EXPORT std::int64_t elements_of_rank(const Units& units) noexcept;
/// Since the units were made.
SYNCRUN_EXPORT UnitPeak peak_of(const Units& units) noexcept;

/// In its lifetime, Sharded modules that this thread constructs are divided.
class SYNCRUN_EXPORT DividingScope {
 public:
  explicit DividingScope(Units* units) noexcept;
  ~DividingScope();
  DividingScope(const DividingScope&) = delete;
  DividingScope& operator=(const DividingScope&) = delete;

 private:
  Units* before_;
};

/// A file gathers one unit after the other, in the order in which they were made.
enum class PassKind : std::uint8_t { evaluation, training, file };

/// A slice of a step, an evaluation or a file, with a divided module. In its lifetime, units can be gathered. At its
/// end, also by an exception, none is.
class SYNCRUN_EXPORT UnitPass {
 public:
  /// For what reads parameters.
  UnitPass(BoundModule& module, Comm& comm, const FlatVector& params, PassKind kind);
  /// For a slice of a step.
  UnitPass(BoundModule& module, Comm& comm, const FlatVector& params, const FlatVector& gradient, int slice);
  ~UnitPass();
  UnitPass(const UnitPass&) = delete;
  UnitPass& operator=(const UnitPass&) = delete;

  /// At the end of the work: waits for all ranks. Throws Error (usage) on all of them if they ran their units in different
  /// orders. NCCL would not notice it.
  void vote();

 private:
  void begin(Comm& comm, const FlatVector& params, const FlatVector& gradient, PassKind kind, bool is_first_slice);

  BoundModule& module_;
};

/// Divides groups of parameters, which are positions among all parameters, into those of each rank. A row of `places` is
/// that of Units::places, for each parameter, and `begins` has its first element among all parameters.
SYNCRUN_EXPORT syncrun::detail::GroupsByRank divide_groups(const std::vector<ParameterGroup>& groups,
                                                           std::span<const std::int64_t> begins,
                                                           std::span<const std::int64_t> places, int world_size);

}  // namespace detail

}  // namespace syncrun::libtorch
