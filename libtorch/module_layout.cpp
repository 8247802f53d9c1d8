// The parameters of a BoundModule: which there are, and how a program changes them.

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <locale>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/gradient_hooks.hpp"
#include "libtorch/module_state.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/units.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

namespace {

[[noreturn]] void refuse_module(const std::string& what) { throw Error(ErrorKind::usage, what); }

/// The bytes from the first to the last element of a tensor.
struct Extent {
  const std::byte* begin;
  const std::byte* end;
  const std::string* name;
};

Extent extent_of(const BoundParameter& parameter) {
  const ::torch::Tensor& tensor = parameter.tensor;
  const auto* begin = static_cast<const std::byte*>(tensor.data_ptr());
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + static_cast<std::size_t>(last + 1) * tensor.element_size(), &parameter.name};
}

/// Two tensors that share memory would become separate, and then differ.
void check_memory(const std::vector<BoundParameter>& parameters) {
  std::vector<Extent> extents;
  for (const BoundParameter& each : parameters) {
    if (each.tensor.numel() != 0) extents.push_back(extent_of(each));
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    refuse_module(
        "parameters '" + *extents[i - 1].name + "' and '" + *extents[i].name +
        "' are two tensors with the same memory, expected tied parameters to be one tensor. Register the same tensor "
        "or the same module twice instead of a view of it");
  }
}

/// Classes of the program may print what differs between ranks, so only LibTorch's print their options.
std::string type_and_options(const ::torch::nn::Module& module) {
  if (!module.name().starts_with("torch::nn::")) return module.name();
  std::stringbuf text;
  std::ostream stream(&text);
  stream.imbue(std::locale::classic());
  module.pretty_print(stream);
  return text.str();
}

}  // namespace

/// The parameters that the module has now. A tensor that it had before with the same shape keeps its id. `known` gets the ids
/// of all parameters.
std::vector<BoundParameter> BoundModule::find_parameters(std::vector<KnownTensor>& known) {
  const auto of = [](const std::vector<KnownTensor>& tensors, const ::torch::Tensor& tensor) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const KnownTensor& each) {
      return each.tensor.is_same(tensor) && tensor.sizes() == ::torch::IntArrayRef(each.sizes);
    });
  };
  std::vector<KnownTensor> now;
  proposed_next_id_ = next_id_;
  for (const auto& each : module_->parameters()) {
    if (!each.defined() || of(now, each) != now.end()) continue;
    const auto before = of(known_, each);
    now.push_back({each, each.sizes().vec(), before == known_.end() ? proposed_next_id_++ : before->id});
  }
  std::vector<BoundParameter> found = trained_parameters(*module_);
  for (BoundParameter& each : found) {
    check_type(each);
    each.id = of(now, each.tensor)->id;
  }
  if (!units_) check_memory(found);  // otherwise, they are parts of the memory of units
  known = std::move(now);
  return found;
}

std::int64_t BoundModule::count_elements(const std::vector<BoundParameter>& parameters) noexcept {
  return parameters.empty() ? 0 : parameters.back().end();
}

std::vector<std::int64_t> BoundModule::ids() const {
  std::vector<std::int64_t> ids;
  for (const KnownTensor& each : is_proposed_ ? proposed_known_ : known_) ids.push_back(each.id);
  return ids;
}

std::vector<std::int64_t> BoundModule::places_in_units() const { return units_->places(parameters_); }

void BoundModule::check_types(const std::vector<BoundParameter>& parameters, ::torch::ScalarType type) const {
  if (units_) units_->check_type(type);
  for (const BoundParameter& each : parameters) {
    const auto own = each.tensor.scalar_type();
    if (c10::elementSize(own) <= c10::elementSize(type)) continue;
    refuse_module("parameter '" + each.name + "' is " + type_and_shape(each.tensor) +
                  ", expected float32, float16 or bfloat16 in a variable of float. Make the variable with "
                  "parameters<double>(session, net), or convert the parameter in the constructor of the module");
  }
}

std::string BoundModule::layout(const std::vector<BoundParameter>& parameters) const {
  std::string text;
  for (const BoundParameter& each : parameters)
    text += "parameter '" + each.name + "' " + type_and_shape(each.tensor) + memory_order(each) + "\n";
  text += "no more parameters\n";
  for (const ModuleTensor& each : other_tensors(*module_))
    text += "buffer '" + each.names.front() + "' " + type_and_shape(each.tensor) + "\n";
  text += "no more buffers\n";
  for (const auto& each : module_->named_modules())
    text += "module '" + each.key() + "' " + type_and_options(*each.value()) + "\n";
  if (units_) text += units_->layout();
  if (script_ != nullptr)
    text += "a file of TorchScript with the checksum " + std::to_string(script_->checksum()) + "\n";
  return text;
}

void BoundModule::begin_change(const FlatVector& params) {
  if (!before_.empty()) {  // the change before was laid out here, but not on all ranks
    parameters_ = std::exchange(before_, {});
    known_ = std::move(known_before_);
    next_id_ = next_id_before_;
    elements_ = count_elements(parameters_);
    --changes_;
  }
  if (!is_changing_) bind_to_read(params);
  else check_size(params);
  begin_repeated_change();
  masters_.clear();
  const ::torch::NoGradGuard no_gradients;
  for (const BoundParameter& each : parameters_) {
    each.tensor.mutable_grad().reset();
    ::torch::Tensor tensor = each.tensor;
    const bool has_its_shape = tensor.sizes() == ::torch::IntArrayRef(each.sizes);
    if (!has_its_shape) continue;  // a change that failed has left another one
    const ::torch::Tensor values = part_of(params, each).clone();
    if (tensor.scalar_type() == params.type) tensor.set_data(values);
    else masters_.emplace_back(each.id, values);
  }
}

void BoundModule::begin_repeated_change() {
  is_changing_ = true;
  is_proposed_ = false;
}

void BoundModule::propose_change() {
  if (!device_.is_cpu()) module_->to(device_);
  proposed_ = find_parameters(proposed_known_);
  is_proposed_ = true;
}

void BoundModule::accept_change() {
  if (!is_proposed_) refuse_module("change: this worker has not changed its module");
  before_ = std::exchange(parameters_, std::move(proposed_));
  known_before_ = std::exchange(known_, std::move(proposed_known_));
  next_id_before_ = std::exchange(next_id_, proposed_next_id_);
  ++changes_;
  proposed_.clear();
  proposed_known_.clear();
  is_proposed_ = false;
  elements_ = count_elements(parameters_);
  watch_.reset();
  state_ = std::make_shared<ModuleState>(module_, parameters_);
}

void BoundModule::end_change() {
  before_.clear();
  known_before_.clear();
  is_changing_ = false;
}

void check_layouts(std::string_view caller, std::span<const std::uint8_t> layouts) {
  std::vector<std::string> by_rank(1);
  for (const std::uint8_t byte : layouts) {
    if (byte == 0) by_rank.emplace_back();
    else by_rank.back().push_back(static_cast<char>(byte));
  }
  by_rank.pop_back();  // after the last zero
  const std::string& first = by_rank.front();
  const auto line_at = [](const std::string& text, std::size_t begin) {
    return begin >= text.size() ? std::string("nothing more") : text.substr(begin, text.find('\n', begin) - begin);
  };
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const std::string& other = by_rank[rank];
    if (other == first) continue;
    const auto common = static_cast<std::size_t>(
        std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first - first.begin());
    const std::size_t before = common == 0 ? std::string::npos : first.rfind('\n', common - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    refuse_module(std::string(caller) + ": the modules differ: rank 0 has " + line_at(first, begin) + ", rank " +
                  std::to_string(rank) + " has " + line_at(other, begin) + ". Construct the same module on every rank");
  }
  if (first.find("parameter '") != 0)
    refuse_module(std::string(caller) +
                  ": the module has no parameter that requires a gradient, expected at least one");
}

}  // namespace syncrun::libtorch::detail
