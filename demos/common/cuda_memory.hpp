#pragma once

// Device memory with its one owner. Needs no CUDA header.

#include <cstddef>
#include <utility>
#include <vector>

namespace demos {

/// A block of the current device's memory, aligned to 256 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Not initialised. Throws std::runtime_error where there is not enough memory.
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

  /// Sets every byte to zero and waits for it.
  void clear();

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Device memory that grows and never goes: what was outgrown stays as it is, since work that was captured into a CUDA
/// graph goes on using the addresses that it has seen. It grows by half at least, so that all that is kept is not more
/// than three times what is in use.
class GrowingDeviceMemory {
 public:
  /// At least `bytes`; the same address as before unless that is too small.
  void* reserve(std::size_t bytes);

 private:
  std::vector<DeviceBuffer> blocks_;  // the last one is in use
};

}  // namespace demos
