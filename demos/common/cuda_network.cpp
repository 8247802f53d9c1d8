#include "demos/common/cuda_network.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "demos/common/cuda_check.hpp"

namespace demos {
namespace {

constexpr std::size_t kEvaluationRows = 4096;
constexpr std::size_t kAlignment = 256;

/// Divides a block of memory into parts. Without a block, it computes how large the block must be.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <typename E>
  E* take(std::size_t count) {
    E* const place = memory_ == nullptr ? nullptr : reinterpret_cast<E*>(memory_ + bytes_);
    bytes_ += (count * sizeof(E) + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

/// Throws for a layer that is neither a rectified hidden layer nor the output layer of one of the models. No kernel
/// fits such a layer.
[[noreturn]] void fail_plan() { throw std::invalid_argument("a network of these layers has no form for CUDA devices"); }

}  // namespace

// ---- layout ---------------------------------------------------------------------------------------------------

template <typename T>
CudaNetwork<T>::CudaNetwork(const ModelSpec& spec, std::size_t image_height, std::size_t image_width,
                            std::size_t classes, MatrixMath math)
    : plan_(plan_layers(spec, image_height, image_width, classes)),
      image_elements_(image_height * image_width),
      classes_(classes),
      math_(math) {
  for (const Layer& layer : plan_.layers) add_stage(layer);
  const auto* last = std::get_if<Dense>(&stages_.back().what);
  if (last == nullptr || last->layer.activation != Activation::kNone) fail_plan();
  if (std::holds_alternative<DropoutLayer>(stages_.front().what)) first_trained_ = 1;

  const auto* hidden = stages_.size() < 2 ? nullptr : std::get_if<Dense>(&stages_[stages_.size() - 2].what);
  can_fuse_head_ = hidden != nullptr && cuda::can_fuse_head<T>(hidden->layer.shape.outputs, classes);

  std::size_t largest = 0;
  for (const Stage& stage : stages_) largest = std::max(largest, stage.elements);
  const auto carve = [&](Carver carver) {
    mean_loss_ = carver.template take<double>(1);
    correct_ = carver.template take<std::int64_t>(1);
    partials_.counters = carver.template take<unsigned>(cuda::kCounters);
    partials_.losses = carver.template take<double>(cuda::kMostRowBlocks);
    partials_.correct = carver.template take<std::int64_t>(cuda::kMostRowBlocks);
    partials_.values = carver.template take<T>(cuda::kMostRowBlocks * (largest + classes_));
    return carver.bytes();
  };
  fixed_ = DeviceBuffer(carve(Carver(nullptr)));
  carve(Carver(fixed_.data()));
  fixed_.clear();
}

template <typename T>
void CudaNetwork<T>::add_stage(const Layer& layer) {
  const std::size_t elements = output_elements(layer);
  if (const auto* dense = std::get_if<DenseLayer>(&layer)) {
    if (!stages_.empty()) {
      if (auto* pool = std::get_if<Pool>(&stages_.back().what)) pool->channels_out = cuda::Channels::kLast;
      if (std::holds_alternative<Convolution>(stages_.back().what)) fail_plan();
    }
    stages_.push_back({Dense{*dense, std::nullopt}, elements});
  } else if (const auto* conv = std::get_if<ConvLayer>(&layer)) {
    const std::size_t filter_bytes = conv->shape.patch_elements() * conv->shape.channels_out * sizeof(T);
    stages_.push_back({Convolution{*conv, std::make_unique<CudaConvolution<T>>(conv->shape, math_),
                                   DeviceBuffer(filter_bytes), DeviceBuffer(filter_bytes)},
                       elements});
    needs_cudnn_ = true;
  } else if (const auto* pool = std::get_if<PoolLayer>(&layer)) {
    stages_.push_back({Pool{*pool, cuda::Channels::kFirst}, elements});
  } else {
    const auto& dropout = std::get<DropoutLayer>(layer);
    if (stages_.empty()) {
      stages_.push_back({dropout, elements});
    } else {
      auto* dense_before = std::get_if<Dense>(&stages_.back().what);
      if (dense_before == nullptr || dense_before->layer.activation != Activation::kRelu) fail_plan();
      dense_before->dropout = dropout;
    }
  }
}

template <typename T>
void CudaNetwork<T>::reserve(const CudaHandles& handles, std::size_t rows, Phase phase) {
  if (needs_cudnn_) {
    std::size_t bytes = 0;
    for (Stage& stage : stages_) {
      auto* convolution = std::get_if<Convolution>(&stage.what);
      if (convolution == nullptr) continue;
      bytes = std::max(bytes, convolution->convolution->workspace_bytes(handles.cudnn, rows));
    }
    cudnn_memory_ = cudnn_workspace_.reserve(bytes);
  }
  const bool trains = workspace_trains_ || phase == Phase::kTraining;
  if (rows <= workspace_rows_ && trains == workspace_trains_) return;
  workspace_rows_ = std::max(rows, workspace_rows_);
  workspace_trains_ = trains;
  const auto carve = [&](Carver carver) {
    for (Stage& stage : stages_) stage.output = carver.template take<T>(workspace_rows_ * stage.elements);
    for (Stage& stage : stages_) stage.delta = carver.template take<T>(trains ? workspace_rows_ * stage.elements : 0);
    return carver.bytes();
  };
  const std::size_t bytes = carve(Carver(nullptr));
  carve(Carver(workspace_.reserve(bytes)));
}

// ---- public members -------------------------------------------------------------------------------------------

template <typename T>
CudaOutcome CudaNetwork<T>::loss_and_gradient(const CudaHandles& handles, const CudaRows<T>& rows, const T* params,
                                              const StepKey* key, T* gradient) {
  if (rows.count == 0) {
    check_cuda(cudaMemsetAsync(gradient, 0, plan_.parameter_count * sizeof(T), handles.stream), "cudaMemsetAsync");
    return no_rows(handles);
  }
  reserve(handles, rows.count, Phase::kTraining);
  const Pass pass{handles, rows.count, rows.images, rows.row_ids, key, params, gradient};
  const cuda::LossPlace place{mean_loss_, correct_, rows.count};
  forward(pass);
  if (fuses_head(pass)) train_head(pass, rows.labels, place);
  else loss(pass, rows.labels, place);
  backward(pass);
  return {mean_loss_, correct_};
}

template <typename T>
CudaOutcome CudaNetwork<T>::evaluate(const CudaHandles& handles, const CudaRows<T>& rows, const T* params) {
  if (rows.count == 0) return no_rows(handles);
  reserve(handles, std::min(rows.count, kEvaluationRows), Phase::kInference);
  for (std::size_t first = 0; first < rows.count; first += kEvaluationRows) {
    const std::size_t count = std::min(kEvaluationRows, rows.count - first);
    const Pass pass{handles, count, rows.images + first * image_elements_, nullptr, nullptr, params, nullptr};
    if (needs_cudnn_) reserve(handles, count, Phase::kInference);  // cuDNN's workspace depends on the number of rows
    forward(pass);
    const auto accumulate = first == 0 ? cuda::Accumulate::kNo : cuda::Accumulate::kYes;
    loss(pass, rows.labels + first, {mean_loss_, correct_, rows.count, accumulate});
  }
  return {mean_loss_, correct_};
}

template <typename T>
CudaOutcome CudaNetwork<T>::no_rows(const CudaHandles& handles) {
  check_cuda(cudaMemsetAsync(mean_loss_, 0, sizeof(*mean_loss_), handles.stream), "cudaMemsetAsync");
  check_cuda(cudaMemsetAsync(correct_, 0, sizeof(*correct_), handles.stream), "cudaMemsetAsync");
  return {mean_loss_, correct_};
}

// ---- forward --------------------------------------------------------------------------------------------------

template <typename T>
cuda::DropoutMask CudaNetwork<T>::mask(const Pass& pass, const DropoutLayer& layer) const {
  return {pass.row_ids, pass.key, layer.rate, layer.index};
}

/// The input of a stage. Without a key, the dropout of the input does nothing and has no output, so the stage after it
/// reads the images.
template <typename T>
const T* CudaNetwork<T>::input(const Pass& pass, std::size_t stage) const {
  const bool is_image = stage == 0 || (stage == first_trained_ && pass.key == nullptr);
  return is_image ? pass.images : stages_[stage - 1].output;
}

template <typename T>
void CudaNetwork<T>::forward(const Pass& pass) {
  const std::size_t head = stages_.size() - (fuses_head(pass) ? 2 : 1);  // from here on, the loss adds the bias
  for (std::size_t i = 0; i < stages_.size() && i < head + 1; ++i) {
    Stage& stage = stages_[i];
    const T* x = input(pass, i);
    if (auto* dense = std::get_if<Dense>(&stage.what)) {
      forward(pass, *dense, x, stage.output, i < head ? Bias::added : Bias::left_out);
    } else if (auto* convolution = std::get_if<Convolution>(&stage.what)) {
      forward(pass, *convolution, x, stage.output);
    } else if (const auto* pool = std::get_if<Pool>(&stage.what)) {
      cuda::max_pool_forward(pass.rows, pool->layer.shape, pool->channels_out, x, stage.output, pass.handles.stream);
    } else if (pass.key != nullptr) {
      const auto& dropout = std::get<DropoutLayer>(stage.what);
      cuda::dropout(pass.rows, dropout.units, mask(pass, dropout), x, stage.output, pass.handles.stream);
    }
  }
}

template <typename T>
void CudaNetwork<T>::forward(const Pass& pass, Dense& dense, const T* x, T* y, Bias bias) {
  const auto [inputs, outputs] = dense.layer.shape;
  cuda_gemm(pass.handles.cublas, math_, Transpose::kNo, Transpose::kNo, {pass.rows, outputs, inputs}, x,
            pass.params + dense.layer.weights_offset, y);
  if (bias == Bias::left_out) return;
  const bool drops = dense.dropout.has_value() && pass.key != nullptr;
  cuda::bias_relu(pass.rows, outputs, drops ? mask(pass, *dense.dropout) : cuda::DropoutMask{},
                  pass.params + dense.layer.bias_offset, y, pass.handles.stream);
}

template <typename T>
void CudaNetwork<T>::forward(const Pass& pass, Convolution& convolution, const T* x, T* y) {
  const ConvLayer& layer = convolution.layer;
  T* const filter = static_cast<T*>(convolution.filter.data());
  cuda::filter_to_channels_first(layer.shape, pass.params + layer.weights_offset, filter, pass.handles.stream);
  CudaConvolution<T>& compute = *convolution.convolution;
  compute.forward(pass.handles.cudnn, pass.rows, x, filter, y, cudnn_memory_,
                  compute.workspace_bytes(pass.handles.cudnn, pass.rows));
  cuda::image_bias_relu(pass.rows, layer.shape, pass.params + layer.bias_offset, y, pass.handles.stream);
}

template <typename T>
void CudaNetwork<T>::loss(const Pass& pass, const std::uint8_t* labels, const cuda::LossPlace& place) {
  const Stage& last = stages_.back();
  const std::size_t bias = std::get<Dense>(last.what).layer.bias_offset;
  const bool trains = pass.gradient != nullptr;
  cuda::softmax_cross_entropy<T>(pass.rows, classes_, labels, last.output, pass.params + bias,
                                 trains ? last.delta : nullptr, trains ? pass.gradient + bias : nullptr, place,
                                 partials_, pass.handles.stream);
}

template <typename T>
void CudaNetwork<T>::train_head(const Pass& pass, const std::uint8_t* labels, const cuda::LossPlace& place) {
  const Stage& last = stages_.back();
  const Stage& before = stages_[stages_.size() - 2];
  const DenseLayer& output = std::get<Dense>(last.what).layer;
  const Dense& hidden = std::get<Dense>(before.what);
  const bool drops = hidden.dropout.has_value() && pass.key != nullptr;
  cuda::train_head<T>({.rows = pass.rows,
                       .units = hidden.layer.shape.outputs,
                       .labels = labels,
                       .mask = drops ? mask(pass, *hidden.dropout) : cuda::DropoutMask{},
                       .hidden_bias = pass.params + hidden.layer.bias_offset,
                       .weights = pass.params + output.weights_offset,
                       .bias = pass.params + output.bias_offset,
                       .hidden = before.output,
                       .dlogits = last.delta,
                       .dbias = pass.gradient + output.bias_offset,
                       .dhidden = before.delta,
                       .dhidden_bias = pass.gradient + hidden.layer.bias_offset},
                      place, partials_, pass.handles.stream);
}

// ---- backward -------------------------------------------------------------------------------------------------

template <typename T>
void CudaNetwork<T>::backward(const Pass& pass) {
  for (std::size_t i = stages_.size(); i-- > first_trained_;) {
    Stage& stage = stages_[i];
    const T* x = input(pass, i);
    const Dx dx_is = fuses_head(pass) && i + 1 == stages_.size() ? Dx::computed : Dx::wanted;
    T* const dx = i == first_trained_ ? nullptr : stages_[i - 1].delta;
    if (const auto* dense = std::get_if<Dense>(&stage.what)) {
      backward(pass, *dense, x, stage.delta, dx, dx_is);
    } else if (auto* convolution = std::get_if<Convolution>(&stage.what)) {
      backward(pass, *convolution, x, stage.delta, dx);
    } else {
      const auto& pool = std::get<Pool>(stage.what);
      cuda::max_pool_backward(pass.rows, pool.layer.shape, pool.channels_out, x, stage.delta, dx, pass.handles.stream);
    }
    if (dx != nullptr && dx_is == Dx::wanted) before_bias(pass, stages_[i - 1]);
  }
  side_.join(pass.handles.stream);
}

/// The gradient of the weights goes to the side stream, because the layers before wait for dx only.
template <typename T>
void CudaNetwork<T>::backward(const Pass& pass, const Dense& dense, const T* x, const T* dy, T* dx, Dx is) {
  const auto [inputs, outputs] = dense.layer.shape;
  if (dx != nullptr) side_.fork(pass.handles.stream);
  cuda_gemm(dx == nullptr ? pass.handles.cublas.get() : side_.cublas(), math_, Transpose::kYes, Transpose::kNo,
            {inputs, outputs, pass.rows}, x, dy, pass.gradient + dense.layer.weights_offset);
  if (dx == nullptr || is == Dx::computed) return;
  cuda_gemm(pass.handles.cublas, math_, Transpose::kNo, Transpose::kYes, {pass.rows, inputs, outputs}, dy,
            pass.params + dense.layer.weights_offset, dx);
}

template <typename T>
void CudaNetwork<T>::backward(const Pass& pass, Convolution& convolution, const T* x, const T* dy, T* dx) {
  const ConvLayer& layer = convolution.layer;
  CudaConvolution<T>& compute = *convolution.convolution;
  const std::size_t bytes = compute.workspace_bytes(pass.handles.cudnn, pass.rows);
  T* const dfilter = static_cast<T*>(convolution.dfilter.data());
  compute.backward_filter(pass.handles.cudnn, pass.rows, x, dy, dfilter, cudnn_memory_, bytes);
  cuda::filter_to_channels_last(layer.shape, dfilter, pass.gradient + layer.weights_offset, pass.handles.stream);
  if (dx == nullptr) return;
  compute.backward_data(pass.handles.cudnn, pass.rows, static_cast<const T*>(convolution.filter.data()), dy, dx,
                        cudnn_memory_, bytes);
}

/// Turns the gradient with respect to a stage's output into the gradient before its bias. Also computes the gradient of
/// the bias.
template <typename T>
void CudaNetwork<T>::before_bias(const Pass& pass, Stage& stage) {
  if (const auto* dense = std::get_if<Dense>(&stage.what)) {
    const double rate = dense->dropout.has_value() && pass.key != nullptr ? dense->dropout->rate : 0;
    cuda::bias_relu_backward(pass.rows, dense->layer.shape.outputs, rate, stage.output, stage.delta,
                             pass.gradient + dense->layer.bias_offset, partials_, pass.handles.stream);
  } else if (const auto* convolution = std::get_if<Convolution>(&stage.what)) {
    cuda::image_bias_relu_backward(pass.rows, convolution->layer.shape, stage.output, stage.delta,
                                   pass.gradient + convolution->layer.bias_offset, partials_, pass.handles.stream);
  }
}

template class CudaNetwork<float>;
template class CudaNetwork<double>;

}  // namespace demos
