#pragma once

// A convolution on a CUDA device, computed by cuDNN. This header needs no CUDA header. If the build found no cuDNN, the
// constructor throws.

#include <cstddef>
#include <map>
#include <memory>

#include "demos/common/blas.hpp"
#include "demos/common/convolution.hpp"

struct cudnnContext;

namespace demos {

/// T is float or double. Images are [rows, channels, height, width]. Filters are [channels_out, channels_in, kernel,
/// kernel]. It uses only algorithms that give the same bits each time. Pointers are to device memory. Members put their
/// work on the handle's stream.
template <typename T>
class CudaConvolution {
 public:
  /// Throws std::invalid_argument for a shape that cuDNN does not support (a kernel of even size with kSame). Throws
  /// std::runtime_error if this program was built without cuDNN.
  CudaConvolution(const Conv2dShape& shape, MatrixMath math);
  CudaConvolution(CudaConvolution&&) noexcept;
  ~CudaConvolution();

  /// The bytes of workspace for this number of rows, at least 1. It asks cuDNN once for each number of rows.
  std::size_t workspace_bytes(cudnnContext* cudnn, std::size_t rows);

  void forward(cudnnContext* cudnn, std::size_t rows, const T* x, const T* filter, T* y, void* workspace,
               std::size_t workspace_bytes);
  void backward_filter(cudnnContext* cudnn, std::size_t rows, const T* x, const T* dy, T* dfilter, void* workspace,
                       std::size_t workspace_bytes);
  void backward_data(cudnnContext* cudnn, std::size_t rows, const T* filter, const T* dy, T* dx, void* workspace,
                     std::size_t workspace_bytes);

 private:
  struct Descriptors;
  std::unique_ptr<Descriptors> descriptors_;
  std::map<std::size_t, std::size_t> workspace_bytes_;  // by rows
};

}  // namespace demos
