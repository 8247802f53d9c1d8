// Calls the kernels with the memory of tensors.

#include "libtorch/cuda/kernel_calls.hpp"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "libtorch/cuda/cross_entropy_kernels.hpp"
#include "libtorch/cuda/layer_kernels.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

kernels::Element element_of(::torch::ScalarType type) {
  if (type == ::torch::kBFloat16) return kernels::Element::bfloat16;
  return type == ::torch::kFloat32 ? kernels::Element::float32 : kernels::Element::float64;
}

void check_launch(const char* operation, cudaError_t code) {
  if (code == cudaSuccess) return;
  throw Error(ErrorKind::cuda, std::string(operation) + ": " + cudaGetErrorString(code), static_cast<int>(code));
}

/// For tensors on the device of `like`, of the type of sums of its elements.
::torch::TensorOptions sums_like(const ::torch::Tensor& like) {
  return like.options()
      .dtype(like.scalar_type() == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32)
      .requires_grad(false);
}

kernels::CrossEntropyRows rows_of(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                  const ::torch::Tensor& sums, std::int64_t ignore_index) {
  return {.type = element_of(scores.scalar_type()),
          .scores = scores.data_ptr(),
          .targets = targets.data_ptr<std::int64_t>(),
          .rows = targets.numel(),
          .classes = scores.size(-1),
          .ignore_index = ignore_index,
          .sums = sums.data_ptr()};
}

/// A tensor as the rows of its last dimension.
kernels::Matrix matrix_of(const ::torch::Tensor& tensor) {
  const std::int64_t width = tensor.size(-1);
  return {element_of(tensor.scalar_type()), tensor.data_ptr(), tensor.numel() / width, width};
}

void* memory_of(const ::torch::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

/// `x` is x. In the backward pass it is the sum.
kernels::Normalization normalization_of(const ::torch::Tensor& x, const NormalizationArguments& arguments,
                                        const NormalizedRows& rows) {
  return {.x = matrix_of(x),
          .weight = memory_of(arguments.weight),
          .bias = memory_of(arguments.bias),
          .epsilon = arguments.epsilon,
          .type_of_y = element_of(arguments.type_of_y),
          .means = rows.means.data_ptr(),
          .scales = rows.scales.data_ptr()};
}

bool is_capturing(c10::cuda::CUDAStream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_launch("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status));
  return status == cudaStreamCaptureStatusActive;
}

/// Another branch of a graph that is being captured. Its stream first waits for all work on `main` so far, and the
/// destructor makes `main` wait for the branch. LibTorch gives memory that is free again only to the stream that had it.
/// So no branch overwrites what another one still reads.
class Branch {
 public:
  Branch(c10::cuda::CUDAStream main, c10::cuda::CUDAStream own) : main_(main), own_(own) { order(main_, own_); }
  ~Branch() {
    try {
      order(own_, main_);
    } catch (const c10::Error&) {  // the end of the capture reports it
    }
  }
  Branch(const Branch&) = delete;
  Branch& operator=(const Branch&) = delete;

  void run(const std::function<void()>& work) const {
    const c10::cuda::CUDAStreamGuard guard(own_);
    work();
  }

 private:
  static void order(c10::cuda::CUDAStream first, c10::cuda::CUDAStream second) {
    at::cuda::CUDAEvent event;
    event.record(first);
    event.block(second);
  }

  c10::cuda::CUDAStream main_;
  c10::cuda::CUDAStream own_;
};

class KernelCalls final : public GpuOperations {
 public:
  CrossEntropyParts cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                  std::int64_t ignore_index) override {
    const auto options = sums_like(scores);
    const c10::cuda::CUDAGuard guard(scores.device());
    CrossEntropyParts parts{::torch::empty({}, options), ::torch::empty({targets.numel(), 2}, options),
                            ::torch::empty({}, options)};
    const auto losses = ::torch::empty({targets.numel()}, options);
    check_launch("cross_entropy", kernels::cross_entropy(rows_of(scores, targets, parts.sums, ignore_index),
                                                         losses.data_ptr(), parts.loss.data_ptr(),
                                                         parts.count.data_ptr(), c10::cuda::getCurrentCUDAStream()));
    return parts;
  }
  ::torch::Tensor cross_entropy_gradient(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                         const CrossEntropyParts& parts, std::int64_t ignore_index) override {
    auto gradient = ::torch::empty_like(scores);
    const c10::cuda::CUDAGuard guard(scores.device());
    const auto upstream = parts.loss.contiguous();
    check_launch("cross_entropy", kernels::cross_entropy_gradient(
                                      rows_of(scores, targets, parts.sums, ignore_index), upstream.data_ptr(),
                                      parts.count.data_ptr(), gradient.data_ptr(), c10::cuda::getCurrentCUDAStream()));
    return gradient;
  }
  NormalizedRows layer_norm(const NormalizationArguments& arguments) override {
    const ::torch::Tensor& x = arguments.x;
    const c10::cuda::CUDAGuard guard(x.device());
    const std::int64_t rows = x.numel() / x.size(-1);
    const auto options = x.options().requires_grad(false);
    NormalizedRows result{x, ::torch::empty(x.sizes(), options.dtype(arguments.type_of_y)),
                          ::torch::empty({rows}, sums_like(x)), ::torch::empty({rows}, sums_like(x))};
    kernels::Addition addition;
    if (arguments.change.defined()) {
      result.sum = ::torch::empty(x.sizes(), options);
      addition = {arguments.change.data_ptr(), element_of(arguments.change.scalar_type()), result.sum.data_ptr()};
    }
    check_launch("layer_norm", kernels::layer_norm(normalization_of(x, arguments, result), addition,
                                                   result.y.data_ptr(), c10::cuda::getCurrentCUDAStream()));
    return result;
  }
  SummandGradients layer_norm_gradient(const NormalizationArguments& arguments, const NormalizedRows& rows,
                                       const UpstreamGradients& upstream) override {
    const c10::cuda::CUDAGuard guard(upstream.of_y.device());
    const auto options = rows.sum.options().requires_grad(false);
    SummandGradients results;
    results.of_x = ::torch::empty(rows.sum.sizes(), options);
    const bool is_short = upstream.type_of_change != rows.sum.scalar_type();
    results.of_change =
        is_short ? ::torch::empty(rows.sum.sizes(), options.dtype(upstream.type_of_change)) : results.of_x;
    const kernels::NormalizationGradient gradient{.dy = upstream.of_y.data_ptr(),
                                                  .ds = memory_of(upstream.of_sum),
                                                  .dx = results.of_x.data_ptr(),
                                                  .short_change = is_short ? results.of_change.data_ptr() : nullptr};
    check_launch("layer_norm", kernels::layer_norm_gradient(normalization_of(rows.sum, arguments, rows), gradient,
                                                            c10::cuda::getCurrentCUDAStream()));
    return results;
  }
  WeightGradients layer_norm_sums(const NormalizationArguments& arguments, const NormalizedRows& rows,
                                  const ::torch::Tensor& dy) override {
    const c10::cuda::CUDAGuard guard(dy.device());
    const auto normalization = normalization_of(rows.sum, arguments, rows);
    const auto sums = ::torch::empty({2, rows.sum.size(-1)}, sums_like(rows.sum));
    const auto scratch = ::torch::empty({kernels::scratch_of_column_sums(normalization.x, 2)}, sums_like(rows.sum));
    check_launch("layer_norm", kernels::layer_norm_sums(normalization, dy.data_ptr(), scratch.data_ptr(),
                                                        sums.data_ptr(), c10::cuda::getCurrentCUDAStream()));
    return {sums[0], sums[1]};
  }
  ::torch::Tensor column_sums(const ::torch::Tensor& matrix) override {
    const c10::cuda::CUDAGuard guard(matrix.device());
    const auto source = matrix_of(matrix);
    auto result = ::torch::empty({source.width}, sums_like(matrix));
    const auto scratch = ::torch::empty({kernels::scratch_of_column_sums(source, 1)}, sums_like(matrix));
    check_launch("column_sums", kernels::column_sums(source, scratch.data_ptr(), result.data_ptr(),
                                                     c10::cuda::getCurrentCUDAStream()));
    return result;
  }
  ::torch::Tensor embedding_gradient(const ::torch::Tensor& tokens, const ::torch::Tensor& dy,
                                     std::int64_t vocabulary) override {
    const c10::cuda::CUDAGuard guard(dy.device());
    const kernels::ChosenRows chosen{tokens.data_ptr<std::int64_t>(), matrix_of(dy), vocabulary};
    auto result = ::torch::empty({vocabulary, chosen.dy.width}, sums_like(dy));
    const auto scratch = ::torch::empty({kernels::scratch_of_embedding(chosen)}, sums_like(dy));
    check_launch("embedding", kernels::embedding_gradient(chosen, scratch.data_ptr(), result.data_ptr(),
                                                          c10::cuda::getCurrentCUDAStream()));
    return result;
  }
  void side_by_side(const std::vector<std::function<void()>>& works) override {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (!is_capturing(stream)) {
      for (const auto& work : works) work();
      return;
    }
    // Always the same streams, because products have scratch memory for each one.
    while (streams_.size() + 1 < works.size())
      streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, stream.device_index()));
    std::list<Branch> branches;
    for (std::size_t i = 1; i < works.size(); ++i) branches.emplace_back(stream, streams_[i - 1]).run(works[i]);
    works.front()();
  }

 private:
  std::vector<c10::cuda::CUDAStream> streams_;  // for all but the first of works
};

}  // namespace

GpuOperations& gpu_operations() {
  static KernelCalls calls;
  return calls;
}

}  // namespace syncrun::libtorch::detail
