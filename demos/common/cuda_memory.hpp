#pragma once

// Owners of device memory. This header needs no CUDA header.

#include <cstddef>
#include <utility>
#include <vector>

namespace demos {

/// A block of the current device's memory, aligned to 256 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// The memory is not initialised. Throws std::runtime_error if there is not enough memory.
  explicit DeviceBuffer(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Sets every byte to zero, and waits until that is done.
  void clear();

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Device memory that grows and keeps its old blocks. A CUDA graph continues to use the addresses with which its work
/// was captured, so an old block must stay valid. Each block is at least half as large again as the one before, so all
/// blocks together have at most three times the bytes of the block in use.
class GrowingDeviceMemory {
 public:
  /// Returns a block of at least `bytes`. It is the same block as before, unless that is too small.
  void* reserve(std::size_t bytes);

 private:
  std::vector<DeviceBuffer> blocks_;  // the last one is in use
};

}  // namespace demos
