#include "libtorch/units.hpp"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "libtorch/autocast_state.hpp"
#include "libtorch/module_state.hpp"
#include "libtorch/module_tensors.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

[[noreturn]] void refuse_unit(const std::string& what) { throw Error(ErrorKind::usage, what); }

/// Parts are multiples of so many bytes, which are a page on most machines: on CPU devices, whole pages are mapped.
constexpr std::int64_t kAlignedBytes = 4096;
/// A rank's copy has a length of 1 modulo this prime number, which is larger than any number of ranks. So a checkpoint of N
/// copies has a length of N modulo it, and never fits another number of ranks, where the parts lie elsewhere.
constexpr std::int64_t kCopyModulus = 1033;

/// In the list of events, an event is the number of its unit times this, plus its kind.
constexpr std::int64_t kEventFactor = 4;

thread_local Units* units_under_construction = nullptr;

std::int64_t elements_of_all(const std::vector<BoundParameter>& parameters) {
  return parameters.empty() ? 0 : parameters.back().end();
}

std::int64_t part_of_rank(std::int64_t elements, ::torch::ScalarType type, int world_size) {
  const std::int64_t aligned = kAlignedBytes / static_cast<std::int64_t>(c10::elementSize(type));
  const std::int64_t unit = aligned * world_size;
  return (elements + unit - 1) / unit * aligned;
}

::torch::ScalarType type_of(UnitType chosen, ::torch::ScalarType own) {
  return chosen == UnitType::bfloat16 ? ::torch::kBFloat16 : own;
}

std::int64_t hash_of(const std::vector<std::int64_t>& events) {
  std::uint64_t hash = 0;
  for (const std::int64_t event : events) hash = (hash ^ static_cast<std::uint64_t>(event + 1)) * 0x9e3779b97f4a7c15ULL;
  return static_cast<std::int64_t>(hash >> 1U);
}

bool are_equal(const std::vector<std::int64_t>& all) {
  return std::all_of(all.begin(), all.end(), [&](std::int64_t other) { return other == all.front(); });
}

/// After an error, the join may fail too. The call waits for what was started in any case.
void join_anyway(const std::optional<StartedCollective>& started) noexcept {
  try {
    if (started) started->join();
  } catch (const Error&) {
  }
}

/// Names the unit in an error of LibTorch that `code` throws.
template <class Code>
auto naming(const std::string& name, Code&& code) {
  try {
    return code();
  } catch (c10::Error& error) {
    error.add_context("in " + name);
    throw;
  }
}

}  // namespace

DividingScope::DividingScope(Units* units) noexcept : before_(std::exchange(units_under_construction, units)) {}
DividingScope::~DividingScope() { units_under_construction = before_; }

void UnitHolder::divide(::torch::nn::Module& module) {
  if (units_under_construction != nullptr) unit_ = units_under_construction->add(module);
}

std::shared_ptr<Units> make_units(int rank, int world_size, ShardOptions options) {
  return std::make_shared<Units>(rank, world_size, device_here(), options);
}
std::int64_t elements_of_rank(const Units& units) noexcept { return units.elements(); }
UnitPeak peak_of(const Units& units) noexcept { return units.peak(); }

UnitPass::UnitPass(BoundModule& module, Comm& comm, const FlatVector& params, PassKind kind) : module_(module) {
  module.check_unchanged();
  module.state_->note_use(ModuleState::Use::evaluation);
  begin(comm, params, {}, kind, true);
}

UnitPass::UnitPass(BoundModule& module, Comm& comm, const FlatVector& params, const FlatVector& gradient, int slice)
    : module_(module) {
  module.check_unchanged();
  module.state_->note_use(ModuleState::Use::training);
  module.gradient_ = gradient;
  ++module.steps_;
  begin(comm, params, gradient, PassKind::training, slice == 0);
}

void UnitPass::begin(Comm& comm, const FlatVector& params, const FlatVector& gradient, PassKind kind,
                     bool is_first_slice) {
  try {
    module_.units_->begin(comm, params, gradient, kind, is_first_slice);
  } catch (...) {  // there will be no destructor
    module_.units_->end();
    throw;
  }
}

UnitPass::~UnitPass() { module_.units_->end(); }
void UnitPass::vote() { module_.units_->vote(); }

Tensors UnitHolder::run(const Tensors& inputs, const TensorFunction& forward) const {
  return Unit::run(unit_, reshard_, inputs, forward);
}

// ---- a unit ---------------------------------------------------------------------------------------------------

Unit::Unit(Units& units, std::size_t index, std::vector<BoundParameter> parameters)
    : units_(&units),
      index_(index),
      name_("unit " + std::to_string(index)),
      parameters_(std::move(parameters)),
      type_(parameters_.front().tensor.scalar_type()),
      part_(part_of_rank(elements_of_all(parameters_), type_, units.world_size_)),
      full_(part_ * units.world_size_, type_of(units.options_.gather, type_), units.device_),
      gradient_(part_ * units.world_size_, full_.flat().scalar_type(), units.device_) {
  const ::torch::NoGradGuard no_gradients;
  if (full_.flat().scalar_type() != type_) exact_.emplace(part_ * units.world_size_, type_, units.device_);
  UnitMemory& whole = exact_ ? *exact_ : full_;
  whole.open_with_zeros();
  for (BoundParameter& each : parameters_) {
    if (each.tensor.scalar_type() != type() || each.tensor.layout() != ::torch::kStrided)
      refuse_unit("parameter '" + each.name + "' is " + type_and_shape(each.tensor) + ", expected the type of '" +
                  parameters_.front().name + "', " + type_and_shape(parameters_.front().tensor) +
                  ": the parameters of a unit have one type");
    if (each.tensor.numel() != 0 && each.tensor.storage().use_count() > 1)
      refuse_unit(
          "parameter '" + each.name +
          "' shares its memory with another tensor, expected memory of its own, because it is divided among the "
          "ranks. Register tied parameters as one tensor, and make others by clone()");
    whole.part_of(each).copy_(each.tensor);
    each.tensor.set_data(full_.part_of(each));  // for ever. This frees the memory that the parameter had
    each.tensor.mutable_grad() = gradient_.part_of(each);
  }
  initial_ = whole.flat().narrow(0, units.rank_ * part_, part_).clone();
  whole.close();
}

Tensors Unit::run(const std::shared_ptr<Unit>& unit, Reshard reshard, const Tensors& inputs,
                  const TensorFunction& forward) {
  Units& units = *unit->units_;
  if (::torch::GradMode::is_enabled() && reshard == Reshard::recompute) {
    return run_repeatedly({.run =
                               [unit, forward](const Tensors& again) {
                                 unit->units_->gather(*unit);
                                 Tensors outputs = naming(unit->name_, [&] { return forward(again); });
                                 if (!::torch::GradMode::is_enabled()) unit->units_->release(*unit);
                                 return outputs;
                               },
                           .before_backward = [unit] { unit->units_->open_gradient(*unit); },
                           .after_backward =
                               [unit] {
                                 unit->units_->release(*unit);
                                 unit->units_->reduce(*unit);
                               }},
                          inputs);
  }
  Tensors outputs = ::torch::GradMode::is_enabled() ? run_recorded(unit, reshard, inputs, forward) : [&] {
    units.gather(*unit);
    Tensors computed = naming(unit->name_, [&] { return forward(inputs); });
    units.release(*unit);
    return computed;
  }();
  // Its copies of parameters in other types would stay until the end of the scope.
  if (is_autocast_enabled(units.device_.type())) at::autocast::clear_cache();
  return outputs;
}

/// Hooks of tensors run before the node that has computed the tensor. All nodes of the unit are younger than the views of
/// its inputs, and LibTorch runs the youngest node that is ready, and before it those that add to parameters. So when the
/// hook of the first view runs, the backward pass of the unit is over. Without views, hooks of the module before would run
/// first, and more units would be in memory. If no input needs a gradient, the end of the backward pass ends the unit.
Tensors Unit::run_recorded(const std::shared_ptr<Unit>& unit, Reshard reshard, const Tensors& inputs,
                           const TensorFunction& forward) {
  Tensors own = inputs;
  for (::torch::Tensor& each : own) {
    if (!each.defined() || !each.requires_grad()) continue;
    each = each.view_as(each);
    each.register_hook([unit](const ::torch::Tensor&) {
      unit->units_->release(*unit);
      unit->units_->reduce(*unit);
    });
  }
  unit->units_->gather(*unit);
  Tensors outputs = naming(unit->name_, [&] { return forward(own); });
  if (reshard == Reshard::keep) unit->units_->release(*unit);
  for (const ::torch::Tensor& each : outputs) {
    if (!each.defined() || !each.requires_grad()) continue;
    each.register_hook([unit](const ::torch::Tensor&) {
      if (::torch::GradMode::is_enabled())
        refuse_unit(unit->name_ + ": second derivatives are not supported (create_graph)");
      unit->units_->gather(*unit);
      unit->units_->open_gradient(*unit);
    });
  }
  return outputs;
}

// ---- the construction of units --------------------------------------------------------------------------------

Units::Units(int rank, int world_size, ::torch::Device device, ShardOptions options)
    : rank_(rank), world_size_(world_size), device_(device), options_(options) {}

std::shared_ptr<Unit> Units::add(const ::torch::nn::Module& module) {
  std::vector<BoundParameter> own;
  std::int64_t offset = 0;
  for (BoundParameter& each : trained_parameters(module)) {
    if (owners_.contains(each.tensor.unsafeGetTensorImpl())) continue;
    const std::int64_t elements = each.tensor.numel();
    each.offset = std::exchange(offset, offset + elements);
    own.push_back(std::move(each));
  }
  if (offset == 0) return nullptr;
  Unit& unit = *units_.emplace_back(std::make_unique<Unit>(*this, units_.size(), std::move(own)));
  for (const BoundParameter& each : unit.parameters_) owners_.emplace(each.tensor.unsafeGetTensorImpl(), &unit);
  unit.begin_ = std::exchange(elements_, elements_ + unit.part_);
  return {shared_from_this(), &unit};
}

void Units::complete(const ::torch::nn::Module& module) {
  if (const auto rest = add(module)) {
    rest_ = rest.get();
    rest_->name_ = "the rest of the module";
  }
  while (elements_ % kCopyModulus != 1) ++elements_;
  for (const auto& each : module.named_modules()) {
    const auto* const holder = dynamic_cast<const UnitHolder*>(each.value().get());
    if (holder != nullptr && holder->unit_)
      holder->unit_->name_ = each.key().empty() ? "the whole module" : "unit '" + each.key() + "'";
  }
  // A tensor that two units use would be missing in one of them.
  const std::function<void(const ::torch::nn::Module&, const std::string&, const Unit*)> visit =
      [&](const ::torch::nn::Module& part, const std::string& prefix, const Unit* unit) {
        if (const auto* const holder = dynamic_cast<const UnitHolder*>(&part); holder != nullptr && holder->unit_)
          unit = holder->unit_.get();
        for (const auto& each : part.named_parameters(false)) {
          if (!each.value().defined() || !each.value().requires_grad()) continue;
          const Unit& owner = owner_of(each.value());
          if (&owner == unit) continue;
          refuse_unit("parameter '" + prefix + each.key() + "' is tied to one of " + owner.name_ + ", and is used by " +
                      (unit == nullptr ? "the rest of the module" : unit->name_) +
                      ": expected tied parameters in one unit. Make a unit of a module that contains both, or leave "
                      "both outside of units");
        }
        for (const auto& child : part.named_children()) visit(*child.value(), prefix + child.key() + ".", unit);
      };
  visit(module, "", rest_);
  for (const auto& unit : units_) {
    const auto name = "the parameters of " + unit->name_ + ", which are gathered only while it computes";
    unit->full_.set_name(name);
    if (unit->exact_) unit->exact_->set_name(name);
    unit->gradient_.set_name("the gradient of " + unit->name_ + ", which exists only in its backward pass");
  }
  for (const BoundParameter& each : trained_parameters(module)) {
    for (BoundParameter& own : owner_of(each.tensor).parameters_) {
      if (own.tensor.is_same(each.tensor)) own.name = each.name;
    }
  }
}

Unit* Units::find_owner(const ::torch::Tensor& tensor) const {
  const auto found = owners_.find(tensor.unsafeGetTensorImpl());
  return found == owners_.end() ? nullptr : found->second;
}

std::string Units::layout() const {
  std::string text;
  for (const auto& unit : units_)
    text += unit->name_ + " with " + std::to_string(elements_of_all(unit->parameters_)) + " elements\n";
  return text;
}

void Units::check_type(::torch::ScalarType type) const {
  for (const auto& unit : units_) {
    if (unit->type() == type) continue;
    const BoundParameter& first = unit->parameters_.front();
    refuse_unit("parameter '" + first.name + "' is " + type_and_shape(first.tensor) + ", expected " +
                c10::toString(type) + ", the type of the variable. Other types are not supported in a ShardedReplica");
  }
}

::torch::Tensor Units::part_in(const FlatVector& vector, const Unit& unit) const {
  auto* const data = static_cast<std::byte*>(vector.data);
  const auto at = static_cast<std::size_t>(unit.begin_) * c10::elementSize(vector.type);
  return ::torch::from_blob(data + at, {unit.part_}, ::torch::TensorOptions().dtype(vector.type).device(device_));
}

void Units::store(const FlatVector& params) {
  if (std::exchange(is_stored_, true))
    refuse_unit(
        "this replica has a variable already, and keeps no initial values for another one. Use that variable, or make "
        "another ShardedReplica");
  for (const auto& unit : units_) part_in(params, *unit).copy_(std::exchange(unit->initial_, ::torch::Tensor()));
}

std::vector<std::int64_t> Units::places(const std::vector<BoundParameter>& parameters) const {
  std::vector<std::int64_t> places;
  for (const BoundParameter& each : parameters) {
    const Unit& unit = owner_of(each.tensor);
    for (const BoundParameter& own : unit.parameters_) {
      if (own.tensor.is_same(each.tensor))
        places.insert(places.end(), {own.offset, each.tensor.numel(), unit.part_, unit.begin_});
    }
  }
  return places;
}

// ---- a pass ---------------------------------------------------------------------------------------------------

void Units::begin(Comm& comm, const FlatVector& params, const FlatVector& gradient, PassKind kind,
                  bool is_first_slice) {
  if (comm.world_size() != world_size_ || comm.rank() != rank_)
    refuse_unit("the call has " + std::to_string(comm.world_size()) + " ranks, expected all " +
                std::to_string(world_size_) + ": each has a part of the parameters");
  for (const FlatVector& vector : {params, gradient}) {
    if (vector.data == nullptr) continue;
    check_type(vector.type);
    if (vector.elements == elements_) continue;
    refuse_unit("the variable has " + std::to_string(vector.elements) + " elements on this rank, expected " +
                std::to_string(elements_) +
                ". Make the variable with parameters(session, net), and load files of another number of ranks with "
                "load(session, net, ...)");
  }
  comm_ = &comm;
  params_ = params;
  gradient_ = gradient;
  kind_ = kind;
  is_backward_ = false;
  counts_ = true;
  events_.clear();
  reducing_.reset();
  for (const auto& unit : units_) unit->has_gradient_ = !is_first_slice;
  is_predicted_ = false;
  if (kind == PassKind::file) return;
  if (prefetches()) {
    const auto all = comm.lengths(hash_of(last_events()));
    is_predicted_ = !last_events().empty() && are_equal(all);
  }
  if (rest_ != nullptr) gather(*rest_);
}

void Units::begin_backward(bool counts) {
  is_backward_ = true;
  counts_ = counts;
  if (rest_ != nullptr) open_gradient(*rest_);
}

void Units::backward(const ::torch::Tensor& loss) {
  try {
    loss.backward();
  } catch (c10::Error& error) {
    for (const auto& unit : units_) {
      if (!is_rest(*unit) && unit->gradient_.is_open()) error.add_context("in the backward pass of " + unit->name_);
    }
    throw;
  }
}

void Units::end_backward() {
  for (const auto& unit : units_) {
    release(*unit);
    reduce(*unit);
  }
  finish_reducing();
}

/// What was started may still use the memory.
void Units::end() noexcept {
  comm_ = nullptr;
  join_anyway(reducing_ ? std::optional(reducing_->started) : std::nullopt);
  reducing_.reset();
  for (const auto& unit : units_) {
    join_anyway(std::exchange(unit->gathering_, std::nullopt));
    unit->full_.close();
    unit->gradient_.close();
    if (unit->exact_) unit->exact_->close();
  }
}

Comm& Units::comm_for(const Unit& unit) const {
  if (comm_ != nullptr) return *comm_;
  refuse_unit(unit.name_ +
              " computes outside of a step and an evaluation, where its parameters cannot be gathered, or its backward "
              "pass came after the end of the body");
}

std::string Units::label_of(const Unit& unit, Event event) const {
  constexpr std::array kTexts{"", " in the backward pass", " and its gradient"};
  return unit.name_ + kTexts[static_cast<std::size_t>(event)];
}

void Units::note_memory() noexcept {
  UnitPeak now;
  for (const auto& unit : units_) {
    if (is_rest(*unit)) continue;
    now.units += unit->full_.is_open() ? 1 : 0;
    for (const UnitMemory* const memory : {&unit->full_, &unit->gradient_})
      now.bytes += memory->is_open() ? memory->bytes() : 0;
  }
  if (reducing_ && !is_rest(*reducing_->unit) && !reducing_->unit->gradient_.is_open())
    now.bytes += static_cast<std::int64_t>(reducing_->whole.nbytes());
  peak_ = {std::max(peak_.units, now.units), std::max(peak_.bytes, now.bytes)};
}

bool Units::prefetches() const noexcept {
  if (world_size_ == 1 || options_.prefetch == Prefetch::never) return false;
  return options_.prefetch == Prefetch::always || device_.is_cuda();
}

void Units::gather(Unit& unit) {
  if (unit.full_.is_open() && !unit.gathering_) return;
  const Event event = is_backward_ ? Event::gather_again : Event::gather;
  if (!unit.gathering_) start_gather(unit, event);
  note(unit, event);
  unit.gathering_->join();
  unit.gathering_.reset();
  prefetch();
}

/// This rank's part is converted in its place in the whole.
void Units::start_gather(Unit& unit, Event event) {
  Comm& comm = comm_for(unit);
  const ::torch::NoGradGuard no_gradients;
  naming(unit.name_, [&] { unit.full_.open(); });
  note_memory();
  const CollectiveLabel label(comm, label_of(unit, event));
  ::torch::Tensor part = part_in(params_, unit);
  if (unit.exact_) part = ::torch::Tensor(unit.full_.flat().narrow(0, rank_ * unit.part_, unit.part_)).copy_(part);
  const ::torch::Tensor& whole = unit.full_.flat();
  unit.gathering_.emplace(syncrun::detail::start_gather_into_pages(
      comm, {part.data_ptr(), static_cast<std::size_t>(part.numel()), part.element_size()},
      {whole.data_ptr(), static_cast<std::size_t>(whole.numel())}));
}

void Units::prefetch() {
  if (!is_predicted_) return;
  const std::vector<std::int64_t>& last = last_events();
  for (std::size_t i = events_.size(); i < last.size(); ++i) {
    const auto event = static_cast<Event>(last[i] % kEventFactor);
    if (event == Event::reduce) continue;
    Unit& next = *units_[static_cast<std::size_t>(last[i] / kEventFactor)];
    if (!next.full_.is_open()) start_gather(next, event);
    return;
  }
}

void Units::release(Unit& unit) noexcept {
  if (!unit.gathering_) unit.full_.close();  // otherwise it is gathered for its next use
}

void Units::open_gradient(Unit& unit) {
  if (reducing_ && reducing_->unit == &unit) finish_reducing();  // the unit is used again
  if (unit.gradient_.is_open()) return;
  naming(unit.name_, [&] { unit.gradient_.open_with_zeros(); });
  note_memory();
}

void Units::check_gradient(const Unit& unit) const {
  for (const BoundParameter& each : unit.parameters_) {
    const ::torch::Tensor& own = each.tensor.grad();
    if (each.tensor.numel() == 0) continue;
    if (own.defined() && own.is_alias_of(unit.gradient_.flat())) continue;
    refuse_unit("the gradient of parameter '" + each.name +
                "' was replaced during the backward pass, expected additions to it. Do not assign or reset .grad, for "
                "example by zero_grad()");
  }
}

void Units::reduce(Unit& unit) {
  if (!unit.gradient_.is_open() || (reducing_ && reducing_->unit == &unit)) return;
  Comm& comm = comm_for(unit);
  check_gradient(unit);
  finish_reducing();
  const ::torch::NoGradGuard no_gradients;
  ::torch::Tensor whole = unit.gradient_.flat();
  if (!counts_) whole.zero_();  // it may be NaN
  note(unit, Event::reduce);
  const auto type = type_of(options_.reduce, unit.type_);
  if (whole.scalar_type() != type) {
    whole = whole.to(type);
    unit.gradient_.close();
  }
  // With the type of the variable, the result can go to its place. Otherwise, it goes to this rank's place in the whole.
  ::torch::Tensor part = part_in(gradient_, unit);
  const bool is_direct = type == unit.type_ && !unit.has_gradient_;
  const ::torch::Tensor own = is_direct ? part : whole.narrow(0, rank_ * unit.part_, unit.part_);
  const CollectiveLabel label(comm, label_of(unit, Event::reduce));
  with_floating_elements(whole, [&]<class T>(std::span<T> all) {
    reducing_.emplace(Reducing{&unit, whole, is_direct ? ::torch::Tensor() : own,
                               comm.start_reduce_scatter(all, elements_of<T>(own), Reduction::sum)});
  });
  note_memory();
  if (!prefetches()) finish_reducing();
}

void Units::finish_reducing() {
  if (!reducing_) return;
  reducing_->started.join();
  const ::torch::NoGradGuard no_gradients;
  Unit& unit = *reducing_->unit;
  if (reducing_->own.defined()) {
    ::torch::Tensor part = part_in(gradient_, unit);
    if (unit.has_gradient_) part.add_(reducing_->own);
    else part.copy_(reducing_->own);
  }
  unit.has_gradient_ = true;
  unit.gradient_.close();
  reducing_.reset();
}

// ---- files ----------------------------------------------------------------------------------------------------

::torch::Tensor Units::exact(const ::torch::Tensor& tensor) const {
  const Unit* const unit = find_owner(tensor);
  if (unit == nullptr || !unit->exact_) return tensor;
  const auto& own = unit->parameters_;
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const auto& each) { return each.tensor.is_same(tensor); });
  return unit->exact_->part_of(*found);
}

void Units::gather_exact(Unit& unit) {
  if (!unit.exact_) return gather(unit);
  Comm& comm = comm_for(unit);
  naming(unit.name_, [&] { unit.exact_->open(); });
  const CollectiveLabel label(comm, label_of(unit, Event::gather));
  const ::torch::Tensor part = part_in(params_, unit);
  with_floating_elements(unit.exact_->flat(),
                         [&]<class T>(std::span<T> all) { comm.all_gather(elements_of<T>(part), all); });
}

void Units::release_exact(Unit& unit) noexcept {
  if (unit.exact_) unit.exact_->close();
  else release(unit);
}

void Units::scatter(Unit& unit) {
  Comm& comm = comm_for(unit);
  const CollectiveLabel label(comm, unit.name_ + " from a file");
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(world_size_), unit.part_);
  const ::torch::Tensor part = part_in(params_, unit);
  with_floating_elements((unit.exact_ ? *unit.exact_ : unit.full_).flat(), [&]<class T>(std::span<T> all) {
    comm.scatter(rank_ == 0 ? all : std::span<T>(), elements_of<T>(part), 0, lengths);
  });
}

// ---- the order ------------------------------------------------------------------------------------------------

void Units::note(const Unit& unit, Event event) {
  events_.push_back(static_cast<std::int64_t>(unit.index_) * kEventFactor + static_cast<std::int64_t>(event));
  const std::vector<std::int64_t>& last = last_events();
  is_predicted_ = is_predicted_ && events_.size() <= last.size() && events_.back() == last[events_.size() - 1];
}

void Units::vote() {
  if (!are_equal(comm_->lengths(hash_of(events_)))) refuse_order();
  if (kind_ != PassKind::file) std::swap(last_events(), events_);
}

/// Called by all ranks. Finds the first difference.
void Units::refuse_order() {
  const auto counts = comm_->lengths(static_cast<std::int64_t>(events_.size()));
  const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  const auto described = [&](std::int64_t event) {
    if (event < 0) return std::string("nothing more");
    return label_of(*units_[static_cast<std::size_t>(event / kEventFactor)], static_cast<Event>(event % kEventFactor));
  };
  for (std::size_t i = 0; i < most; ++i) {
    const auto events = comm_->lengths(i < events_.size() ? events_[i] : -1);
    const auto other = std::find_if(events.begin(), events.end(), [&](std::int64_t each) { return each != events[0]; });
    if (other == events.end()) continue;
    refuse_unit("the ranks ran their units in different orders: rank 0 had " + described(events[0]) + ", rank " +
                std::to_string(other - events.begin()) + " had " + described(*other) +
                ". All ranks must run the same units in the same order, also those without rows");
  }
  refuse_unit("the ranks ran their units in different orders");
}

}  // namespace syncrun::libtorch::detail
