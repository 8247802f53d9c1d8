#pragma once

// Memory for activations and similar values. It is aligned to cache lines, not initialised, and kept from call to call.

#include <cstddef>
#include <memory>
#include <new>

namespace resnet {

/// Owns `capacity` values of a trivial type.
template <typename T>
class CpuBuffer {
 public:
  /// Makes room for `elements` values. If the buffer has to grow, its old values are lost. Throws std::bad_alloc.
  void reserve(std::size_t elements) {
    if (elements <= capacity_) return;
    memory_.reset();
    capacity_ = 0;
    memory_.reset(static_cast<T*>(::operator new(elements * sizeof(T), kAlignment)));
    capacity_ = elements;
  }

  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Release {
    void operator()(T* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<T, Release> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace resnet
