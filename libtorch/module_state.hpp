#pragma once

// ModuleState: what training changes in a module beside its parameters. Session::verify puts it back.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/detail/verified_call.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

class ModuleState : public syncrun::detail::StateKeeper {
 public:
  /// `parameters` has the places of the parameters in the flat vector.
  ModuleState(std::shared_ptr<::torch::nn::Module> module, const std::vector<BoundParameter>& parameters);

  /// A call computes with the module: to train it, or to evaluate it.
  enum class Use : std::uint8_t { none, evaluation, training };
  void note_use(Use use) { use_ = std::max(use_, use); }

  /// Changes whenever a buffer or a frozen parameter is written.
  std::uint32_t buffer_versions() const;
  /// Whether all ranks have had the same buffers when note_synced() was called last, and no buffer was written since.
  bool is_synced() const { return buffer_versions() == synced_versions_; }
  void note_synced() { synced_versions_ = buffer_versions(); }

  /// See BoundModule::modes().
  std::span<const std::uint64_t> modes() noexcept;

  void keep(const Caller& caller) override;
  void restore(const Caller& caller, Generators generators) override;
  void drop() noexcept override;
  std::string describe() const override;

 private:
  void put_back_buffers();

  std::shared_ptr<::torch::nn::Module> module_;
  std::string parts_;                                          // a line for each parameter
  std::vector<std::shared_ptr<::torch::nn::Module>> modules_;  // of module_: it has the same until a change
  std::vector<::torch::Tensor> parameters_;                    // also those that are frozen
  std::vector<std::uint64_t> mode_bits_;
  std::uint32_t synced_versions_ = 0;
  Use use_ = Use::none;  // since keep()
  // of keep():
  std::vector<std::pair<::torch::Tensor, ::torch::Tensor>> tensors_;   // a tensor and its copy
  std::vector<std::pair<at::Generator, ::torch::Tensor>> generators_;  // a generator and its state
  std::vector<std::pair<::torch::nn::Module*, bool>> modes_;           // whether a module is in training mode
  bool was_synced_ = false;
};

}  // namespace syncrun::libtorch::detail
