#include "common/os/capture_listener.hpp"

namespace syncrun::detail::os {

CaptureListener*& capture_listener() noexcept {
  static CaptureListener* listener = nullptr;
  return listener;
}

}  // namespace syncrun::detail::os
