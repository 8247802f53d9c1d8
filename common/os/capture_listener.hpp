#pragma once

// A library with state on the host on which the work of bodies depends, such as LibTorch's generators of random numbers. If
// this work is captured as a CUDA graph and launched again, the library moves the state on in place of the host code.

#include <memory>

#include "common/export_for_cuda.hpp"

struct CUstream_st;

namespace syncrun::detail::os {

/// What the library does before a launch of a graph.
class BeforeLaunch {
 public:
  BeforeLaunch() = default;
  BeforeLaunch(const BeforeLaunch&) = delete;
  BeforeLaunch& operator=(const BeforeLaunch&) = delete;
  virtual ~BeforeLaunch() = default;

  /// The launch follows on this stream.
  virtual void prepare(CUstream_st* stream) = 0;
};

/// All functions are called on the worker's thread.
class CaptureListener {
 public:
  CaptureListener() = default;
  CaptureListener(const CaptureListener&) = delete;
  CaptureListener& operator=(const CaptureListener&) = delete;
  virtual ~CaptureListener() = default;

  /// The next work is captured, and not executed.
  virtual void begin_capture() = 0;
  /// The capture has ended. The result is null if launches need nothing. Throws Error (usage) if host code has changed the
  /// state in a way that a launch could not repeat. abandon_capture() follows then.
  virtual std::unique_ptr<BeforeLaunch> end_capture() = 0;
  /// The capture has failed. The state is that before the capture again. The result says why, or is null if the library
  /// does not know it. Does nothing if there is no capture.
  virtual const char* abandon_capture() noexcept = 0;
};

/// That of this process. Null if no library has registered.
SYNCRUN_EXPORT_FOR_CUDA CaptureListener*& capture_listener() noexcept;

}  // namespace syncrun::detail::os
