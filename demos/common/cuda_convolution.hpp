#pragma once

// A convolution on a CUDA device, through cuDNN. Needs no CUDA header. Where the build found no cuDNN there is nothing
// to make one from: the constructor says so.

#include <cstddef>
#include <map>
#include <memory>

#include "demos/common/blas.hpp"
#include "demos/common/convolution.hpp"

struct cudnnContext;

namespace demos {

/// T is float or double. Images are [rows, channels, height, width], filters [channels_out, channels_in, kernel,
/// kernel]. Only algorithms that give the same bits each time. Pointers are device memory, work is put on the handle's
/// stream.
template <typename T>
class CudaConvolution {
 public:
  /// Throws std::invalid_argument for what cuDNN cannot do (a kernel of even size with kSame), std::runtime_error where
  /// this program was built without cuDNN.
  CudaConvolution(const Conv2dShape& shape, MatrixMath math);
  CudaConvolution(CudaConvolution&&) noexcept;
  ~CudaConvolution();

  /// Bytes of workspace for that many rows, at least 1; asks cuDNN once per number of rows.
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
