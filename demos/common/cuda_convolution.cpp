#include "demos/common/cuda_convolution.hpp"

#include <cudnn.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace demos {
namespace {

// Each of these algorithms supports both element types for images with channels first. None depends on the order of
// atomic additions.
constexpr cudnnConvolutionFwdAlgo_t kForward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
constexpr cudnnConvolutionBwdFilterAlgo_t kBackwardFilter = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
constexpr cudnnConvolutionBwdDataAlgo_t kBackwardData = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;

void check_cudnn(cudnnStatus_t code, const char* what) {
  if (code == CUDNN_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + ": " + cudnnGetErrorString(code));
}

/// A descriptor with its one owner.
template <typename Handle, cudnnStatus_t (*kCreate)(Handle*), cudnnStatus_t (*kDestroy)(Handle)>
class Descriptor {
 public:
  Descriptor() { check_cudnn(kCreate(&handle_), "a descriptor of cuDNN's"); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { static_cast<void>(kDestroy(handle_)); }
  operator Handle() const noexcept { return handle_; }  // NOLINT(google-explicit-constructor): it stands for it

 private:
  Handle handle_ = nullptr;
};
using TensorDescriptor = Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

template <typename T>
constexpr cudnnDataType_t kType = std::is_same_v<T, float> ? CUDNN_DATA_FLOAT : CUDNN_DATA_DOUBLE;

template <typename T>
constexpr T kOne = 1;
template <typename T>
constexpr T kZero = 0;

}  // namespace

template <typename T>
struct CudaConvolution<T>::Descriptors {
  Conv2dShape shape;
  TensorDescriptor x;
  TensorDescriptor y;
  FilterDescriptor filter;
  ConvolutionDescriptor convolution;

  Descriptors(const Conv2dShape& of, MatrixMath math) : shape(of) {
    const auto number = [](std::size_t value) { return static_cast<int>(value); };
    const int pad = number(shape.pad());
    check_cudnn(cudnnSetFilter4dDescriptor(filter, kType<T>, CUDNN_TENSOR_NCHW, number(shape.channels_out),
                                           number(shape.channels_in), number(shape.kernel), number(shape.kernel)),
                "cudnnSetFilter4dDescriptor");
    check_cudnn(cudnnSetConvolution2dDescriptor(convolution, pad, pad, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, kType<T>),
                "cudnnSetConvolution2dDescriptor");
    // The default math type would permit cuDNN to round floats to TF32.
    check_cudnn(
        cudnnSetConvolutionMathType(convolution, math == MatrixMath::kTf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH),
        "cudnnSetConvolutionMathType");
  }

  void set_rows(std::size_t rows) {
    const auto set = [rows](cudnnTensorDescriptor_t tensor, std::size_t channels, std::size_t height,
                            std::size_t width) {
      check_cudnn(
          cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, kType<T>, static_cast<int>(rows),
                                     static_cast<int>(channels), static_cast<int>(height), static_cast<int>(width)),
          "cudnnSetTensor4dDescriptor");
    };
    set(x, shape.channels_in, shape.height, shape.width);
    set(y, shape.channels_out, shape.height_out(), shape.width_out());
  }
};

template <typename T>
CudaConvolution<T>::CudaConvolution(const Conv2dShape& shape, MatrixMath math) {
  if (shape.padding == Padding::kSame && shape.kernel % 2 == 0) {
    throw std::invalid_argument("a convolution on a CUDA device: expected a kernel of odd size, got " +
                                std::to_string(shape.kernel));
  }
  descriptors_ = std::make_unique<Descriptors>(shape, math);
}

template <typename T>
CudaConvolution<T>::CudaConvolution(CudaConvolution&&) noexcept = default;
template <typename T>
CudaConvolution<T>::~CudaConvolution() = default;

template <typename T>
std::size_t CudaConvolution<T>::workspace_bytes(cudnnContext* cudnn, std::size_t rows) {
  const auto known = workspace_bytes_.find(rows);
  if (known != workspace_bytes_.end()) return known->second;
  Descriptors& d = *descriptors_;
  d.set_rows(rows);
  std::size_t forward = 0;
  std::size_t filter = 0;
  std::size_t data = 0;
  check_cudnn(cudnnGetConvolutionForwardWorkspaceSize(cudnn, d.x, d.filter, d.convolution, d.y, kForward, &forward),
              "cudnnGetConvolutionForwardWorkspaceSize");
  check_cudnn(cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnn, d.x, d.y, d.convolution, d.filter, kBackwardFilter,
                                                             &filter),
              "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  check_cudnn(
      cudnnGetConvolutionBackwardDataWorkspaceSize(cudnn, d.filter, d.y, d.convolution, d.x, kBackwardData, &data),
      "cudnnGetConvolutionBackwardDataWorkspaceSize");
  return workspace_bytes_[rows] = std::max({forward, filter, data, std::size_t{1}});
}

template <typename T>
void CudaConvolution<T>::forward(cudnnContext* cudnn, std::size_t rows, const T* x, const T* filter, T* y,
                                 void* workspace, std::size_t workspace_bytes) {
  Descriptors& d = *descriptors_;
  d.set_rows(rows);
  check_cudnn(cudnnConvolutionForward(cudnn, &kOne<T>, d.x, x, d.filter, filter, d.convolution, kForward, workspace,
                                      workspace_bytes, &kZero<T>, d.y, y),
              "cudnnConvolutionForward");
}

template <typename T>
void CudaConvolution<T>::backward_filter(cudnnContext* cudnn, std::size_t rows, const T* x, const T* dy, T* dfilter,
                                         void* workspace, std::size_t workspace_bytes) {
  Descriptors& d = *descriptors_;
  d.set_rows(rows);
  check_cudnn(cudnnConvolutionBackwardFilter(cudnn, &kOne<T>, d.x, x, d.y, dy, d.convolution, kBackwardFilter,
                                             workspace, workspace_bytes, &kZero<T>, d.filter, dfilter),
              "cudnnConvolutionBackwardFilter");
}

template <typename T>
void CudaConvolution<T>::backward_data(cudnnContext* cudnn, std::size_t rows, const T* filter, const T* dy, T* dx,
                                       void* workspace, std::size_t workspace_bytes) {
  Descriptors& d = *descriptors_;
  d.set_rows(rows);
  check_cudnn(cudnnConvolutionBackwardData(cudnn, &kOne<T>, d.filter, filter, d.y, dy, d.convolution, kBackwardData,
                                           workspace, workspace_bytes, &kZero<T>, d.x, dx),
              "cudnnConvolutionBackwardData");
}

template class CudaConvolution<float>;
template class CudaConvolution<double>;

}  // namespace demos
