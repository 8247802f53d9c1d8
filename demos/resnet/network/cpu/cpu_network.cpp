#include "demos/resnet/network/cpu/cpu_network.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "demos/resnet/network/cpu/cpu_convolution.hpp"
#include "demos/resnet/network/cpu/cpu_head.hpp"
#include "demos/resnet/network/cpu/cpu_memory.hpp"
#include "demos/resnet/network/cpu/cpu_normalization.hpp"
#include "demos/resnet/network/cpu/cpu_parallel.hpp"
#include "demos/resnet/network/cpu/cpu_pooling.hpp"

namespace resnet {
namespace {

constexpr std::size_t kEvaluationRows = 32;
constexpr std::size_t kMostRowCounts = 8;  // numbers of rows for which prepared convolutions are kept

/// to += from, divided among the cores.
void add(std::size_t elements, const float* from, float* to) {
  constexpr std::size_t kPartElements = 65536;
  const std::size_t parts = elements / kPartElements + 1;
  for_each_part(parts, [&](std::size_t part) {
    const Piece piece(elements, part, parts);
    for (std::size_t i = piece.begin; i < piece.end; ++i) to[i] += from[i];
  });
}

void require(const char* what, std::size_t expected, std::size_t got) {
  if (got == expected) return;
  throw std::invalid_argument("residual network: expected " + std::string(what) + " of " + std::to_string(expected) +
                              " elements, got " + std::to_string(got));
}

void require_labels(std::span<const std::int64_t> labels, std::size_t rows, std::size_t classes) {
  require("labels", rows, labels.size());
  for (const std::int64_t label : labels) {
    if (label >= 0 && static_cast<std::size_t>(label) < classes) continue;
    throw std::invalid_argument("residual network: expected labels from 0 to " + std::to_string(classes - 1) +
                                ", got " + std::to_string(label));
  }
}

void require_smoothing(double smoothing) {
  if (smoothing >= 0 && smoothing <= 1) return;
  throw std::invalid_argument("residual network: expected a label smoothing from 0 to 1, got " +
                              std::to_string(smoothing));
}

std::size_t rows_of_all(const SumOverRanks& sum, std::size_t own) {
  if (!sum) return own;
  float rows = static_cast<float>(own);  // exact up to 16 million
  sum({&rows, 1});
  return static_cast<std::size_t>(std::llround(rows));
}

}  // namespace

/// The description of the network, and the state that is kept from call to call.
struct CpuNetwork::Work {
  explicit Work(const Architecture& described)
      : architecture(described),
        memory(described),
        moments(described.statistics_count),
        inputs(described.units.size()) {}

  std::size_t image_elements() const { return architecture.stem().elements_in(); }
  std::size_t rows_of(std::span<const float> images) const;
  std::vector<CpuConvolution>& convolutions_for(std::size_t rows);

  Architecture architecture;
  ConvolutionEngine engine;
  CpuMemory memory;
  NormScratch scratch;
  std::vector<float> moments;        // laid out as the statistics, with inverse deviations instead of variances
  std::vector<const float*> inputs;  // of each unit, as of the last forward pass
  CpuBuffer<float> logits;
  std::map<std::size_t, std::vector<CpuConvolution>> convolutions;  // by number of rows

  class Pass;
};

std::size_t CpuNetwork::Work::rows_of(std::span<const float> images) const {
  const std::size_t rows = images.size() / image_elements();
  if (rows * image_elements() == images.size()) return rows;
  throw std::invalid_argument("residual network: expected images of a multiple of " + std::to_string(image_elements()) +
                              " elements, got " + std::to_string(images.size()));
}

std::vector<CpuConvolution>& CpuNetwork::Work::convolutions_for(std::size_t rows) {
  if (const auto found = convolutions.find(rows); found != convolutions.end()) return found->second;
  if (convolutions.size() == kMostRowCounts) convolutions.clear();
  std::vector<CpuConvolution>& prepared = convolutions[rows];
  if (rows == 0) return prepared;
  for (const ConvUnit& unit : architecture.units) prepared.emplace_back(engine, unit, rows);
  return prepared;
}

/// One pass through the network. Training goes forward and backward, inference only forward.
class CpuNetwork::Work::Pass {
 public:
  static Pass training(Work& work, const float* params, float* running, const StepRows& rows) {
    return {work, Purpose::kTraining, params, running, running, rows};
  }
  static Pass inference(Work& work, const float* params, const float* statistics, const StepRows& rows) {
    return {work, Purpose::kInference, params, statistics, nullptr, rows};
  }

  void forward(const float* images, float* logits);
  /// The backward pass, which starts from memory.dlogits. If this rank has rows, it overwrites every array of
  /// `gradient`.
  void backward(float* gradient);

 private:
  Pass(Work& work, Purpose purpose, const float* params, const float* statistics, float* running, const StepRows& rows)
      : work_(work),
        plan_(work.architecture),
        memory_(work.memory),
        convolutions_(work.convolutions_for(rows.own)),
        params_(params),
        statistics_(statistics),
        running_(running),
        rows_(rows) {
    memory_.reserve(purpose, rows.own);
  }

  NormShape shape_of(const ConvUnit& unit) const {
    return {rows_.own, unit.size_out() * unit.size_out(), unit.channels_out};
  }
  NormMoments moments_of(const ConvUnit& unit) const {
    float* const mean = work_.moments.data() + unit.statistics_offset;
    return {mean, mean + unit.channels_out};
  }
  MaxPoolShape pool_shape() const { return {rows_.own, plan_.stem().size_out(), plan_.stem().channels_out}; }
  MeanShape mean_shape() const { return {rows_.own, plan_.final_size() * plan_.final_size(), plan_.features}; }
  HeadShape head_shape() const { return {rows_.own, plan_.features, plan_.spec.classes}; }

  const float* forward_unit(std::size_t index, const float* x, const float* addend, AfterNorm after);
  const float* forward_block(const Block& block, const float* x);
  /// Goes from the gradient of the unit's output, `dy`, to the gradient of the convolution's output, `dconvolved`, and
  /// to the gradient of the unit's input, `dx`, which may be null. `y` is the output if there was a ReLU, else null.
  void backward_unit(std::size_t index, const float* y, float* dy, float* dconvolved, float* dx);
  /// Goes from the gradient of the block's output to the gradient of its input. Both are in memory.deltas[0].
  void backward_block(const Block& block);

  Work& work_;
  const Architecture& plan_;
  CpuMemory& memory_;
  std::vector<CpuConvolution>& convolutions_;
  const float* params_;
  const float* statistics_;
  float* running_;  // null in inference, which normalises by statistics_
  StepRows rows_;
  float* gradient_ = nullptr;
};

void CpuNetwork::Work::Pass::forward(const float* images, float* logits) {
  const float* x = forward_unit(0, images, nullptr, AfterNorm::kRelu);
  max_pool(pool_shape(), x, memory_.pooled, running_ == nullptr ? nullptr : memory_.taps);
  x = memory_.pooled;
  for (const Block& block : plan_.blocks) x = forward_block(block, x);
  mean_over_pixels(mean_shape(), x, memory_.features);
  dense(head_shape(), memory_.features, params_ + plan_.fc_weights_offset, params_ + plan_.fc_bias_offset, logits);
}

const float* CpuNetwork::Work::Pass::forward_block(const Block& block, const float* x) {
  const float* shortcut = block.shortcut ? forward_unit(*block.shortcut, x, nullptr, AfterNorm::kNothing) : x;
  const std::size_t last = block.first_unit + block.unit_count - 1;
  for (std::size_t i = block.first_unit; i < last; ++i) x = forward_unit(i, x, nullptr, AfterNorm::kRelu);
  return forward_unit(last, x, shortcut, AfterNorm::kRelu);
}

const float* CpuNetwork::Work::Pass::forward_unit(std::size_t index, const float* x, const float* addend,
                                                  AfterNorm after) {
  const ConvUnit& unit = plan_.units[index];
  const auto [convolved, output] = memory_.units[index];
  const NormMoments moments = moments_of(unit);
  work_.inputs[index] = x;
  if (rows_.own > 0) convolutions_[index].forward(x, params_ + unit.weights_offset, convolved);
  if (running_ != nullptr) {
    measure(shape_of(unit), rows_, convolved, work_.scratch, moments, running_ + unit.statistics_offset);
  } else {
    moments_of_running(unit.channels_out, statistics_ + unit.statistics_offset, moments);
  }
  normalize(shape_of(unit), moments, {params_ + unit.scale_offset, params_ + unit.shift_offset}, after, convolved,
            addend, work_.scratch, output);
  return output;
}

void CpuNetwork::Work::Pass::backward(float* gradient) {
  gradient_ = gradient;
  dense_backward(head_shape(), memory_.features, params_ + plan_.fc_weights_offset, memory_.dlogits,
                 gradient + plan_.fc_weights_offset, gradient + plan_.fc_bias_offset, memory_.dfeatures);
  mean_over_pixels_backward(mean_shape(), memory_.dfeatures, memory_.deltas[0]);
  for (std::size_t i = plan_.blocks.size(); i-- > 0;) backward_block(plan_.blocks[i]);
  float* const dstem = memory_.deltas[1];
  max_pool_backward(pool_shape(), memory_.taps, memory_.deltas[0], dstem);
  backward_unit(0, memory_.units[0].output, dstem, dstem, nullptr);
}

void CpuNetwork::Work::Pass::backward_block(const Block& block) {
  auto& [dy, dx, spare] = memory_.deltas;
  const std::size_t last = block.first_unit + block.unit_count - 1;
  // This turns dy into the gradient before the ReLU, which is also the gradient of the shortcut's output.
  backward_unit(last, memory_.units[last].output, dy, spare, dx);
  for (std::size_t i = last; i-- > block.first_unit;) {
    std::swap(dx, spare);
    backward_unit(i, memory_.units[i].output, spare, spare, dx);
  }
  const float* dshortcut = dy;
  if (block.shortcut) {
    backward_unit(*block.shortcut, nullptr, dy, dy, spare);
    dshortcut = spare;
  }
  add(rows_.own * plan_.units[block.first_unit].elements_in(), dshortcut, dx);
  std::swap(dy, dx);
}

void CpuNetwork::Work::Pass::backward_unit(std::size_t index, const float* y, float* dy, float* dconvolved, float* dx) {
  const ConvUnit& unit = plan_.units[index];
  normalize_backward(shape_of(unit), rows_,
                     {.x = memory_.units[index].convolved,
                      .y = y,
                      .scale = params_ + unit.scale_offset,
                      .moments = moments_of(unit),
                      .dy = dy,
                      .dx = dconvolved,
                      .dscale = gradient_ + unit.scale_offset,
                      .dshift = gradient_ + unit.shift_offset},
                     work_.scratch);
  if (rows_.own == 0) return;
  convolutions_[index].backward_weights(work_.inputs[index], dconvolved, gradient_ + unit.weights_offset);
  if (dx != nullptr) convolutions_[index].backward_data(dconvolved, params_ + unit.weights_offset, dx);
}

CpuNetwork::CpuNetwork(const Architecture& architecture) : work_(std::make_unique<Work>(architecture)) {}
CpuNetwork::CpuNetwork(CpuNetwork&&) noexcept = default;
CpuNetwork::~CpuNetwork() = default;

std::span<const float> CpuNetwork::logits(std::span<const float> params, std::span<const float> statistics,
                                          std::span<const float> images) {
  const Architecture& plan = work_->architecture;
  const std::size_t rows = work_->rows_of(images);
  require("params", plan.parameter_count, params.size());
  require("statistics", plan.statistics_count, statistics.size());
  work_->logits.reserve(rows * plan.spec.classes);
  const SumOverRanks none;
  for (std::size_t first = 0; first < rows; first += kEvaluationRows) {
    const std::size_t count = std::min(kEvaluationRows, rows - first);
    Work::Pass::inference(*work_, params.data(), statistics.data(), {none, count, count})
        .forward(images.data() + first * work_->image_elements(), work_->logits.data() + first * plan.spec.classes);
  }
  return {work_->logits.data(), rows * plan.spec.classes};
}

Outcome CpuNetwork::evaluate(std::span<const float> params, std::span<const float> statistics,
                             std::span<const float> images, std::span<const std::int64_t> labels) {
  const std::size_t classes = work_->architecture.spec.classes;
  require_labels(labels, work_->rows_of(images), classes);
  return smoothed_cross_entropy(labels, classes, 0, logits(params, statistics, images).data(), nullptr);
}

Outcome CpuNetwork::loss_and_gradient(std::span<const float> params, std::span<float> statistics,
                                      std::span<const float> images, std::span<const std::int64_t> labels,
                                      const LossOptions& options, const SumOverRanks& sum, std::span<float> gradient) {
  const Architecture& plan = work_->architecture;
  const std::size_t rows = work_->rows_of(images);
  require("params", plan.parameter_count, params.size());
  require("statistics", plan.statistics_count, statistics.size());
  require("gradient", plan.parameter_count, gradient.size());
  require_labels(labels, rows, plan.spec.classes);
  require_smoothing(options.label_smoothing);

  std::fill(gradient.begin(), gradient.end(), 0.0F);
  const StepRows step_rows{sum, rows, rows_of_all(sum, rows)};
  if (step_rows.all == 0) return {};
  Work::Pass pass = Work::Pass::training(*work_, params.data(), statistics.data(), step_rows);
  work_->logits.reserve(rows * plan.spec.classes);
  pass.forward(images.data(), work_->logits.data());
  const Outcome outcome = smoothed_cross_entropy(labels, plan.spec.classes, options.label_smoothing,
                                                 work_->logits.data(), work_->memory.dlogits);
  pass.backward(gradient.data());
  return outcome;
}

}  // namespace resnet
