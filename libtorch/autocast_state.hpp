#pragma once

#include <torch/torch.h>

namespace syncrun::libtorch::detail {

/// LibTorch's autocast in this thread.
bool is_autocast_enabled(::torch::DeviceType device);
::torch::ScalarType autocast_type(::torch::DeviceType device);

}  // namespace syncrun::libtorch::detail
