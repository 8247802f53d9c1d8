#pragma once

// UnitMemory: a flat tensor whose memory comes and goes.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

/// A flat tensor. The tensors that refer to parts of it (parameters, their gradients, and what autograd saved of them)
/// stay the same, and see the memory that it has at the time. Without memory, an access to a part of it on a CPU device is
/// a fault (SIGSEGV) at an address that nothing else uses. On a GPU, LibTorch throws, or the access is illegal.
class UnitMemory {
 public:
  UnitMemory(std::int64_t elements, ::torch::ScalarType type, ::torch::Device device);
  ~UnitMemory() { close(); }
  UnitMemory(const UnitMemory&) = delete;
  UnitMemory& operator=(const UnitMemory&) = delete;

  bool is_open() const noexcept { return is_open_; }
  /// Gets memory. On a CPU device, it is zero. Throws Error (system) or LibTorch's error if there is too little.
  void open();
  /// The same, filled with zeros on every device.
  void open_with_zeros();
  void close() noexcept;

  /// Errors that come from an access without memory name it so.
  void set_name(const std::string& name);

  const ::torch::Tensor& flat() const noexcept { return flat_; }
  /// The part that belongs to the parameter.
  ::torch::Tensor part_of(const BoundParameter& parameter) const;
  std::int64_t bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }

 private:
  class Pages;

  std::shared_ptr<Pages> pages_;  // on a CPU device
  std::optional<syncrun::detail::NamedMemory> named_;
  ::torch::Tensor flat_;
  bool is_open_ = true;
};

}  // namespace syncrun::libtorch::detail
