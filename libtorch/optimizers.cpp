#include "syncrun/torch/optimizers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "libtorch/module_tensors.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch {

namespace {

using ::torch::optim::Optimizer;
using ::torch::optim::OptimizerParamGroup;
using ::torch::serialize::InputArchive;
using ::torch::serialize::OutputArchive;

// ---- files --------------------------------------------------------------------------------------------------------

c10::IValue value_in(InputArchive& archive, const char* name) {
  c10::IValue value;
  archive.read(name, value);
  return value;
}
void write_if_defined(OutputArchive& archive, const char* name, const ::torch::Tensor& tensor) {
  if (tensor.defined()) archive.write(name, tensor);
}
::torch::Tensor tensor_if_there(InputArchive& archive, const char* name) {
  ::torch::Tensor tensor;
  static_cast<void>(archive.try_read(name, tensor));
  return tensor;
}

struct MuonState : ::torch::optim::OptimizerCloneableParamState<MuonState> {
  ::torch::Tensor buffer;

  void serialize(InputArchive& archive) override { archive.read("momentum_buffer", buffer); }
  void serialize(OutputArchive& archive) const override { archive.write("momentum_buffer", buffer); }
};

struct AdafactorState : ::torch::optim::OptimizerCloneableParamState<AdafactorState> {
  std::int64_t step = 0;
  ::torch::Tensor rows, columns;  // of a matrix
  ::torch::Tensor elements;       // of a vector

  void serialize(InputArchive& archive) override {
    step = value_in(archive, "step").toInt();
    rows = tensor_if_there(archive, "row_var");
    columns = tensor_if_there(archive, "col_var");
    elements = tensor_if_there(archive, "variance");
  }
  void serialize(OutputArchive& archive) const override {
    archive.write("step", c10::IValue(step));
    write_if_defined(archive, "row_var", rows);
    write_if_defined(archive, "col_var", columns);
    write_if_defined(archive, "variance", elements);
  }
};

/// The state of a parameter, which `make` makes at its first step. The keys of the map are texts in some versions of
/// LibTorch, and addresses in others.
template <class State, class Map, class Make>
State& state_of(Map& states, const ::torch::Tensor& parameter, Make&& make) {
  typename Map::key_type key{};
  if constexpr (std::is_same_v<typename Map::key_type, std::string>) key = c10::str(parameter.unsafeGetTensorImpl());
  else key = parameter.unsafeGetTensorImpl();
  auto& state = states[key];
  if (!state) state = std::make_unique<State>(make());
  return static_cast<State&>(*state);
}

::torch::Tensor value_of(const Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const ::torch::AutoGradMode with_gradients(true);
  return closure();
}

// ---- Muon ---------------------------------------------------------------------------------------------------------

void check_matrices(const std::vector<OptimizerParamGroup>& groups) {
  for (const auto& group : groups) {
    for (const auto& parameter : group.params()) {
      if (parameter.dim() == 2) continue;
      throw Error(ErrorKind::usage, "Muon: a parameter is " + detail::type_and_shape(parameter) +
                                        ", expected two dimensions. Give it to another optimizer, such as AdamW");
    }
  }
}

/// A matrix with about the same singular vectors, and singular values near 1.
::torch::Tensor orthogonalized(const ::torch::Tensor& matrix, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  const bool is_tall = matrix.size(0) > matrix.size(1);
  ::torch::Tensor x = matrix.to(options.ns_type());
  if (is_tall) x = x.t();
  x = x / x.norm().clamp_min(options.eps());
  for (std::int64_t i = 0; i < options.ns_steps(); ++i) {
    const ::torch::Tensor gram = x.mm(x.t());
    x = ::torch::addmm(x, ::torch::addmm(gram, gram, gram, b, c), x, a);
  }
  return (is_tall ? x.t() : x).to(matrix.scalar_type());
}

double rate_for(const ::torch::Tensor& matrix, const MuonOptions& options) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  switch (options.rate()) {
    case MuonOptions::Rate::original: return options.lr() * std::sqrt(std::max(1.0, rows / columns));
    case MuonOptions::Rate::match_rms_adamw: return options.lr() * 0.2 * std::sqrt(std::max(rows, columns));
    case MuonOptions::Rate::spectral_unclamped: return options.lr() * std::sqrt(rows / columns);
  }
  return options.lr();
}

void update_matrix(::torch::Tensor& matrix, ::torch::Tensor& buffer, const MuonOptions& options) {
  const ::torch::Tensor gradient = matrix.grad();
  buffer.lerp_(gradient, 1 - options.momentum());
  const ::torch::Tensor direction = options.nesterov() ? gradient.lerp(buffer, options.momentum()) : buffer;
  const ::torch::Tensor change = orthogonalized(direction, options);
  matrix.mul_(1 - options.lr() * options.weight_decay());
  matrix.sub_(change, rate_for(matrix, options));
}

// ---- Adafactor ----------------------------------------------------------------------------------------------------

double epsilon_of(::torch::ScalarType type) {
  switch (type) {
    case ::torch::kFloat64: return std::numeric_limits<double>::epsilon();
    case ::torch::kBFloat16: return 0x1p-7;
    case ::torch::kFloat16: return 0x1p-10;
    default: return std::numeric_limits<float>::epsilon();
  }
}

AdafactorState first_state(const ::torch::Tensor& gradient) {
  AdafactorState state;
  if (gradient.dim() < 2) {
    state.elements = ::torch::zeros_like(gradient);
    return state;
  }
  auto shape = gradient.sizes().vec();
  shape[shape.size() - 1] = 1;
  state.rows = gradient.new_zeros(shape);
  shape = gradient.sizes().vec();
  shape[shape.size() - 2] = 1;
  state.columns = gradient.new_zeros(shape);
  return state;
}

/// The mean of the squares along a dimension, without squares of all elements.
::torch::Tensor mean_square(const ::torch::Tensor& gradient, std::int64_t dimension) {
  return gradient.norm(2, {dimension}, true).square().div(gradient.size(dimension));
}
::torch::Tensor root_mean_square(const ::torch::Tensor& tensor) {
  return tensor.norm() / std::sqrt(static_cast<double>(tensor.numel()));
}

/// Updates the averages, and returns an estimate of the second moment of each element.
::torch::Tensor second_moment(AdafactorState& state, const ::torch::Tensor& gradient, double fraction, double eps1) {
  if (gradient.dim() < 2) return state.elements.lerp_(gradient * gradient, fraction).clone();
  state.rows.lerp_(mean_square(gradient, -1), fraction);
  state.columns.lerp_(mean_square(gradient, -2), fraction);
  return state.rows.matmul(state.columns).div_(state.rows.mean(-2, true).clamp_min(eps1));
}

void update_factored(::torch::Tensor& parameter, AdafactorState& state, const AdafactorOptions& options) {
  const ::torch::Tensor gradient = parameter.grad();
  const double eps1 = options.eps1().value_or(epsilon_of(parameter.scalar_type()));
  const auto step = static_cast<double>(++state.step);
  const double rate = std::min(options.lr(), 1 / std::sqrt(step));
  const ::torch::Tensor scale = root_mean_square(parameter).clamp_min(options.eps2()) * rate;
  if (options.weight_decay() != 0) parameter.mul_(1 - options.lr() * options.weight_decay());
  ::torch::Tensor change = second_moment(state, gradient, std::pow(step, options.beta2_decay()), eps1);
  change.clamp_min_(eps1 * eps1).rsqrt_().mul_(gradient);
  const ::torch::Tensor divisor = (root_mean_square(change) / options.d()).clamp_min(1);
  parameter.sub_(change.mul_(scale / divisor));
}

}  // namespace

// ---- the classes --------------------------------------------------------------------------------------------------

void MuonOptions::serialize(InputArchive& archive) {
  lr(value_in(archive, "lr").toDouble());
  weight_decay(value_in(archive, "weight_decay").toDouble());
  momentum(value_in(archive, "momentum").toDouble());
  nesterov(value_in(archive, "nesterov").toBool());
  eps(value_in(archive, "eps").toDouble());
  ns_steps(value_in(archive, "ns_steps").toInt());
  const auto coefficients = value_in(archive, "ns_coefficients").toDoubleVector();
  ns_coefficients({coefficients.at(0), coefficients.at(1), coefficients.at(2)});
  rate(static_cast<Rate>(value_in(archive, "rate").toInt()));
  ns_type(static_cast<::torch::ScalarType>(value_in(archive, "ns_type").toInt()));
}
void MuonOptions::serialize(OutputArchive& archive) const {
  const auto [a, b, c] = ns_coefficients();
  archive.write("lr", c10::IValue(lr()));
  archive.write("weight_decay", c10::IValue(weight_decay()));
  archive.write("momentum", c10::IValue(momentum()));
  archive.write("nesterov", c10::IValue(nesterov()));
  archive.write("eps", c10::IValue(eps()));
  archive.write("ns_steps", c10::IValue(ns_steps()));
  archive.write("ns_coefficients", c10::IValue(std::vector<double>{a, b, c}));
  archive.write("rate", c10::IValue(static_cast<std::int64_t>(rate())));
  archive.write("ns_type", c10::IValue(static_cast<std::int64_t>(ns_type())));
}
double MuonOptions::get_lr() const { return lr(); }
void MuonOptions::set_lr(double rate) { lr(rate); }

Muon::Muon(const std::vector<OptimizerParamGroup>& groups, const MuonOptions& defaults)
    : Optimizer(groups, std::make_unique<MuonOptions>(defaults)) {
  check_matrices(param_groups_);
}
Muon::Muon(std::vector<::torch::Tensor> parameters, const MuonOptions& defaults)
    : Muon({OptimizerParamGroup(std::move(parameters))}, defaults) {}

::torch::Tensor Muon::step(LossClosure closure) {
  const ::torch::NoGradGuard without_gradients;
  auto loss = value_of(closure);
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const MuonOptions&>(group.options());
    for (auto& matrix : group.params()) {
      if (!matrix.grad().defined()) continue;
      const auto make = [&] {
        MuonState state;
        state.buffer = ::torch::zeros_like(matrix);
        return state;
      };
      update_matrix(matrix, state_of<MuonState>(state_, matrix, make).buffer, options);
    }
  }
  return loss;
}
void Muon::save(OutputArchive& archive) const { ::torch::optim::serialize<MuonState, MuonOptions>(archive, *this); }
void Muon::load(InputArchive& archive) { ::torch::optim::serialize<MuonState, MuonOptions>(archive, *this); }

void AdafactorOptions::serialize(InputArchive& archive) {
  lr(value_in(archive, "lr").toDouble());
  beta2_decay(value_in(archive, "beta2_decay").toDouble());
  eps1(value_in(archive, "has_eps1").toBool() ? std::optional(value_in(archive, "eps1").toDouble()) : std::nullopt);
  eps2(value_in(archive, "eps2").toDouble());
  d(value_in(archive, "d").toDouble());
  weight_decay(value_in(archive, "weight_decay").toDouble());
}
void AdafactorOptions::serialize(OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr()));
  archive.write("beta2_decay", c10::IValue(beta2_decay()));
  archive.write("has_eps1", c10::IValue(eps1().has_value()));
  archive.write("eps1", c10::IValue(eps1().value_or(0)));
  archive.write("eps2", c10::IValue(eps2()));
  archive.write("d", c10::IValue(d()));
  archive.write("weight_decay", c10::IValue(weight_decay()));
}
double AdafactorOptions::get_lr() const { return lr(); }
void AdafactorOptions::set_lr(double rate) { lr(rate); }

Adafactor::Adafactor(const std::vector<OptimizerParamGroup>& groups, const AdafactorOptions& defaults)
    : Optimizer(groups, std::make_unique<AdafactorOptions>(defaults)) {}
Adafactor::Adafactor(std::vector<::torch::Tensor> parameters, const AdafactorOptions& defaults)
    : Adafactor({OptimizerParamGroup(std::move(parameters))}, defaults) {}

::torch::Tensor Adafactor::step(LossClosure closure) {
  const ::torch::NoGradGuard without_gradients;
  auto loss = value_of(closure);
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const AdafactorOptions&>(group.options());
    for (auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const auto make = [&] { return first_state(parameter.grad()); };
      update_factored(parameter, state_of<AdafactorState>(state_, parameter, make), options);
    }
  }
  return loss;
}
void Adafactor::save(OutputArchive& archive) const {
  ::torch::optim::serialize<AdafactorState, AdafactorOptions>(archive, *this);
}
void Adafactor::load(InputArchive& archive) {
  ::torch::optim::serialize<AdafactorState, AdafactorOptions>(archive, *this);
}

// ---- divided among the ranks --------------------------------------------------------------------------------------

namespace detail {

DividedParameters::DividedParameters(std::vector<::torch::Tensor> all, int rank, int world_size)
    : all_(std::move(all)), owners_(all_.size()), rank_(rank), world_size_(world_size) {
  std::vector<std::size_t> by_size(all_.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [this](std::size_t a, std::size_t b) { return all_[a].numel() > all_[b].numel(); });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(world_size), 0);
  for (const std::size_t i : by_size) {
    if (!with_floating_elements(all_[i], [](auto) {}))
      throw Error(ErrorKind::usage, "DividedOptimizer: a parameter is " + type_and_shape(all_[i]) +
                                        ", expected float64, float32, float16 or bfloat16");
    const bool is_twice = std::any_of(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(i),
                                      [&](const ::torch::Tensor& other) { return other.is_same(all_[i]); });
    if (is_twice)
      throw Error(ErrorKind::usage,
                  "DividedOptimizer: a parameter, " + type_and_shape(all_[i]) +
                      ", occurs twice, expected once: two ranks would update it. Pass tied weights once");
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += all_[i].numel();
    owners_[i] = static_cast<int>(least - loads.begin());
  }
}

std::vector<::torch::Tensor> DividedParameters::own() const {
  std::vector<::torch::Tensor> own;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (owners_[i] == rank_) own.push_back(all_[i]);
  }
  return own;
}

void DividedParameters::exchange(Comm& comm) const {
  const ::torch::NoGradGuard no_gradients;
  for (const auto type : {::torch::kFloat32, ::torch::kFloat64, ::torch::kFloat16, ::torch::kBFloat16}) {
    std::vector<::torch::Tensor> parts, sent;
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(world_size_), 0);
    for (int owner = 0; owner < world_size_; ++owner) {
      for (std::size_t i = 0; i < all_.size(); ++i) {
        if (owners_[i] != owner || all_[i].scalar_type() != type) continue;
        parts.push_back(all_[i]);
        lengths[static_cast<std::size_t>(owner)] += all_[i].numel();
        if (owner == rank_) sent.push_back(all_[i].reshape(-1));
      }
    }
    if (parts.empty()) continue;
    const auto options = parts.front().options();
    const ::torch::Tensor own = sent.empty() ? ::torch::empty({0}, options) : ::torch::cat(sent);
    const ::torch::Tensor whole =
        ::torch::empty({std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})}, options);
    with_floating_elements(whole,
                           [&]<class T>(std::span<T> all) { comm.all_gather(elements_of<T>(own), all, lengths); });
    std::int64_t offset = 0;
    for (::torch::Tensor& each : parts) {
      each.copy_(whole.narrow(0, offset, each.numel()).view(each.sizes()));
      offset += each.numel();
    }
  }
}

}  // namespace detail

}  // namespace syncrun::libtorch
