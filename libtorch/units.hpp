#pragma once

// Units: the parameters of a module that are divided among the ranks. A unit is a Sharded module, or the rest of the
// module. Each rank keeps an equal part of each unit, and gathers the whole unit while it computes:
//
//   the forward pass: gather -> the unit computes -> release (Reshard::never: later)
//   the backward pass: gather, open the gradient -> the unit computes -> release, reduce the gradient
//
// With prefetch, the reduction of a gradient runs while the next unit computes. And so does the gather of the unit
// after it: a pass predicts the order of units from the last pass of its kind. The ranks compare their predictions
// before the pass.
//
// The rest of the module stays gathered in the whole pass. A rank's parts lie one after the other in its copy of the
// variable of parameters, of the gradient and of the rule's state. They are padded to equal lengths.
//
// On CPU devices of one node, a gather maps the parts of the other ranks. So a rank may write to its parts only when all
// ranks have run their units, which vote() says.

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "libtorch/unit_memory.hpp"
#include "syncrun/torch/sharded_units.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch::detail {

/// The parameters of a unit. The offsets of its parameters are those in the unit.
class Unit {
 public:
  Unit(Units& units, std::size_t index, std::vector<BoundParameter> parameters);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// What a Sharded module does; see UnitHolder.
  static Tensors run(const std::shared_ptr<Unit>& unit, Reshard reshard, const Tensors& inputs,
                     const TensorFunction& forward);

  const std::string& name() const noexcept { return name_; }
  const std::vector<BoundParameter>& parameters() const noexcept { return parameters_; }
  /// The type of the variable.
  ::torch::ScalarType type() const noexcept { return type_; }

 private:
  friend class Units;
  static Tensors run_recorded(const std::shared_ptr<Unit>& unit, Reshard reshard, const Tensors& inputs,
                              const TensorFunction& forward);

  Units* units_;
  std::size_t index_;
  std::string name_;
  std::vector<BoundParameter> parameters_;
  ::torch::ScalarType type_;
  std::int64_t part_;                           // the elements of each rank
  std::int64_t begin_ = 0;                      // of this rank's part among its parts of all units
  UnitMemory full_;                             // in the type in which the unit computes
  UnitMemory gradient_;                         // the same
  std::optional<UnitMemory> exact_;             // for files, if they have another type than full_
  std::optional<StartedCollective> gathering_;  // of full_, until it is joined
  ::torch::Tensor initial_;                     // this rank's part, until store()
  bool has_gradient_ = false;                   // this pass has written this rank's part of the gradient
};

class Units : public std::enable_shared_from_this<Units> {
 public:
  Units(int rank, int world_size, ::torch::Device device, ShardOptions options);
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  // ---- the construction of the module ----

  /// Makes a unit of those parameters of a module that are in no unit. Returns null if all of them are in one.
  std::shared_ptr<Unit> add(const ::torch::nn::Module& module);
  /// Makes a unit of the rest, and names all units. Throws Error (usage) if a tensor is used by two units.
  void complete(const ::torch::nn::Module& module);
  /// The unit of a tensor. Null if it is in none.
  Unit* find_owner(const ::torch::Tensor& tensor) const;
  /// The unit of a parameter that is in one.
  Unit& owner_of(const ::torch::Tensor& parameter) const { return *owners_.at(parameter.unsafeGetTensorImpl()); }
  /// A line for each unit, which the ranks compare.
  std::string layout() const;
  /// The length of a rank's copy of the variable.
  std::int64_t elements() const noexcept { return elements_; }
  /// Throws Error (usage) unless all parameters have this type.
  void check_type(::torch::ScalarType type) const;
  /// Copies this rank's parts of the initial values into its copy of the variable. Throws Error (usage) the second time.
  void store(const FlatVector& params);
  /// Four numbers for each parameter, in the order of the units: its first element in its unit, its number of elements,
  /// the length of a rank's part of the unit, and where this part begins in a rank's copy of the variable.
  std::vector<std::int64_t> places(const std::vector<BoundParameter>& parameters) const;

  // ---- a pass: a slice of a step, an evaluation, a file ----

  /// Begins a pass. Gathers the rest of the module, but for a file. `gradient` is empty in a pass that only reads.
  void begin(Comm& comm, const FlatVector& params, const FlatVector& gradient, PassKind kind, bool is_first_slice);
  /// `counts`: whether this rank's gradient counts. If not, it may be anything.
  void begin_backward(bool counts);
  void backward(const ::torch::Tensor& loss);
  /// Called by all ranks, after the backward pass if there is one: reduces what is left.
  void end_backward();
  /// Returns when all ranks have run their units. Throws Error (usage) on all of them if their orders differ.
  void vote();
  /// Releases everything, also after an exception.
  void end() noexcept;

  void gather(Unit& unit);
  void release(Unit& unit) noexcept;
  void open_gradient(Unit& unit);
  /// Adds the gradients of all ranks, and adds this rank's part to its copy of the gradient. Frees the whole gradient, with
  /// prefetch at the next call.
  void reduce(Unit& unit);

  /// For files: the parameters in the type of the variable. The tensor of a parameter has memory between gather_exact()
  /// and release_exact(). Other tensors are returned as they are.
  ::torch::Tensor exact(const ::torch::Tensor& tensor) const;
  void gather_exact(Unit& unit);
  void release_exact(Unit& unit) noexcept;
  /// Gives each rank its part of the unit from rank 0. Between gather_exact() and release_exact().
  void scatter(Unit& unit);
  const std::vector<std::unique_ptr<Unit>>& all() const noexcept { return units_; }
  UnitPeak peak() const noexcept { return peak_; }

 private:
  friend class Unit;
  enum class Event : std::uint8_t { gather, gather_again, reduce };

  /// A reduction of a unit's gradient that has started.
  struct Reducing {
    Unit* unit;
    ::torch::Tensor whole;  // what is reduced
    ::torch::Tensor own;    // the result for this rank's part, if it has still to be added to it
    StartedCollective started;
  };

  ::torch::Tensor part_in(const FlatVector& vector, const Unit& unit) const;
  Comm& comm_for(const Unit& unit) const;
  std::string label_of(const Unit& unit, Event event) const;
  bool prefetches() const noexcept;
  void start_gather(Unit& unit, Event event);
  /// Starts the gather that the prediction says is next.
  void prefetch();
  void finish_reducing();
  void note(const Unit& unit, Event event);
  void check_gradient(const Unit& unit) const;
  void note_memory() noexcept;
  bool is_rest(const Unit& unit) const noexcept { return &unit == rest_; }
  std::vector<std::int64_t>& last_events() noexcept { return last_events_[static_cast<std::size_t>(kind_)]; }
  [[noreturn]] void refuse_order();

  const int rank_;
  const int world_size_;
  const ::torch::Device device_;
  const ShardOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  Unit* rest_ = nullptr;  // complete() sets it. Null if every parameter is in a Sharded module
  std::unordered_map<const c10::TensorImpl*, Unit*> owners_;
  std::int64_t elements_ = 0;
  bool is_stored_ = false;
  UnitPeak peak_;

  // of a pass
  Comm* comm_ = nullptr;
  FlatVector params_;
  FlatVector gradient_;
  PassKind kind_ = PassKind::evaluation;
  bool is_backward_ = false;
  bool counts_ = true;
  std::vector<std::int64_t> events_;
  bool is_predicted_ = false;  // up to now, the events are those of last_events_
  std::optional<Reducing> reducing_;

  std::array<std::vector<std::int64_t>, 3> last_events_;  // of the last complete pass of each kind; not of files
};

}  // namespace syncrun::libtorch::detail
