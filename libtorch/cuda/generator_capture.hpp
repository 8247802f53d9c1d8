#pragma once

// Captured graphs that draw random numbers from LibTorch's generator of the GPU.

#include <c10/core/Device.h>

#include <memory>

#include "common/os/capture_listener.hpp"

namespace syncrun::libtorch::detail {

/// A graph draws the same numbers as the host code would, and leaves the same state of the generator behind. Host code that
/// is captured must not draw from LibTorch's generator of the CPU, seed or read a generator, or run a recurrent layer of
/// cuDNN with dropout. No other thread draws during a capture: on the GPU it would fail, and numbers of the host could come
/// twice.
std::unique_ptr<syncrun::detail::os::CaptureListener> make_generator_capture(c10::DeviceIndex device);

}  // namespace syncrun::libtorch::detail
