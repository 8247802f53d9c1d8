#include "demos/common/cuda_memory.hpp"

#include <algorithm>

#include "demos/common/cuda_check.hpp"

namespace demos {

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check_cuda(cudaMalloc(&data_, bytes), "cudaMalloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

void DeviceBuffer::clear() {
  check_cuda(cudaMemset(data_, 0, bytes_), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaMemset");  // the next user may be a stream that does not wait for this one
}

void* GrowingDeviceMemory::reserve(std::size_t bytes) {
  const std::size_t had = blocks_.empty() ? 0 : blocks_.back().bytes();
  if (bytes > had) blocks_.emplace_back(std::max(bytes, had + had / 2));
  return blocks_.empty() ? nullptr : blocks_.back().data();
}

}  // namespace demos
