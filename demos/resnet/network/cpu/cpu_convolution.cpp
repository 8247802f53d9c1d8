#include "demos/resnet/network/cpu/cpu_convolution.hpp"

#include <oneapi/dnnl/dnnl_version.h>
#include <algorithm>
#include <initializer_list>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "demos/resnet/network/cpu/cpu_buffer.hpp"
#include "demos/resnet/network/cpu/cpu_parallel.hpp"

namespace resnet {

struct ConvolutionEngine::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  CpuBuffer<std::byte> scratch;
  CpuBuffer<std::byte> weights;  // in the order that a primitive requires
  CpuBuffer<float> unfolded;     // unfolded images of few pixels
};

namespace {

using Memory = dnnl::memory;
using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;

/// Describes a convolution for oneDNN. In images, channels come last. oneDNN chooses the order of the filters.
struct Description {
  Description(const ConvUnit& unit, std::size_t rows);
  Memory::desc x;
  Memory::desc y;
  Memory::desc plain_weights;
  Memory::desc weights;
  Memory::dims strides;
  Memory::dims padding;
  dnnl::primitive_attr attributes;  // says that the caller passes scratch memory
};

Description::Description(const ConvUnit& unit, std::size_t rows) {
  using Tag = Memory::format_tag;
  constexpr auto kFloat = Memory::data_type::f32;
  const auto dim = [](std::size_t size) { return static_cast<Memory::dim>(size); };
  const Memory::dims filters{dim(unit.channels_out), dim(unit.channels_in), dim(unit.kernel), dim(unit.kernel)};
  x = {{dim(rows), dim(unit.channels_in), dim(unit.size_in), dim(unit.size_in)}, kFloat, Tag::nhwc};
  y = {{dim(rows), dim(unit.channels_out), dim(unit.size_out()), dim(unit.size_out())}, kFloat, Tag::nhwc};
  plain_weights = {filters, kFloat, Tag::ohwi};
  weights = {filters, kFloat, Tag::any};
  strides.assign(2, dim(unit.stride));
  padding.assign(2, dim(unit.padding()));
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
}

// Before version 3, oneDNN has a separate descriptor of an operation. Since then, the descriptor of the primitive takes
// its arguments directly.
#if DNNL_VERSION_MAJOR >= 3

Forward::primitive_desc plan_forward(const dnnl::engine& engine, const Description& d) {
  return {engine,
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          d.x,
          d.weights,
          d.y,
          d.strides,
          d.padding,
          d.padding,
          d.attributes};
}

template <typename Backward>
typename Backward::primitive_desc plan_backward(const dnnl::engine& engine, const Description& d,
                                                const Forward::primitive_desc& forward) {
  return {
      engine,      dnnl::algorithm::convolution_direct, d.x, d.weights, d.y, d.strides, d.padding, d.padding, forward,
      d.attributes};
}

#else

Forward::primitive_desc plan_forward(const dnnl::engine& engine, const Description& d) {
  return {{dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, d.x, d.weights, d.y, d.strides,
           d.padding, d.padding},
          d.attributes,
          engine};
}

template <typename Backward>
typename Backward::primitive_desc plan_backward(const dnnl::engine& engine, const Description& d,
                                                const Forward::primitive_desc& forward) {
  const typename Backward::desc operation{
      dnnl::algorithm::convolution_direct, d.x, d.weights, d.y, d.strides, d.padding, d.padding};
  return {operation, d.attributes, engine, forward};
}

#endif

struct Argument {
  int name;  // DNNL_ARG_SRC, ...
  Memory::desc description;
};

struct Value {
  int name;
  const float* data;
};

enum class Weights { kRead, kWritten };

/// A primitive with its arguments. If the primitive requires the filters in another order than ours, they are copied
/// through memory of the engine.
class Step {
 public:
  Step(ConvolutionEngine::State& state, const dnnl::primitive& primitive, const Memory::desc& scratch,
       const Memory::desc& plain_weights, Weights use, const Argument& weights, std::initializer_list<Argument> others);

  /// Runs the primitive with these values and with the filters, which are in our order. It reads or writes them as the
  /// primitive does.
  void run(ConvolutionEngine::State& state, std::initializer_list<Value> values, const float* weights);

 private:
  void set(int name, const void* data) {
    arguments_.at(name).set_data_handle(const_cast<void*>(data));  // oneDNN only reads inputs
  }

  dnnl::primitive primitive_;
  std::unordered_map<int, Memory> arguments_;
  Weights use_;
  int weights_name_;
  Memory plain_weights_;
  std::optional<dnnl::reorder> reorder_;
};

Step::Step(ConvolutionEngine::State& state, const dnnl::primitive& primitive, const Memory::desc& scratch,
           const Memory::desc& plain_weights, Weights use, const Argument& weights,
           std::initializer_list<Argument> others)
    : primitive_(primitive),
      use_(use),
      weights_name_(weights.name),
      plain_weights_(plain_weights, state.engine, DNNL_MEMORY_NONE) {
  for (const auto& [name, description] : others) {
    arguments_.emplace(name, Memory(description, state.engine, DNNL_MEMORY_NONE));
  }
  const Memory own(weights.description, state.engine, DNNL_MEMORY_NONE);
  arguments_.emplace(weights.name, own);
  arguments_.emplace(DNNL_ARG_SCRATCHPAD, Memory(scratch, state.engine, DNNL_MEMORY_NONE));
  state.scratch.reserve(scratch.get_size());
  if (weights.description == plain_weights) return;
  state.weights.reserve(weights.description.get_size());
  reorder_.emplace(use == Weights::kRead ? dnnl::reorder(plain_weights_, own) : dnnl::reorder(own, plain_weights_));
}

void Step::run(ConvolutionEngine::State& state, std::initializer_list<Value> values, const float* weights) {
  for (const auto& [name, data] : values) set(name, data);
  set(DNNL_ARG_SCRATCHPAD, state.scratch.data());
  set(weights_name_, reorder_ ? static_cast<const void*>(state.weights.data()) : weights);
  plain_weights_.set_data_handle(const_cast<float*>(weights));
  Memory& own = arguments_.at(weights_name_);
  if (reorder_ && use_ == Weights::kRead) reorder_->execute(state.stream, plain_weights_, own);
  primitive_.execute(state.stream, arguments_);
  if (reorder_ && use_ == Weights::kWritten) reorder_->execute(state.stream, own, plain_weights_);
  state.stream.wait();
}

/// Returns whether the images have few pixels. For such images, oneDNN computes the gradient of the filters image by
/// image, and writes all filters each time (version 2.6 without AVX-512 does). One product over all rows is up to ten
/// times as fast.
bool has_few_pixels(const ConvUnit& unit) { return unit.kernel > 1 && unit.size_out() <= 2; }

/// Copies the inputs of output (row, column) of an image: [kernel, kernel, channels_in], with 0 outside the image.
void unfold_place(const ConvUnit& unit, const float* x, std::size_t row, std::size_t column, float* unfolded) {
  for (std::size_t tap = 0; tap < unit.kernel * unit.kernel; ++tap, unfolded += unit.channels_in) {
    const std::size_t at_y =
        row * unit.stride + tap / unit.kernel - unit.padding();  // above the image, wraps far beyond the size
    const std::size_t at_x = column * unit.stride + tap % unit.kernel - unit.padding();
    if (at_y < unit.size_in && at_x < unit.size_in) {
      std::copy_n(x + (at_y * unit.size_in + at_x) * unit.channels_in, unit.channels_in, unfolded);
    } else {
      std::fill_n(unfolded, unit.channels_in, 0.0F);
    }
  }
}

/// dweights = dy^T unfolded(x).
void multiply_filters(ConvolutionEngine::State& state, const ConvUnit& unit, std::size_t rows, const float* x,
                      const float* dy, float* dweights) {
  const std::size_t size = unit.size_out();
  const std::size_t width = unit.kernel * unit.kernel * unit.channels_in;
  state.unfolded.reserve(rows * size * size * width);
  float* const unfolded = state.unfolded.data();
  for_each_part(rows, [&](std::size_t row) {
    for (std::size_t place = 0; place < size * size; ++place) {
      unfold_place(unit, x + row * unit.elements_in(), place / size, place % size,
                   unfolded + (row * size * size + place) * width);
    }
  });
  const auto dim = [](std::size_t count) { return static_cast<dnnl_dim_t>(count); };
  const dnnl::status status = dnnl::sgemm('T', 'N', dim(unit.channels_out), dim(width), dim(rows * size * size), 1, dy,
                                          dim(unit.channels_out), unfolded, dim(width), 0, dweights, dim(width));
  if (status != dnnl::status::success) throw std::runtime_error("oneDNN refuses a matrix product");
}

}  // namespace

struct CpuConvolution::Steps {
  Steps(ConvolutionEngine::State& engine_state, const ConvUnit& described, std::size_t row_count)
      : state(engine_state),
        unit(described),
        rows(row_count),
        description(unit, rows),
        plan(plan_forward(state.engine, description)) {}

  Step& forward() {
    if (!forward_step) {
      forward_step.emplace(
          state, Forward(plan), plan.scratchpad_desc(), description.plain_weights, Weights::kRead,
          Argument{DNNL_ARG_WEIGHTS, plan.weights_desc()},
          std::initializer_list<Argument>{{DNNL_ARG_SRC, description.x}, {DNNL_ARG_DST, description.y}});
    }
    return *forward_step;
  }

  Step& backward_data() {
    if (!data_step) {
      const auto backward = plan_backward<BackwardData>(state.engine, description, plan);
      data_step.emplace(
          state, BackwardData(backward), backward.scratchpad_desc(), description.plain_weights, Weights::kRead,
          Argument{DNNL_ARG_WEIGHTS, backward.weights_desc()},
          std::initializer_list<Argument>{{DNNL_ARG_DIFF_SRC, description.x}, {DNNL_ARG_DIFF_DST, description.y}});
    }
    return *data_step;
  }

  Step& backward_weights() {
    if (!weights_step) {
      const auto backward = plan_backward<BackwardWeights>(state.engine, description, plan);
      weights_step.emplace(
          state, BackwardWeights(backward), backward.scratchpad_desc(), description.plain_weights, Weights::kWritten,
          Argument{DNNL_ARG_DIFF_WEIGHTS, backward.diff_weights_desc()},
          std::initializer_list<Argument>{{DNNL_ARG_SRC, description.x}, {DNNL_ARG_DIFF_DST, description.y}});
    }
    return *weights_step;
  }

  ConvolutionEngine::State& state;
  ConvUnit unit;
  std::size_t rows;
  Description description;
  Forward::primitive_desc plan;
  std::optional<Step> forward_step;
  std::optional<Step> data_step;
  std::optional<Step> weights_step;
};

ConvolutionEngine::ConvolutionEngine() : state_(std::make_unique<State>()) {}
ConvolutionEngine::ConvolutionEngine(ConvolutionEngine&&) noexcept = default;
ConvolutionEngine::~ConvolutionEngine() = default;

CpuConvolution::CpuConvolution(ConvolutionEngine& engine, const ConvUnit& unit, std::size_t rows)
    : steps_(std::make_unique<Steps>(engine.state(), unit, rows)) {}
CpuConvolution::CpuConvolution(CpuConvolution&&) noexcept = default;
CpuConvolution::~CpuConvolution() = default;

void CpuConvolution::forward(const float* x, const float* weights, float* y) {
  steps_->forward().run(steps_->state, {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}}, weights);
}

void CpuConvolution::backward_data(const float* dy, const float* weights, float* dx) {
  steps_->backward_data().run(steps_->state, {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx}}, weights);
}

void CpuConvolution::backward_weights(const float* x, const float* dy, float* dweights) {
  Steps& steps = *steps_;
  if (has_few_pixels(steps.unit)) return multiply_filters(steps.state, steps.unit, steps.rows, x, dy, dweights);
  steps.backward_weights().run(steps.state, {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}}, dweights);
}

}  // namespace resnet
