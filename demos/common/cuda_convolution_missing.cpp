// Implements cuda_convolution.hpp for builds without cuDNN.

#include <stdexcept>

#include "demos/common/cuda_convolution.hpp"

namespace demos {

template <typename T>
struct CudaConvolution<T>::Descriptors {};

template <typename T>
CudaConvolution<T>::CudaConvolution(const Conv2dShape&, MatrixMath) {
  throw std::runtime_error(
      "a convolutional network on a CUDA device needs cuDNN, and this program was built without it: install it and "
      "build again, or choose an mlp, or CPU devices");
}

template <typename T>
CudaConvolution<T>::CudaConvolution(CudaConvolution&&) noexcept = default;
template <typename T>
CudaConvolution<T>::~CudaConvolution() = default;

template <typename T>
std::size_t CudaConvolution<T>::workspace_bytes(cudnnContext*, std::size_t) {
  return 1;
}

template <typename T>
void CudaConvolution<T>::forward(cudnnContext*, std::size_t, const T*, const T*, T*, void*, std::size_t) {}

template <typename T>
void CudaConvolution<T>::backward_filter(cudnnContext*, std::size_t, const T*, const T*, T*, void*, std::size_t) {}

template <typename T>
void CudaConvolution<T>::backward_data(cudnnContext*, std::size_t, const T*, const T*, T*, void*, std::size_t) {}

template class CudaConvolution<float>;
template class CudaConvolution<double>;

}  // namespace demos
